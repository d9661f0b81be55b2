"""METHOD 8's coverage of nominal 95% intervals, with the mutant that ignores tasks, and the corrections."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sim.arrays import Floats, Ints
from sim.errors import UserError
from sim.studies.intervals import (
    FewTasks,
    bootstrap,
    clustered,
    compare,
    holm,
    pair,
    paired_difference,
    t_interval,
    t_test,
    task_means,
)

SEEDS, TRUTH, REPLICATES = 5, 0.8, 1500


def outcomes(tasks: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
    """Correct or not, of five seeds of each task; success probabilities ~ Beta(1.6, .4), as in METHOD 8."""
    chance = rng.beta(1.6, 0.4, tasks)
    correct = (rng.random((tasks, SEEDS)) < chance[:, None]).astype(np.float64)
    return correct.ravel(), np.repeat(np.arange(tasks), SEEDS)


@pytest.mark.parametrize(
    ("method", "tasks", "expected"),
    [
        ("percentile", 60, 0.931),
        ("t", 60, 0.934),
        ("percentile", 20, 0.927),
        ("t", 20, 0.932),
        ("t", 5, 0.87),
    ],
)
def test_coverage_is_the_methods(method: str, tasks: int, expected: float) -> None:
    rng = np.random.default_rng(81)
    hits = 0
    for _ in range(REPLICATES):
        means = task_means(*outcomes(tasks, rng))
        found = t_interval(means) if method == "t" else bootstrap(means, resamples=400)
        hits += found.low <= TRUTH <= found.high
    error = np.sqrt(expected * (1 - expected) * (1 / REPLICATES + 1 / 3000))
    assert abs(hits / REPLICATES - expected) < 3.3 * error


def test_ignoring_tasks_undercovers() -> None:
    """The mutant: every episode its own task. METHOD 8's naive interval covers .79."""
    rng = np.random.default_rng(82)
    hits = 0
    for _ in range(REPLICATES):
        correct, _ = outcomes(60, rng)
        found = t_interval(task_means(correct, np.arange(len(correct))))
        hits += found.low <= TRUTH <= found.high
    assert abs(hits / REPLICATES - 0.791) < 3.3 * np.sqrt(0.79 * 0.21 * (1 / REPLICATES + 1 / 3000))


def test_every_task_counts_once() -> None:
    found = clustered([1.0] * 30 + [0.0] * 9, [0] * 30 + list(range(1, 10)), method="t")
    assert found.estimate == pytest.approx(0.1)
    assert found.n_tasks == 10


@given(st.permutations(range(40)))
def test_order_of_episodes_does_not_matter(order: list[int]) -> None:
    value, task = outcomes(8, np.random.default_rng(3))
    np.testing.assert_allclose(task_means(value[order], task[order]), task_means(value, task))


def test_t_interval_is_scipys() -> None:
    means = np.random.default_rng(4).normal(0.1, 0.3, 25)
    found = t_interval(means, 0.9)
    expected = stats.ttest_1samp(means, 0.0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert t_test(means) == pytest.approx(stats.ttest_1samp(means, 0.0).pvalue)


def test_few_tasks_are_said_and_never_bootstrapped() -> None:
    value, task = outcomes(5, np.random.default_rng(5))
    with pytest.warns(FewTasks, match="5 tasks"):
        found = clustered(value, task)
    assert found.method == "t"
    assert "only 5 tasks" in found.note
    with pytest.raises(UserError, match="at least 10"):
        bootstrap(task_means(value, task))
    one = t_interval(np.array([0.5]))
    assert (one.low, one.high) == (-np.inf, np.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clustered(*outcomes(10, np.random.default_rng(6)))


def test_no_variation_is_said() -> None:
    found = clustered(np.ones(12), np.arange(12))
    assert (found.low, found.high) == (1.0, 1.0)
    assert "no variation" in found.note


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_bootstrap_is_seeded_and_near_t(method: Literal["percentile", "bca"]) -> None:
    means = np.random.default_rng(7).normal(0.0, 1.0, 200)
    first, again = bootstrap(means, method=method, seed=1), bootstrap(means, method=method, seed=1)
    assert first == again
    assert first != bootstrap(means, method=method, seed=2)
    near = t_interval(means)
    assert (first.low, first.high) == pytest.approx((near.low, near.high), abs=0.02)


def test_pairing_removes_what_conditions_share() -> None:
    rng = np.random.default_rng(8)
    task = np.repeat(np.arange(60), 3)
    base = np.repeat(rng.normal(0, 5, 60), 3)
    better = base + 0.2 + rng.normal(0, 0.05, 180)
    found = paired_difference(better, base, task)
    assert 0.18 < found.low < 0.2 < found.high < 0.22
    with pytest.raises(UserError, match="pair them first"):
        paired_difference(better, base[:-1], task)


def test_pair_refuses_an_unpaired_episode() -> None:
    first, second, task = pair({("b", 0): 1.0, ("a", 1): 2.0}, {("a", 1): 5.0, ("b", 0): 6.0})
    assert (first.tolist(), second.tolist(), task.tolist()) == ([2.0, 1.0], [5.0, 6.0], [0, 1])
    with pytest.raises(UserError, match=r"1 episodes stand in one condition only, first \('a', 2\)"):
        pair({("a", 1): 1.0, ("a", 2): 1.0}, {("a", 1): 1.0})


def test_holm_by_hand() -> None:
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.9, 0.8]), [1.0, 1.0])
    with pytest.raises(UserError, match=r"\[0, 1\]"):
        holm([1.2])


def test_holm_keeps_the_family_wise_error() -> None:
    """Twenty true hypotheses at a time: at most .05 of tables may reject anything; uncorrected .64 do."""
    p = np.random.default_rng(9).random((4000, 20))
    assert np.mean([holm(row).min() <= 0.05 for row in p]) < stats.binom.ppf(0.999, 4000, 0.05) / 4000
    assert np.mean(p.min(1) <= 0.05) > 0.6


def test_compare_corrects_over_the_table() -> None:
    rng = np.random.default_rng(10)
    task = np.repeat(np.arange(40), 2)
    base = rng.random(80)
    table = compare({"same": base, "better": base + 0.3 + rng.normal(0, 0.1, 80)}, base, task)
    assert table["same"].p_value == 1.0
    assert table["better"].difference.low > 0.2
    assert table["better"].p_holm == pytest.approx(min(1.0, 2 * table["better"].p_value))


@pytest.mark.parametrize(
    ("value", "task", "message"),
    [
        ([], [], "no values"),
        ([1.0, np.nan], [0, 1], "1 values are not finite"),
        ([1.0], [0, 1], "one task per"),
    ],
)
def test_bad_input_is_refused(value: list[float], task: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        clustered(value, task)
