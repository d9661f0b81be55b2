"""Tables across several runs: the arms of a study, the cells of a sweep, or whatever runs are set side by side.

Runs alike but for their split are one system: its halves are pooled. Everything is made from the runs' frames
and tables, so it regenerates from records alone.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from sim.report.page import PageRun
from sim.report.seats import composition, seats_of
from sim.report.tables import FULL, interval, mean_over_tasks, note_on, sorted_conditions
from sim.studies.intervals import task_means

_STACKED = (
    "accuracy",
    "paired",
    "contrasts",
    "draws",
    "efficiency",
    "certificates",
    "coverage",
    "members",
    "seats",
    "hiddenbench",
)
_NOT_SYSTEM = ("name", "split", "output", "resume", "progress", "notice", "logger", "arms", "transfer")
_BY_EPISODE = ["task", "seed"]


def across(runs: Sequence[PageRun]) -> dict[str, pd.DataFrame]:
    """`by_model`: accuracy of every system and condition; `benchmarks`: means over the systems of a benchmark,
    and how many reach their own full_info; `changes`: every run against the first; and the runs' own tables,
    one below the other, as `all_<table>`."""
    systems = list(_systems(runs))
    return {
        "by_model": _by_model(systems),
        "benchmarks": _benchmarks(systems),
        "changes": _changes(runs),
        **{f"all_{name}": _stacked(runs, name) for name in _STACKED},
    }


def _stacked(runs: Sequence[PageRun], name: str) -> pd.DataFrame:
    tables = [
        table.assign(run=page_run.run.name)
        for page_run in runs
        if len(table := page_run.tables.get(name, pd.DataFrame()))
    ]
    if not tables:
        return pd.DataFrame()
    stacked = pd.concat(tables, ignore_index=True)
    return stacked[["run", *(column for column in stacked.columns if column != "run")]]


class _System:
    """Runs of one model on one benchmark under one configuration, pooled over splits."""

    def __init__(self, runs: Sequence[PageRun]) -> None:
        self.benchmark, self.model = benchmark_of(runs[0].run.config), model_of(runs[0].run.config)
        self.runs = ", ".join(page_run.run.name for page_run in runs)
        self.episodes = pd.concat([page_run.frames.episodes for page_run in runs], ignore_index=True)

    def of(self, condition: str) -> pd.DataFrame:
        """The episodes of a condition."""
        return self.episodes[self.episodes["condition"] == condition]

    def reaches_full_information(self, condition: str) -> bool | None:
        """Whether a condition is at or above the system's own full_info; None where that was not held."""
        full = self.of(FULL)
        if not len(full):
            return None
        return bool(mean_over_tasks(self.of(condition), "correct") >= mean_over_tasks(full, "correct"))


def _systems(runs: Sequence[PageRun]) -> Iterator[_System]:
    """The systems among some runs. Runs that held the same episodes are never pooled."""
    groups: dict[str, list[PageRun]] = {}
    for page_run in runs:
        if not len(page_run.frames.episodes):
            continue
        config = {key: value for key, value in page_run.run.config.items() if key not in _NOT_SYSTEM}
        key = json.dumps(config, sort_keys=True, default=str)
        held = set(page_run.frames.episodes["task"])
        while any(held & set(other.frames.episodes["task"]) for other in groups.get(key, ())):
            key += "'"
        groups.setdefault(key, []).append(page_run)
    return (_System(group) for group in groups.values())


def benchmark_of(config: Mapping[str, Any]) -> str:
    """What a run's tasks are called in a table: `travel/medium`, `hiddenbench`, the name of a file."""
    task = config.get("task") or {}
    source = str(task.get("source", "unknown"))
    if source == "travel":
        size = "" if task.get("n_agents") == 4 else f"/{task.get('n_agents')} agents"
        return f"travel/{task.get('level')}{size}"
    return {"hub": "hiddenbench", "file": Path(str(task.get("path"))).stem}.get(source, source)


def model_of(config: Mapping[str, Any]) -> str:
    """Who talks in a run: the model's name, the models of a group, or `cognitive`."""
    if (config.get("world") or {}).get("kind") == "language":
        if (seats := seats_of(config)).order:
            return composition(seats)
        return str((config.get("model") or {}).get("name", "unknown"))
    return "cognitive"


