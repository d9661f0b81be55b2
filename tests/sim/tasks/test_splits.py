"""Splits: no family is divided, parts are disjoint, and nothing depends on the order of the tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import UserError
from sim.tasks import (
    HiddenProfileTask,
    check_disjoint,
    demo_task,
    folds,
    halves,
    one_per_family,
    split_by_family,
)

Tasks = tuple[HiddenProfileTask, ...]
Split = Callable[[Sequence[HiddenProfileTask], Mapping[str, float | int], int], dict[str, Tasks]]


def make(families: Sequence[int]) -> Tasks:
    """One task per entry, of the family with that number."""
    return tuple(
        msgspec.structs.replace(demo_task(), id=f"t{place}", family=f"f{family}")
        for place, family in enumerate(families)
    )


many_families = (
    st.lists(st.integers(0, 30), min_size=12, max_size=60).filter(lambda f: len(set(f)) >= 8).map(make)
)
seeds = st.integers(0, 2**32)


def divided_families(parts: Mapping[str, Tasks] | Sequence[Tasks]) -> set[str]:
    """Families with tasks in more than one part."""
    members = parts.values() if isinstance(parts, Mapping) else parts
    seen: list[set[str]] = [{task.family for task in part} for part in members]
    return {family for family in set().union(*seen) if sum(family in part for part in seen) > 1}


@given(many_families, seeds)
def test_fractions_that_add_up_to_one_use_every_task_once(tasks: Tasks, seed: int) -> None:
    parts = split_by_family(tasks, {"train": 0.4, "calibration": 0.35, "test": 0.25}, seed)
    assert divided_families(parts) == set()
    assert sorted(task.id for part in parts.values() for task in part) == sorted(task.id for task in tasks)
    n_families = len({task.family for task in tasks})
    for name, share in (("train", 0.4), ("calibration", 0.35), ("test", 0.25)):
        size = len({task.family for task in parts[name]})
        assert abs(size - share * n_families) < 1


@given(many_families, seeds, st.randoms(use_true_random=False))
def test_order_of_tasks_changes_nothing(tasks: Tasks, seed: int, random: object) -> None:
    shuffled = list(tasks)
    getattr(random, "shuffle")(shuffled)  # noqa: B009 - hypothesis gives an untyped random.Random
    shares = {"a": 3, "b": 0.5, "c": 0.5}
    straight, turned = split_by_family(tasks, shares, seed), split_by_family(shuffled, shares, seed)
    place = {task.id: i for i, task in enumerate(tasks)}
    for name, part in straight.items():
        assert {task.id for task in part} == {task.id for task in turned[name]}
        assert [place[task.id] for task in part] == sorted(place[task.id] for task in part)


@given(many_families, seeds)
def test_whole_numbers_count_families(tasks: Tasks, seed: int) -> None:
    parts = split_by_family(tasks, {"train": 5, "test": 1.0}, seed)
    assert len({task.family for task in parts["train"]}) == 5
    assert len(parts["train"]) + len(parts["test"]) == len(tasks)
    part = split_by_family(tasks, {"train": 5}, seed)
    assert part == {"train": parts["train"]}


@given(many_families, seeds, st.integers(1, 8))
def test_folds_are_disjoint_complete_and_even(tasks: Tasks, seed: int, k: int) -> None:
    parts = folds(tasks, k, seed)
    assert divided_families(parts) == set()
    assert sum(map(len, parts)) == len(tasks)
    sizes = [len({task.family for task in part}) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert halves(tasks, seed) == folds(tasks, 2, seed)


@given(many_families, seeds)
def test_one_per_family_takes_each_family_once(tasks: Tasks, seed: int) -> None:
    chosen = one_per_family(tasks, seed)
    assert [task.family for task in chosen] == list(dict.fromkeys(task.family for task in chosen))
    assert {task.family for task in chosen} == {task.family for task in tasks}
    assert set(one_per_family(tuple(reversed(tasks)), seed)) == set(chosen)
    assert one_per_family(chosen, seed + 1) == chosen


def test_one_per_family_does_not_always_take_the_first() -> None:
    tasks = make([0, 0, 0, 0])
    taken = {one_per_family(tasks, seed)[0].id for seed in range(50)}
    assert taken == {"t0", "t1", "t2", "t3"}
    assert one_per_family((), 0) == ()


def test_seeds_differ_and_every_family_gets_everywhere() -> None:
    tasks = make(range(10))
    parts = [split_by_family(tasks, {"train": 0.5, "test": 0.5}, seed)["train"] for seed in range(400)]
    share = np.array([sum(task in part for part in parts) for task in tasks]) / len(parts)
    assert np.abs(share - 0.5).max() < 4 * 0.5 / np.sqrt(400)


def by_task(
    tasks: Sequence[HiddenProfileTask], shares: Mapping[str, float | int], seed: int
) -> dict[str, Tasks]:
    """A broken split: it deals out tasks and forgets their families."""
    order = np.random.default_rng(seed).permutation(len(tasks))
    ends = np.cumsum([round(share * len(tasks)) for share in shares.values()])
    groups = np.split(order, ends[:-1])
    return {name: tuple(tasks[i] for i in group) for name, group in zip(shares, groups, strict=True)}


@pytest.mark.parametrize(("split", "sound"), [(split_by_family, True), (by_task, False)])
def test_a_split_by_task_is_caught(split: Split, sound: bool) -> None:
    tasks = make([place // 3 for place in range(60)])
    parts = split(tasks, {"train": 0.5, "test": 0.5}, 0)
    assert (divided_families(parts) == set()) is sound
    if sound:
        check_disjoint(parts)
    else:
        with pytest.raises(UserError, match=r"split 'test': task 't\d+' is of family 'f\d+'.*'train'"):
            check_disjoint(parts)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"train": 0.95, "test": 0.05}, ["'test'", "0.05", "0 tasks"]),
        ({"train": 3, "test": 1.0}, ["'test'", "0 families", "larger share", "a text in common"]),
        ({"train": 2, "test": 2}, ["4 families", "3 are there", "more tasks"]),
        ({"train": 0.7, "test": 0.5}, ["1.2", "at most 1"]),
        ({"train": 0}, ["'train'", "0;"]),
        ({"train": -0.5}, ["'train'", "-0.5"]),
        ({"train": 1.5}, ["'train'", "1.5"]),
        ({"train": float("nan")}, ["'train'", "nan"]),
        ({"train": True}, ["'train'", "True"]),
        ({}, ["none is named"]),
    ],
)
def test_bad_shares_are_one_line(shares: dict[str, float], said: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        split_by_family(make([0, 1, 2, 2]), shares, 0)
    message = str(caught.value)
    assert "\n" not in message
    for word in said:
        assert word in message


def test_no_tasks_make_no_split() -> None:
    with pytest.raises(UserError, match=r"'train'.*0 tasks"):
        split_by_family((), {"train": 0.5}, 0)
    for k in (0, 3):
        with pytest.raises(UserError, match=f"{k} folds of 2 families"):
            folds(make([0, 1, 1]), k, 0)


def test_rounding_is_by_largest_remainder() -> None:
    parts = split_by_family(make(range(10)), {"a": 0.25, "b": 0.25, "c": 0.5}, 1)
    assert [len(part) for part in parts.values()] == [3, 2, 5]
    thirds = split_by_family(make(range(9)), {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, 1)
    assert [len(part) for part in thirds.values()] == [3, 3, 3]
    tenths = split_by_family(make(range(10)), dict.fromkeys("abcdefghij", 0.1), 1)
    assert all(len(part) == 1 for part in tenths.values())
