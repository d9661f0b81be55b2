"""The verbs of the toolkit on a run directory: single stages, and the whole pipeline in one go."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.config import StudyConfig
from sim.records.run_dir import tracked
from sim.studies.opening import open_directory, opened
from sim.studies.progress import Reporter
from sim.studies.stages import calibrate_all, evaluate, explore, train

STAGES = ("explore", "train", "calibrate", "evaluate", "report")


def run_stages(data: Mapping[str, Any], overridden: Mapping[str, Any], stages: tuple[str, ...]) -> Path:
    """Run some stages in a new run directory, or in the one named by `resume`; returns the directory."""
    directory, config = open_directory(data, overridden)
    with tracked(directory, "+".join(stages)):
        asyncio.run(_held(directory, config, stages))
        if "report" in stages:
            _report(directory, config)
    return directory


async def _held(directory: Path, config: StudyConfig, stages: tuple[str, ...]) -> None:
    report = Reporter(config.progress)
    async with opened(directory, config) as study:
        if "explore" in stages and config.learned:
            await explore(study, report)
        if "train" in stages and config.learned:
            train(study, report)
        if "calibrate" in stages and config.certified:
            await calibrate_all(study, report)
        if "evaluate" in stages:
            await evaluate(study, report)


def _report(directory: Path, config: StudyConfig) -> None:
    from sim.report.build import build_report
    from sim.report.terminal import print_report

    build_report(directory)
    print_report(directory)