def _by_model(systems: Sequence[_System]) -> pd.DataFrame:
    rows = [
        {
            "benchmark": system.benchmark,
            "model": system.model,
            "condition": name,
            "n_tasks": mine["task"].nunique(),
            "n_episodes": len(mine),
            **interval("task_accuracy", mine, "correct"),
            **interval("vote_accuracy", mine, "vote_accuracy"),
            "at_or_above_full_info": system.reaches_full_information(name),
            "runs": system.runs,
            "note": note_on(mine),
        }
        for system in systems
        for name in sorted_conditions(system.episodes["condition"])
        if len(mine := system.of(name))
    ]
    return pd.DataFrame(rows)


def _benchmarks(systems: Sequence[_System]) -> pd.DataFrame:
    """Means over systems: tasks are resampled, every model's episodes stay inside (METHOD 8)."""
    rows: list[dict[str, object]] = []
    for benchmark in dict.fromkeys(system.benchmark for system in systems):
        mine = [system for system in systems if system.benchmark == benchmark]
        pooled = pd.concat([system.episodes for system in mine], ignore_index=True)
        for name in sorted_conditions(pooled["condition"]):
            held = [system for system in mine if len(system.of(name))]
            rows.append(_benchmark_row(benchmark, name, held))
    return pd.DataFrame(rows)


def _benchmark_row(benchmark: str, name: str, systems: Sequence[_System]) -> dict[str, object]:
    episodes = pd.concat([system.of(name) for system in systems], ignore_index=True)
    reached = [found for system in systems if (found := system.reaches_full_information(name)) is not None]
    return {
        "benchmark": benchmark,
        "condition": name,
        "models": len(systems),
        "n_tasks": episodes["task"].nunique(),
        **interval("task_accuracy", episodes, "correct"),
        **interval("vote_accuracy", episodes, "vote_accuracy"),
        "models_at_or_above_full_info": sum(reached) if reached else nan,
        "note": note_on(episodes),
    }


def _changes(runs: Sequence[PageRun]) -> pd.DataFrame:
    """Task accuracy of each condition in each run minus that in the first: paired where both held the same
    tasks and seeds, else by Welch's t on the means of independent tasks."""
    held = [page_run for page_run in runs if len(page_run.frames.episodes)]
    rows = [
        {
            "condition": name,
            "run": other.run.name,
            "compared_with": held[0].run.name,
            **_change(first, second),
        }
        for other in held[1:]
        for name in sorted_conditions(other.frames.episodes["condition"])
        if len(first := _of(held[0], name)) and len(second := _of(other, name))
    ]
    return pd.DataFrame(rows)


def _of(page_run: PageRun, name: str) -> pd.DataFrame:
    episodes = page_run.frames.episodes
    return episodes[episodes["condition"] == name]


def _change(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, object]:
    head = {
        "task_accuracy": mean_over_tasks(second, "correct"),
        "compared_task_accuracy": mean_over_tasks(first, "correct"),
    }
    pairs = second.merge(first, on=_BY_EPISODE, suffixes=("", "_first"))
    if len(pairs):
        pairs["change"] = pairs["correct"].astype(float) - pairs["correct_first"].astype(float)
        unpaired = len(first) + len(second) - 2 * len(pairs)
        return {
            **head, "paired": True, **interval("change", pairs, "change"), "unpaired": unpaired, "note": note_on(pairs),
        }  # fmt: skip
    before, after = (
        task_means(frame["correct"].to_numpy(dtype=float), frame["task"].to_numpy(dtype=str))
        for frame in (first, second)
    )
    low, high = _welch(after, before)
    return {
        **head, "paired": False, "change": float(after.mean() - before.mean()), "change_low": low,
        "change_high": high, "unpaired": 0, "note": note_on(min(first, second, key=lambda f: f["task"].nunique())),
    }  # fmt: skip


def _welch(after: Any, before: Any) -> tuple[float, float]:
    """A 95% interval of a difference of means of independent tasks; the whole line where a side has no spread
    to estimate."""
    if min(len(after), len(before)) < 2 or np.ptp(after) + np.ptp(before) == 0:
        return -np.inf, np.inf
    with warnings.catch_warnings():  # one side without spread is no error: the other one has some
        warnings.simplefilter("ignore", RuntimeWarning)
        found = stats.ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    return float(found.low), float(found.high)
