"""Tables across runs: what is pooled, what is paired, and what is compared as independent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from scipy import stats

from sim.errors import UserError
from sim.report.build import compare, report_arms
from sim.report.command import report_command

WriterOf = Callable[[str], Any]
Rows = list[dict[Any, Any]]


def config_of(model: str, swap: bool = False, **task: object) -> str:
    """A run's configuration as far as these tables read it."""
    return yaml.safe_dump(
        {
            "task": {"source": "travel", "level": "easy", "n_agents": 4, **task},
            "world": {"kind": "language"},
            "model": {"name": model},
            "split": {"swap": swap},
            "contrasts": {"control": ["rules", "full_info"]},
        }
    )


def held(
    run: Any, config: str, tasks: Sequence[str], right: Callable[[str], bool], full: float = 0.5
) -> Path:
    """A run in which `rules` is right where `right` says so, and full_info on a share of the tasks."""
    for place, task in enumerate(tasks):
        for condition, correct in (("rules", right(task)), ("full_info", place < full * len(tasks))):
            decision = 0 if correct else 1
            run.episode(condition, task, decision, [decision, decision])
    directory: Path = run.write(config=config, status={"state": "finished"})
    return directory


def tasks(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{place:02}" for place in range(count)]


def table(directory: Path, name: str) -> Rows:
    return pd.read_csv(directory / "tables" / f"{name}.csv").to_dict("records")


def test_halves_that_differ_in_their_split_are_one_model(run_writer: WriterOf, tmp_path: Path) -> None:
    first = held(run_writer("first"), config_of("m"), tasks("a", 10), lambda t: t < "a06")
    second = held(run_writer("second"), config_of("m", swap=True), tasks("b", 20), lambda t: t < "b03")
    compare([first, second], tmp_path / "out")
    rules = [row for row in table(tmp_path / "out", "by_model") if row["condition"] == "rules"]
    (row,) = rules
    assert (row["model"], row["benchmark"], row["n_tasks"], row["runs"]) == (
        "m",
        "travel/easy",
        30,
        "first, second",
    )
    assert row["task_accuracy"] == pytest.approx(9 / 30)
    assert str(row["at_or_above_full_info"]) == "False"


def test_runs_of_the_same_episodes_are_never_pooled(run_writer: WriterOf, tmp_path: Path) -> None:
    runs = [
        held(run_writer(name), config_of("m"), tasks("a", 10), lambda t: True) for name in ("first", "again")
    ]
    compare(runs, tmp_path / "out")
    rules = [row for row in table(tmp_path / "out", "by_model") if row["condition"] == "rules"]
    assert [row["runs"] for row in rules] == ["first", "again"]


def test_models_that_reach_full_information_are_counted(run_writer: WriterOf, tmp_path: Path) -> None:
    """Three models on one benchmark, two of them at or above their own full_info; a fourth on another."""
    runs = [
        held(run_writer("low"), config_of("low"), tasks("a", 10), lambda t: t < "a02"),
        held(run_writer("equal"), config_of("equal"), tasks("a", 10), lambda t: t < "a05"),
        held(run_writer("high"), config_of("high"), tasks("a", 10), lambda t: True),
        held(run_writer("six"), config_of("low", n_agents=6), tasks("c", 10), lambda t: True),
    ]
    compare(runs, tmp_path / "out")
    rules = {r["benchmark"]: r for r in table(tmp_path / "out", "benchmarks") if r["condition"] == "rules"}
    assert (rules["travel/easy"]["models"], rules["travel/easy"]["models_at_or_above_full_info"]) == (3, 2)
    assert rules["travel/easy"]["task_accuracy"] == pytest.approx((0.2 + 0.5 + 1.0) / 3)
    assert rules["travel/easy"]["n_tasks"] == 10
    assert rules["travel/easy/6 agents"]["models"] == 1
    summary = {row["condition"]: row for row in table(tmp_path / "out", "summary")}
    assert summary["rules"]["models_at_or_above_full_info"] == 3


def test_the_same_tasks_are_paired(run_writer: WriterOf, tmp_path: Path) -> None:
    first = held(run_writer("first"), config_of("x"), tasks("a", 20), lambda t: t < "a08")
    second = held(run_writer("second"), config_of("y"), tasks("a", 20), lambda t: t < "a12")
    compare([first, second], tmp_path / "out")
    (row,) = [row for row in table(tmp_path / "out", "changes") if row["condition"] == "rules"]
    assert (row["run"], row["compared_with"], row["paired"]) == ("second", "first", True)
    assert (row["change"], row["unpaired"]) == (pytest.approx(0.2), 0)
    assert row["change_low"] > 0


def test_other_tasks_are_compared_as_independent(run_writer: WriterOf, tmp_path: Path) -> None:
    first = held(run_writer("first"), config_of("x"), tasks("a", 20), lambda t: t < "a08")
    second = held(run_writer("second"), config_of("x", level="hard"), tasks("b", 30), lambda t: t < "b21")
    compare([first, second], tmp_path / "out")
    (row,) = [row for row in table(tmp_path / "out", "changes") if row["condition"] == "rules"]
    oracle = stats.ttest_ind([1.0] * 21 + [0.0] * 9, [1.0] * 8 + [0.0] * 12, equal_var=False)
    interval = oracle.confidence_interval(0.95)
    assert row["paired"] is False
    assert row["change"] == pytest.approx(0.3)
    assert (row["change_low"], row["change_high"]) == pytest.approx((interval.low, interval.high))


def test_every_runs_own_tables_stand_below_each_other(run_writer: WriterOf, tmp_path: Path) -> None:
    runs = [held(run_writer(n), config_of(n), tasks("a", 4), lambda t: True) for n in ("p", "q")]
    compare(runs, tmp_path / "out")
    contrasts = table(tmp_path / "out", "all_contrasts")
    assert [(row["run"], row["contrast"], row["difference"]) for row in contrasts] == [
        ("p", "control", 0.5),
        ("q", "control", 0.5),
    ]
    assert all("only 4 tasks" in row["note"] for row in contrasts)


def test_a_study_whose_arm_cannot_be_read_says_which(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "config.yaml").write_text("arms: {lost: {}}\n")
    with pytest.raises(UserError, match="arms/lost: is not a directory"):
        report_arms(tmp_path / "study")


def test_tables_across_runs_are_made_again_from_records_alone(run_writer: WriterOf, tmp_path: Path) -> None:
    runs = [held(run_writer(n), config_of(n), tasks("a", 12), lambda t: t < "a07") for n in ("p", "q")]
    made = [compare(runs, tmp_path / name) for name in ("one", "two")]
    for name, path in made[0].tables.items():
        assert made[1].tables[name].read_bytes() == path.read_bytes()
    assert report_command([str(path) for path in runs] + ["--output", str(tmp_path / "three")]) == 0
    assert (tmp_path / "three" / "tables" / "by_model.csv").read_bytes() == made[0].tables[
        "by_model"
    ].read_bytes()
