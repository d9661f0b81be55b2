"""Ranks are exact, order statistics are sorted-and-indexed, bad scores name their episode."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.ranks import order_statistic, order_statistics, rank, ranks, smallest_n
from conformal.rounds import fit_rounds
from conformal.scores import fail_from

ALPHAS = ("0.01", "0.02", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3", "0.35", "0.4", "0.45")


@given(st.integers(0, 3000), st.sampled_from(ALPHAS))
def test_rank_is_the_least_rank_that_covers(n: int, alpha: str) -> None:
    k, level = rank(n, alpha), Fraction(alpha)
    assert Fraction(k, n + 1) >= 1 - level
    assert Fraction(k - 1, n + 1) < 1 - level


@given(st.integers(0, 2000), st.sampled_from(ALPHAS))
def test_rank_survives_float_noise(n: int, alpha: str) -> None:
    noisy = 1 - (1 - float(alpha))
    assert rank(n, noisy) == rank(n, float(alpha)) == rank(n, alpha) == int(ranks([n], alpha)[0])


def test_smallest_n_with_a_finite_threshold() -> None:
    assert [smallest_n(a) for a in ("0.2", "0.1", "0.05", "0.01")] == [4, 9, 19, 99]
    assert math.isinf(order_statistic(np.arange(8.0), 0.1))
    assert order_statistic(np.arange(9.0), 0.1) == 8.0


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, "x", float("nan"), 1e-9])
def test_alpha_outside_the_open_interval_is_refused(alpha: float | str) -> None:
    with pytest.raises(ValueError, match="alpha"):
        rank(10, alpha)


def test_bad_scores_name_their_episode() -> None:
    with pytest.raises(ValueError, match="index 2"):
        order_statistic([0.1, 0.2, np.nan], 0.1)
    with pytest.raises(ValueError, match=r"'task-7', round 2.*-0\.5"):
        order_statistics([[0.1, 0.2], [0.1, -0.5]], np.ones((2, 2), bool), 0.1, episodes=["task-6", "task-7"])
    with pytest.raises(ValueError, match="reached"):
        order_statistics([[0.1, 0.2]], np.ones((2, 2), bool), 0.1)


def test_unreached_entries_are_ignored_and_failed_ones_count() -> None:
    scores = np.array([[1.0, np.nan], [2.0, -3.0], *[[0.0, 0.5]] * 8])
    reached = np.ones_like(scores, dtype=bool)
    reached[:2, 1] = False
    found = order_statistics(scores, reached, 0.2)
    assert found.values.tolist() == [1.0, 0.5]
    assert found.n.tolist() == [10, 8]
    assert found.k.tolist() == [9, 8]
    failed, seen = fail_from(scores, reached, [2, 0, *[0] * 8])
    assert seen[:, 1].tolist() == [True, False, *[True] * 8]
    assert np.isinf(failed[0, 1])


@given(st.integers(1, 60), st.integers(1, 5), st.integers(0, 10_000), st.sampled_from(ALPHAS))
def test_columns_agree_with_sorting_each_by_itself(n: int, rounds: int, seed: int, alpha: str) -> None:
    rng = np.random.default_rng(seed)
    scores, reached = rng.random((n, rounds)).round(1), rng.random((n, rounds)) < 0.7
    found = order_statistics(scores, reached, alpha)
    for t in range(rounds):
        alone = sorted(scores[reached[:, t], t])
        k = rank(len(alone), alpha)
        assert found.values[t] == (alone[k - 1] if k <= len(alone) else np.inf)


def test_a_million_scores_in_ten_rounds_take_less_than_a_second() -> None:
    scores = np.random.default_rng(0).random((100_000, 10))
    start = time.perf_counter()
    fit_rounds(scores, scores < 0.9, 0.1)
    assert time.perf_counter() - start < 1
