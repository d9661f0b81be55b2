"""METHOD 6: the promise tested exactly, at fixed seeds and level 1e-3, and the mutants these tests reject."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import pytest
from scipy import stats

from conformal.bands import (
    beta_binomial_band,
    beta_binomial_p_value,
    hit_probability,
    lower_band,
    poisson_binomial,
    replicate_count,
)
from conformal.ranks import order_statistics, rank, ranks, select
from conformal.scores import BoolArray, FloatArray
from conformal.ties import tied_covered, tied_threshold

LEVEL = 1e-3
ALPHA = "0.1"

RankRule: TypeAlias = Callable[[int, str], int]


def rank_below(n: int, alpha: str) -> int:
    """Mutant: one rank too low."""
    return rank(n, alpha) - 1


def rank_above(n: int, alpha: str) -> int:
    """Mutant: one rank too high."""
    return rank(n, alpha) + 1


def rank_in_floats(n: int, alpha: str) -> int:
    """Mutant: the usual one-liner, in floats."""
    return math.ceil((1 - float(alpha)) * n + (1 - float(alpha)))


def rank_truncated(n: int, alpha: str) -> int:
    """Mutant: truncation instead of the ceiling."""
    return int((n + 1) * (1 - float(alpha))) + 1


def held_out_ranks_covered(n: int, alpha: str, rule: RankRule) -> int:
    """Scores 0..n, each held out in turn: how many fall at or below the k-th smallest of the others."""
    scores = np.arange(n + 1.0)
    k = rule(n, alpha)
    return sum(k > n or scores[i] <= np.sort(np.delete(scores, i))[k - 1] for i in range(n + 1))


@pytest.mark.parametrize(("n", "expected"), [(9, 9), (19, 18), (39, 36), (99, 90)])
def test_every_rank_held_out(n: int, expected: int) -> None:
    assert held_out_ranks_covered(n, ALPHA, rank) == expected


@pytest.mark.parametrize("mutant", [rank_below, rank_above, rank_in_floats, rank_truncated])
def test_rank_mutants_cover_another_number_of_held_out_ranks(mutant: RankRule) -> None:
    sizes = (39, 79, 89, 99)
    promised = [math.ceil((n + 1) * (1 - Fraction(ALPHA))) for n in sizes]
    assert [held_out_ranks_covered(n, ALPHA, rank) for n in sizes] == promised
    assert [held_out_ranks_covered(n, ALPHA, mutant) for n in sizes] != promised


def test_known_float_forms_are_wrong_where_the_method_says() -> None:
    levels = ("0.01", "0.02", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3", "0.35", "0.4", "0.45")
    pairs = [(n, a) for a in levels for n in range(1, 1001)]
    assert sum(rank_in_floats(n, a) != rank(n, a) for n, a in pairs) == 135
    assert sum(math.ceil((n + 1) * (1 - float(a))) != rank(n, a) for n, a in pairs) == 25
    assert all(math.ceil((n + 1) - (n + 1) * float(a)) == rank(n, a) for n, a in pairs)


def test_quantile_functions_miss_the_order_statistic() -> None:
    cases = [(n, a, rank(n, a)) for a in ("0.1", "0.2", "0.05") for n in range(20, 400)]
    higher = sum(float(np.quantile(np.arange(1.0, n + 1), k / n, method="higher")) != k for n, _, k in cases)
    naive = sum(float(np.quantile(np.arange(1.0, n + 1), 1 - float(a))) != k for n, a, k in cases)
    assert (len(cases), higher, naive) == (1140, 1121, 1140)


def binomial_p_value(n: int, rule: RankRule, seed: int, replicates: int = 2000) -> float:
    """R independent draws of a calibration set and one test point: hits are Bin(R, k / (n + 1))."""
    rng = np.random.default_rng(seed)
    scores = rng.exponential(size=(replicates, n + 1))
    k = np.full(replicates, rule(n, ALPHA))
    threshold = select(scores[:, :n], np.ones((replicates, n), bool), k, axis=1)
    hits = int((scores[:, n] <= threshold).sum())
    return poisson_binomial(hits, np.full(replicates, rank(n, ALPHA) / (n + 1))).p_value


@pytest.mark.parametrize("n", [9, 19, 39])
def test_independent_replicates_are_binomial(n: int) -> None:
    assert binomial_p_value(n, rank, seed=n) > LEVEL


def test_an_off_by_one_rank_is_not_binomial() -> None:
    assert binomial_p_value(19, rank_below, seed=19) < LEVEL
    assert binomial_p_value(19, rank_above, seed=19) < LEVEL


def reaching(seed: int, replicates: int = 2000, n: int = 40) -> tuple[FloatArray, BoolArray]:
    """Scores of n + 1 episodes whose chance of reaching falls with the score."""
    rng = np.random.default_rng(seed)
    scores = rng.gamma(2, 1, (replicates, n + 1))
    return scores, rng.random((replicates, n + 1)) < 1 / (1 + np.exp(scores - 2.5))


def reachers_p_value(calibrate_on_reachers: bool, seed: int = 5) -> float:
    """Poisson-binomial test of reaching test points, against thresholds of reachers or of everybody."""
    scores, reached = reaching(seed)
    mask = reached[:, :-1] if calibrate_on_reachers else np.ones_like(reached[:, :-1])
    found = order_statistics(scores[:, :-1], mask, ALPHA, axis=1)
    test = reached[:, -1]
    hits = int((scores[test, -1] <= found.values[test]).sum())
    n = reached[test, :-1].sum(1)
    return poisson_binomial(hits, hit_probability(ranks(n, ALPHA), n)).p_value


def test_reachers_calibrate_reachers() -> None:
    assert reachers_p_value(calibrate_on_reachers=True) > LEVEL


def test_calibrating_on_all_trajectories_is_rejected() -> None:
    assert reachers_p_value(calibrate_on_reachers=False) < LEVEL


def test_beta_binomial_figures() -> None:
    law = stats.betabinom(500, 90, 10)
    assert beta_binomial_band(500, 90, 99) == (383, 489)
    assert law.std() / 500 == pytest.approx(0.0327, abs=5e-5)
    low, high = (float(stats.binom.ppf(p, 500, 0.9)) for p in (0.025, 0.975))
    assert law.cdf(low - 1) + law.sf(high) == pytest.approx(0.395, abs=0.003)
    assert lower_band(500, 59, 64) / 500 == pytest.approx(0.756)


def replicate_p_value(shift: int, replicates: int, seed: int = 6) -> float:
    """Total hits of replicates of 500 test points against thresholds of rank k + shift among 99."""
    rng = np.random.default_rng(seed)
    k = rank(99, ALPHA)
    cut = np.sort(rng.random((replicates, 99)), axis=1)[:, k + shift - 1]
    hits = rng.binomial(500, cut)
    size = np.full(replicates, 500)
    return replicate_count(hits, size, np.full(replicates, k), np.full(replicates, 99)).p_value


def test_hits_of_many_points_against_one_threshold_are_beta_binomial() -> None:
    rng = np.random.default_rng(1)
    threshold = float(order_statistics(rng.exponential(size=99), None, ALPHA).values)
    hits = int((rng.exponential(size=500) <= threshold).sum())
    assert beta_binomial_p_value(hits, 500, 90, 99) > LEVEL
    assert replicate_p_value(0, 400) > LEVEL
    assert replicate_p_value(-1, 400) < LEVEL
    assert replicate_p_value(+1, 400) < LEVEL


def test_replicate_moments_are_those_of_the_law() -> None:
    found = replicate_count([10], [50], [18], [19])
    law = stats.betabinom(50, 18, 2)
    assert [found.mean, found.sd] == pytest.approx([law.mean(), law.std()])
    assert poisson_binomial(3, [1.0, 1.0, 1.0]).p_value == 1.0
    assert poisson_binomial(2, [1.0, 1.0, 1.0]).p_value == 0.0
    exact = poisson_binomial(2, [0.5, 0.5, 1.0], "below")
    assert [exact.mean, exact.p_value] == pytest.approx([2.0, 0.75])


def tied_hits(seed: int, randomised: bool, replicates: int = 6000, n: int = 39) -> int:
    """Covered single test points where a third of the scores are zero and the rest lie on a grid."""
    rng = np.random.default_rng(seed)
    shape = (replicates, n + 1)
    grid = np.ceil(rng.gamma(1.5, 0.08, shape) * 20) / 20
    scores, uniforms = np.where(rng.random(shape) < 0.35, 0.0, grid), rng.random(shape)
    if randomised:
        found = tied_threshold(scores[:, :n], uniforms[:, :n], ALPHA)
        return int(tied_covered(scores[:, n], uniforms[:, n], found).sum())
    plain = order_statistics(scores[:, :n], None, ALPHA, axis=1).values
    return int((scores[:, n] <= plain).sum())


def test_randomised_ties_are_exact_and_plain_ones_only_over_cover() -> None:
    p = np.full(6000, 36 / 40)
    assert poisson_binomial(tied_hits(3, randomised=True), p).p_value > LEVEL
    plain = tied_hits(3, randomised=False)
    assert poisson_binomial(plain, p, "below").p_value > LEVEL
    assert poisson_binomial(plain, p).p_value < LEVEL
    assert plain / 6000 == pytest.approx(0.924, abs=0.012)


def test_tied_threshold_of_too_few_scores_covers_everything() -> None:
    found = tied_threshold(np.zeros((2, 8)), np.full((2, 8), 0.5), ALPHA)
    assert tied_covered(np.array([9.0, np.inf]), np.array([1.0, 1.0]), found).all()
