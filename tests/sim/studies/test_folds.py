"""Folds of a study: disjoint by family whatever the tasks, one calibration discussion per family, and mutants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.rules import Rules
from sim.config import StudyConfig, parse
from sim.errors import UserError
from sim.records.rows import EpisodeRow
from sim.records.store import read_rows
from sim.studies import study
from sim.studies.calibration import calibration_work
from sim.studies.conditions import controlled
from sim.studies.stages import read_thresholds
from sim.studies.verbs import run_stages
from sim.tasks import (
    HiddenProfileTask,
    check_disjoint,
    generate_method,
    generate_travel,
    split_by_family,
    write_tasks,
)

Config = Callable[..., dict[str, Any]]
Tasks = tuple[HiddenProfileTask, ...]
Split = Callable[[Sequence[HiddenProfileTask], Mapping[str, float | int], int], dict[str, Tasks]]


def in_families(sizes: Sequence[int]) -> Tasks:
    """Tasks of families of these sizes, interleaved."""
    owner = [f"family-{number}" for number, size in enumerate(sizes) for _ in range(size)]
    tasks = generate_method(len(owner), seed=3)
    order = sorted(range(len(owner)), key=lambda place: tasks[place].id[::-1])
    return tuple(msgspec.structs.replace(tasks[place], family=owner[place]) for place in order)


def study_of(config: Config, tmp_path: Path, *overrides: str) -> StudyConfig:
    """A parsed configuration."""
    return parse(config(tmp_path, *overrides))


@pytest.fixture(name="small", scope="module")
def _small(config: Config, tmp_path_factory: pytest.TempPathFactory) -> StudyConfig:
    shares = ("split.train=2", "split.pilot=1", "split.calibration=2", "split.test=3")
    return study_of(config, tmp_path_factory.getbasetemp(), *shares)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 5), min_size=8, max_size=16), st.integers(0, 1000))
def test_no_family_is_ever_divided(small: StudyConfig, sizes: list[int], seed: int) -> None:
    split = msgspec.structs.replace(small.split, seed=seed)
    assert divided(in_families(sizes), msgspec.structs.replace(small, split=split)) == set()


def divided(tasks: Tasks, parsed: StudyConfig) -> set[str]:
    """Families that stand in two folds, or whose tasks a fold holds only some of. The check the mutants fail."""
    folds = study.make_folds(tasks, parsed)
    size = {family: sum(task.family == family for task in tasks) for family in {t.family for t in tasks}}
    broken: set[str] = set()
    for name, part in folds.items():
        for family in {task.family for task in part}:
            others = [other for other in folds if other != name]
            if any(task.family == family for other in others for task in folds[other]):
                broken.add(family)
            if sum(task.family == family for task in part) != size[family]:
                broken.add(family)
    return broken


def _by_task(
    tasks: Sequence[HiddenProfileTask], shares: Mapping[str, float | int], seed: int
) -> dict[str, Tasks]:
    """Mutant: the split deals out tasks, not families."""
    parts: dict[str, Tasks] = {}
    start = 0
    for name, share in shares.items():
        parts[name] = tuple(tasks[start : start + int(share)])
        start += int(share)
    return parts


def _with_one_leak(
    tasks: Sequence[HiddenProfileTask], shares: Mapping[str, float | int], seed: int
) -> dict[str, Tasks]:
    """Mutant: right but for a single task, which moves to the next fold."""
    parts = split_by_family(tasks, shares, seed)
    first, second = list(parts)[:2]
    largest = max(parts[first], key=lambda task: sum(t.family == task.family for t in tasks))
    kept = tuple(task for task in parts[first] if task != largest)
    return {**parts, first: kept, second: (*parts[second], largest)}


@pytest.mark.parametrize("mutant", [_by_task, _with_one_leak])
def test_a_split_that_divides_a_family_is_caught(
    mutant: Split, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = in_families([3] * 14)
    parsed = study_of(
        config, tmp_path, "split.train=4", "split.pilot=3", "split.calibration=3", "split.test=4"
    )
    assert divided(tasks, parsed) == set()
    monkeypatch.setattr(study, "split_by_family", mutant)
    assert divided(tasks, parsed)
    with pytest.raises(UserError, match="keep a family in one split"):
        check_disjoint(study.make_folds(tasks, parsed))


def test_a_leak_between_calibration_and_test_is_refused_by_the_study_itself(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaking(
        tasks: Sequence[HiddenProfileTask], shares: Mapping[str, float | int], seed: int
    ) -> dict[str, Tasks]:
        parts = split_by_family(tasks, shares, seed)
        return {**parts, "test": (*parts["test"], parts["calibration"][0])}

    monkeypatch.setattr(study, "split_by_family", leaking)
    data = config(tmp_path, "task.count=30", "split.train=0", "split.pilot=9", "split.calibration=9",
                  "split.test=9", "conditions=[rules]", "certified=[rules]")  # fmt: skip
    with pytest.raises(UserError, match=r"rules: 1 test units were in fold 'certification'"):
        run_stages(data, {}, ("calibrate", "evaluate"))


def test_calibration_holds_one_discussion_per_family_and_evaluation_all_of_them(
    config: Config, tmp_path: Path
) -> None:
    tasks = generate_travel("easy", 60, seed=6)
    triples = [
        msgspec.structs.replace(task, family=f"triple-{place // 3}") for place, task in enumerate(tasks)
    ]
    write_tasks(tmp_path / "tasks.json", triples)
    data = config(
        tmp_path / "runs", "task=file", f"task.path={tmp_path / 'tasks.json'}", "conditions=[rules]",
        "certified=[rules]", "split.train=0", "split.pilot=6", "split.calibration=8", "split.test=6",
        "test_seeds=[0,1]",
    )  # fmt: skip
    run = run_stages(data, {}, ("calibrate", "evaluate"))
    rows = read_rows(run, EpisodeRow)
    for stage, families in (("pilot", 6), ("calibrate", 8)):
        held = [row for row in rows if row.stage == stage]
        assert len(held) == len({row.family for row in held}) == families
        assert {row.seed for row in held} == {0}
    tested = [row for row in rows if row.stage == "evaluate" and row.condition == "rules+gate"]
    assert len(tested) == 6 * 3 * 2
    found = read_thresholds(run)["rules"]
    assert len(found.folds["certification"]) == 8


def test_the_unit_of_calibration_is_the_family(finished: Path, config: Config) -> None:
    parsed = study_of(config, finished.parent)
    tasks = in_families([4, 1, 3])
    policy = controlled(parsed, "rules", Rules())

    class _Study:
        config = parsed

    work = calibration_work(_Study(), "calibrate", policy, None, tasks)  # type: ignore[arg-type]
    assert sorted(task.family for task in work.tasks) == ["family-0", "family-1", "family-2"]
    assert work.seeds == (0,)
