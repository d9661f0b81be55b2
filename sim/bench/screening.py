"""Screened against full certification of the same thresholds: branches evaluated, and wall time (METHOD 7)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sim.bench.config import BenchConfig
from sim.bench.measure import Measurement, repeated, seconds
from sim.config import parse
from sim.launch import composed
from sim.records.rows import DecisionRow, EpisodeRow
from sim.records.store import RunStore, finished_decisions, read_rows
from sim.studies.conditions import EVALUATE, controlled
from sim.studies.opening import opened
from sim.studies.rollout import Policy, rollout
from sim.studies.stages import controller_of, gate_policy, read_thresholds, screen_policy
from sim.studies.study import Study, fold
from sim.studies.trace import Trace
from sim.studies.verbs import run_stages
from sim.worlds.protocol import Episodes

CONTROLLER = "rules"


def measure(config: BenchConfig) -> Iterator[Measurement]:
    """Branches a decision takes of those open to it, and the ratio of wall times, in the cognitive world."""
    test = 200 if config.reduced else 1_000
    # 900 screening families: 112 for each of eight rounds, of which a band at alpha_s = 0.01 needs 99.
    with tempfile.TemporaryDirectory() as output:
        data = composed(
            f"task.count={test + 1_400}",
            f"split={{train: 100, pilot: 200, calibration: 200, screening: 900, test: {test}}}",
            f"conditions=[{CONTROLLER},hidden_post]", f"certified=[{CONTROLLER}]", f"screened=[{CONTROLLER}]",
            "screening.audit_fraction=0", "progress=false", f"output={output}",
        )  # fmt: skip
        run = run_stages(data, {}, ("explore", "calibrate", "evaluate"))
        for suffix, what in (("+gate", "full"), ("+screen", "screened")):
            share, low, high = _evaluated(run, CONTROLLER + suffix)
            yield Measurement("screening", f"{what}: branches evaluated a decision", share, low, high, "")
        ratio, low, high = asyncio.run(_wall_ratio(run, data, 3 if config.reduced else 5))
        yield Measurement("screening", "full / screened, wall time without a model", ratio, low, high, "×")


def _evaluated(run: Path, condition: str) -> tuple[float, float, float]:
    """Mean branches evaluated a decision, with the smallest and largest mean of a round."""
    episodes = [
        row for row in read_rows(run, EpisodeRow) if (row.stage, row.condition) == (EVALUATE, condition)
    ]
    decisions: Sequence[DecisionRow] = finished_decisions(run, episodes)
    counts = np.array([sum(value is not None for value in row.objectives) for row in decisions])
    rounds = np.array([row.round for row in decisions])
    by_round = [counts[rounds == t].mean() for t in np.unique(rounds)]
    return float(counts.mean()), float(min(by_round)), float(max(by_round))


async def _wall_ratio(run: Path, config: dict[str, object], repetitions: int) -> tuple[float, float, float]:
    """Wall time of the gated discussions over that of the screened ones, alternated."""
    with RunStore(run) as store:
        async with opened(run, parse(config), store) as study:
            found = read_thresholds(run)
            policy = controlled(study.config, CONTROLLER, controller_of(study, CONTROLLER))
            gated, screened = gate_policy(study, policy, found), screen_policy(study, policy, found)
            # Measured in threads of their own, because a rollout needs an event loop and this is one.
            return await asyncio.to_thread(
                repeated, lambda: _wall(study, gated) / _wall(study, screened), repetitions
            )


def _wall(study: Study, policy: Policy) -> float:
    tasks = fold(study, "test")
    episodes = Episodes(tasks, np.zeros(len(tasks), np.int64))
    return seconds(lambda: asyncio.run(rollout(study.world, episodes, policy, Trace(episodes))))
