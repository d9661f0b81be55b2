"""The verbs of the toolkit on a run directory: single stages, and the whole pipeline in one go."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from sim.config import StudyConfig, TaskConfig, parse
from sim.errors import UserError
from sim.records.run_dir import tracked
from sim.records.store import RunStore
from sim.studies.arms import has_arms, run_arms, separate_studies
from sim.studies.blocking import wait_for
from sim.studies.checks import check_config
from sim.studies.conditions import check_behaviour
from sim.studies.opening import checked_tasks, make_tasks, new_run, opened, replayed, resumed_run
from sim.studies.progress import Reporter
from sim.studies.stages import calibrate_all, evaluate, explore, screen_all, train
from sim.studies.study import Tasks
from sim.tasks import write_tasks


def run_stages(data: Mapping[str, Any], overridden: Mapping[str, Any], stages: tuple[str, ...]) -> Path:
    """Run some stages in a new run directory, or in the one named by `resume`; returns the directory.

    A study of several arms runs them all, each in a directory of its own below. A replay asked for on the command
    line starts from the recorded configuration. With `plan` the cost is printed instead, and nothing is written.
    """
    check = partial(check_prerequisites, stages=stages)
    if data["plan"]:
        if data["resume"] is not None:
            raise UserError(
                "plan is on with resume; a plan rehearses whole studies only, so leave out one of them"
            )
        from sim.studies.plan_table import print_plan

        print_plan(data, stages, check)
        return Path(data["output"])
    if "replay" in overridden and data["replay"] is not None and data["resume"] is None:
        data = replayed(data, overridden)
    if has_arms(data):
        return _run_arms(data, overridden, stages)
    if data["resume"] is None:
        directory, config = new_run(data, check)
    else:
        directory, config = resumed_run(Path(data["resume"]), data, overridden, check)
    with RunStore(directory) as store, tracked(directory, "+".join(stages)):
        wait_for(_held(directory, config, stages, store))
        if "report" in stages:
            _report(directory, Reporter(config.progress))
    if "evaluate" in stages:
        _track(directory, config)
    return directory


def _run_arms(data: Mapping[str, Any], overridden: Mapping[str, Any], stages: tuple[str, ...]) -> Path:
    def run(arm: Mapping[str, Any], part: tuple[str, ...]) -> None:
        run_stages(arm, {}, tuple(stage for stage in part if stage != "report"))

    if data["resume"] is None:
        check_study(data, stages)
    directory = run_arms(data, overridden, stages, run)
    if "report" in stages:
        from sim.report.build import report_arms
        from sim.report.terminal import print_comparison

        report_arms(directory)
        print_comparison(directory)
    return directory


def check_study(data: Mapping[str, Any], stages: tuple[str, ...]) -> None:
    """Raise UserError for what a study, or an arm of it, would refuse before its directory is made. Tasks are
    generated or read, unless they would have to be downloaded; no model is started."""
    if data["resume"] is not None:
        parse(data)
        return
    for config in separate_studies(data).values():
        if config.task.source == "hub":
            check_prerequisites(config, stages)
            check_config(config)
        else:
            checked_tasks(config, partial(check_prerequisites, stages=stages), _tasks_of)


@lru_cache(maxsize=4)
def _tasks_of(config: TaskConfig) -> Tasks:
    """Tasks, made once for all cells of a sweep that have the same."""
    return make_tasks(config)


def check_prerequisites(config: StudyConfig, stages: tuple[str, ...]) -> None:
    """Raise UserError where a new run would lack what its stages read."""
    for name in needed_folds(config, stages):
        if not getattr(config.split, name):
            raise UserError(
                f"split.{name} is 0, but this study needs a {name} fold; give it some task families"
                + (", or set conformal=trajectory, which needs none" if name == "pilot" else "")
            )
    if explores(config, stages):
        check_behaviour(config)
    if "train" in stages and "explore" not in stages:
        raise UserError("resume is null; training reads the branches of a run: resume=<its directory>")
    given = config.from_run is not None
    if config.trained and "train" not in stages and not set(stages) <= {"explore"}:
        raise UserError(
            f"{config.trained[0]!r} is not trained; give from_run=<a run with its weights>, resume a run, or "
            "use scripts/pipeline.py"
        )
    if "evaluate" in stages and "calibrate" not in stages and config.certified and not given:
        raise UserError(
            f"{config.certified[0]!r} has no thresholds; give from_run=<a calibrated run>, resume a run, set "
            "certified=[], or use scripts/pipeline.py"
        )


def needed_folds(config: StudyConfig, stages: tuple[str, ...]) -> list[str]:
    """The folds of tasks that some stages draw on."""
    needed: list[str] = list(config.exploration.folds) if explores(config, stages) else []
    if config.certified and "calibrate" in stages:
        needed += ["pilot", "calibration"] if config.conformal.mode == "pilot" else ["calibration"]
        needed += ["screening"] if config.screened else []
    return needed + (["test"] if "evaluate" in stages else [])


def explores(config: StudyConfig, stages: tuple[str, ...]) -> bool:
    """Whether to explore: something is to be trained, or it is asked for by itself."""
    needed = bool(config.trained) or bool(config.screened)
    return "explore" in stages and (needed or "train" not in stages)


def write_task_file(data: Mapping[str, Any], overridden: Mapping[str, Any]) -> None:
    """Write the tasks of a configuration to the file named by `output`."""
    config = parse(data)
    if not config.output.endswith(".json"):
        raise UserError(
            f"output is {config.output!r}; name the task file to write, such as output=tasks.json"
        )
    tasks = make_tasks(config.task)
    write_tasks(config.output, tasks)
    print(f"{len(tasks)} tasks written to {config.output}")


async def _held(directory: Path, config: StudyConfig, stages: tuple[str, ...], store: RunStore) -> None:
    report = Reporter(config.progress)
    async with opened(directory, config, store) as study:
        if explores(config, stages):
            await explore(study, report)
        if "train" in stages and config.trained:
            train(study, report)
        if "calibrate" in stages and config.certified:
            await calibrate_all(study, report)
            if config.screened:
                await screen_all(study, report)
        if "evaluate" in stages:
            await evaluate(study, report)


def _report(directory: Path, report: Reporter) -> None:
    from sim.report.build import build_report
    from sim.report.terminal import print_report

    with report.stage("report", 1) as advance:
        build_report(directory)
        advance(1)
    print_report(directory)


def _track(directory: Path, config: StudyConfig) -> None:
    from sim.report.tracking import after_run

    after_run(directory, config.logger)
