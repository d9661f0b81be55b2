"""Branch data sets: records to arrays, on disk as in memory, statistics, labels, and the split by family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.dataset import (
    BranchDataset,
    from_rows,
    in_order,
    of_tasks,
    open_dataset,
    split_families,
    statistics,
    subset,
)
from controllers.labels import episode_labels, final_objectives, mistakes, tree_labels, with_horizon
from sim.discussion.inputs import STATE_NAMES
from sim.errors import UserError
from sim.records.rows import DecisionRow, EpisodeRow

SPOKEN = ("challenge@0", "clarify@1", "seek_evidence@2", "route@2")


def decision(
    task: str = "t0",
    seed: int = 0,
    round_number: int = 1,
    path: str = "",
    objectives: tuple[float | None, ...] = (0.5, 0.4, 0.3, 0.2),
    candidates: tuple[str, ...] = SPOKEN,
    executed: int = 0,
    state: float = 0.0,
) -> DecisionRow:
    return DecisionRow(
        stage="explore",
        condition="explore",
        task=task,
        seed=seed,
        round=round_number,
        path=path,
        candidates=list(candidates),
        objective=0.6,
        objectives=list(objectives),
        regrets=[None] * len(objectives),
        proposal=executed,
        malformed=False,
        executed=executed,
        replaced=False,
        threshold=None,
        certified=False,
        admissible_set=[True] * len(objectives),
        state=[state] * len(STATE_NAMES),
    )


def episode(task: str, seed: int, decided: int, final: float | None, error: str = "") -> EpisodeRow:
    return EpisodeRow(
        "explore", "explore", task, f"family-{task}", seed, 4, 3, 1, decided, [decided] * 4, 8, 8, 8.0, "",
        "horizon", final, 0, 32, error,
    )  # fmt: skip


def many(count: int) -> list[DecisionRow]:
    rng = np.random.default_rng(0)
    return [
        decision(
            task=f"t{i % 7}",
            seed=i // 7,
            objectives=tuple(rng.random(4).tolist()),
            executed=int(rng.integers(4)),
            state=float(rng.random()),
        )
        for i in range(count)
    ]


FAMILIES = {f"t{i}": f"f{i // 2}" for i in range(7)}


def test_records_become_arrays() -> None:
    with_vote = decision(
        "t1", 3, 2, candidates=(*SPOKEN, "vote"), objectives=(0.1, None, 0.3, 0.4, 0.5), executed=4
    )
    data = from_rows([decision(), with_vote], FAMILIES)
    assert data.actions == ("challenge", "clarify", "seek_evidence", "route", "vote")
    assert data.mask.tolist() == [[True] * 4 + [False], [True, False, True, True, True]]
    np.testing.assert_allclose(data.objectives[1], [0.1, np.nan, 0.3, 0.4, 0.5], rtol=1e-6)
    assert data.tasks == ("t0", "t1")
    assert data.families == ("f0", "f0")
    assert (data.seed.tolist(), data.round.tolist(), data.executed.tolist()) == ([0, 3], [1, 2], [0, 4])
    np.testing.assert_allclose(data.objective, 0.6)


def test_candidates_may_stand_in_any_order() -> None:
    turned = decision(candidates=SPOKEN[::-1], objectives=(0.2, 0.3, 0.4, 0.5), executed=3)
    data, plain = from_rows([turned], FAMILIES), from_rows([decision()], FAMILIES)
    np.testing.assert_array_equal(data.objectives, plain.objectives)
    assert data.executed.tolist() == plain.executed.tolist() == [0]


def test_on_disk_it_is_the_same_and_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controllers.dataset._CHUNK", 10)
    rows = many(57)
    memory = from_rows(rows, FAMILIES)
    written = from_rows(iter(rows), FAMILIES, folder=tmp_path / "data")
    assert isinstance(written.x, np.memmap)
    for data in (written, open_dataset(tmp_path / "data")):
        assert (data.actions, data.tasks, data.families) == (memory.actions, memory.tasks, memory.families)
        for name in ("x", "mask", "objective", "objectives", "task", "seed", "round", "executed"):
            expected = getattr(memory, name)
            assert getattr(data, name).dtype == expected.dtype
            np.testing.assert_array_equal(getattr(data, name), expected)


def test_a_folder_half_written_is_no_data_set(tmp_path: Path) -> None:
    from_rows(many(5), FAMILIES, folder=tmp_path)
    with pytest.raises(UserError, match="none of"):
        from_rows([*many(5), decision(candidates=("shout", *SPOKEN[1:]))], FAMILIES, folder=tmp_path)
    with pytest.raises(UserError, match="not a branch data set"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (decision(task="new"), "task 'new' has no family"),
        (decision(candidates=("free@0", *SPOKEN[1:])), "seed 0, round 1: candidate 'free@0' is none of"),
        (decision(candidates=("route@0", *SPOKEN[1:])), "repeat an intervention"),
    ],
)
def test_bad_records_are_named(row: DecisionRow, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_rows([row], FAMILIES)


def test_shapes_are_checked() -> None:
    data = from_rows(many(4), FAMILIES)
    with pytest.raises(UserError, match=r"rollout has shape \(3, 5\)"):
        data.with_label("rollout", np.zeros((3, 5)))
    with pytest.raises(UserError, match="horizon is 'rollout'; this data set has one_step"):
        data.costs("rollout")
    assert data.with_label("rollout", np.zeros((4, 5))).costs("rollout").shape == (4, 5)


def test_statistics_by_hand() -> None:
    rows = [decision(), decision("t2", 1, 2, objectives=(0.1, None, 0.3, 0.2))]
    found = statistics(from_rows(rows, FAMILIES))
    assert (found.decisions, found.branches, found.tasks, found.families, found.seeds) == (2, 7, 2, 2, 2)
    assert found.decisions_by_round == {"1": 1, "2": 1}
    assert found.best_share == {"challenge": 0.5, "clarify": 0, "seek_evidence": 0, "route": 0.5, "vote": 0}
    assert found.mean_objective == pytest.approx(
        {"challenge": 0.3, "clarify": 0.4, "seek_evidence": 0.3, "route": 0.2}
    )
    assert found.uniform_regret == pytest.approx((0.15 + 0.1) / 2)
    with pytest.raises(UserError, match="no decision"):
        statistics(from_rows([], FAMILIES))


@given(st.lists(st.integers(0, 9), min_size=10, max_size=10), st.floats(0.05, 0.95), st.integers(0, 99))
def test_a_split_never_divides_a_family(family_of: list[int], share: float, seed: int) -> None:
    families = {f"t{i}": f"f{family}" for i, family in enumerate(family_of)}
    data = from_rows([decision(task=f"t{i}", seed=s) for i in range(10) for s in range(3)], families)
    if len(set(family_of)) < 2:
        with pytest.raises(UserError, match="at least two"):
            split_families(data, share, seed)
        return
    train, held = split_families(data, share, seed)
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(30))
    of_row = np.array(family_of)[data.task]
    assert not set(of_row[train].tolist()) & set(of_row[held].tolist())
    assert len(train) > 0
    assert len(held) > 0
    count = len(set(family_of))
    assert len(set(of_row[held].tolist())) == min(max(1, round(share * count)), count - 1)


def test_the_split_does_not_depend_on_the_order_of_records() -> None:
    rows = many(70)
    held = []
    for order in (rows, rows[::-1]):
        data = from_rows(order, FAMILIES)
        held.append({data.tasks[t] for t in data.task[split_families(data, 0.3, 4)[1]].tolist()})
    assert held[0] == held[1]


def test_subsets() -> None:
    data = from_rows(many(21), FAMILIES).with_label("rollout", np.arange(105.0).reshape(21, 5))
    some = of_tasks(data, ["t1", "t3"])
    assert {data.tasks[task] for task in some.task.tolist()} == {"t1", "t3"}
    np.testing.assert_array_equal(some.labels["rollout"], data.labels["rollout"][np.isin(data.task, [1, 3])])
    assert subset(data, np.array([2, 0])).seed.tolist() == [0, 0]
    with pytest.raises(UserError, match="no task 'x'"):
        of_tasks(data, ["x"])


def test_episode_labels_stand_at_the_committed_branch_only() -> None:
    data = from_rows([decision(executed=2), decision("t1", executed=1), decision("t2")], FAMILIES)
    ends = [episode("t0", 0, 1, 0.25), episode("t1", 0, 2, 0.75), episode("t2", 0, -1, None, "gave up")]
    found = episode_labels(data, final_objectives(ends))
    expected = np.full((3, 5), np.nan)
    expected[0, 2], expected[1, 1] = 0.25, 0.75
    np.testing.assert_allclose(found, expected)
    wrong = episode_labels(data, mistakes(ends))
    assert (wrong[0, 2], wrong[1, 1]) == (0.0, 1.0)
    assert np.isnan(wrong[2]).all()
    np.testing.assert_array_equal(with_horizon(data, "rollout", ends).costs("rollout"), found)
    np.testing.assert_array_equal(with_horizon(data, "task_accuracy", ends).costs("task_accuracy"), wrong)
    assert with_horizon(data, "one_step", ends) is data


def test_tree_labels_average_what_follows() -> None:
    """Two rounds, two interventions: a branch costs the mean of its own two, a leaf what the leaf costs."""
    pair = ("seek_evidence@0", "route@1")
    rows = [
        decision(path="", candidates=pair, objectives=(0.9, 0.8), executed=0),
        decision(path="seek_evidence@0", round_number=2, candidates=pair, objectives=(0.1, 0.3)),
        decision(path="route@1", round_number=2, candidates=pair, objectives=(0.6, 0.4)),
    ]
    actions = ("seek_evidence", "route")
    np.testing.assert_allclose(tree_labels(rows, actions), [[0.2, 0.5], [0.1, 0.3], [0.6, 0.4]], rtol=1e-6)
    leaves = {("t0", 0, "route@1/route@1"): 1.0}
    np.testing.assert_allclose(tree_labels(rows, actions, leaves)[0], [0.2, 0.8], rtol=1e-6)


@given(order=st.permutations(range(8)), again=st.sets(st.integers(0, 7)))
def test_order_and_repetition_of_records_change_nothing(order: list[int], again: set[int]) -> None:
    """Rows in any order, some of a crashed attempt before them: the data set is that of the rows in order."""
    rows = [
        decision(
            task=f"t{i // 4}", seed=i // 2 % 2, round_number=i % 2 + 1, objectives=(0.1 * i, 0.5, 0.6, 0.7)
        )
        for i in range(8)
    ]
    crashed = [
        decision(task=f"t{i // 4}", seed=i // 2 % 2, round_number=i % 2 + 1, objectives=(9.0, 9.0, 9.0, 9.0))
        for i in again
    ]
    families = {"t0": "x", "t1": "y"}
    whole = from_rows(rows, families)
    found = in_order(from_rows([*crashed, *(rows[i] for i in order)], families))
    assert (found.tasks, found.families) == (whole.tasks, whole.families)
    for name in ("x", "mask", "objective", "objectives", "task", "seed", "round", "executed"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))


def test_it_holds_no_answer() -> None:
    assert set(BranchDataset.__dataclass_fields__) == {
        "actions", "tasks", "families", "x", "mask", "objective", "objectives", "task", "seed", "round",
        "executed", "labels",
    }  # fmt: skip


@pytest.mark.slow
def test_a_million_branches_train_within_memory(tmp_path: Path) -> None:
    """A quarter of a million decisions, streamed to disk: resident memory grows by less than 250 MB (in
    memory, the records alone take more), and an epoch takes seconds."""
    import resource
    import time

    from controllers.card import Training
    from controllers.training import train

    def stream() -> Iterator[DecisionRow]:
        rng = np.random.default_rng(0)
        for i in range(250_000):
            costs = tuple(rng.random(4).tolist())
            yield decision(task=f"t{i % 500}", seed=i // 500, objectives=costs, state=costs[0])

    families = {f"t{i}": f"t{i}" for i in range(500)}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = from_rows(stream(), families, folder=tmp_path / "data")
    start = time.perf_counter()
    train(data, Training(epochs=1))
    assert time.perf_counter() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250_000
