"""Exact laws of coverage counts, and the tests and bands that follow from them (METHOD 6).

For continuous scores the hits of n_test points against one threshold of rank k among n_cal are beta-binomial:
BetaBin(n_test, k, n_cal + 1 - k). A plain binomial band would reject correct code far too often.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy  # its parts load at first use, which keeps start-up short

from conformal.scores import FloatArray, IntArray

Side: TypeAlias = Literal["two-sided", "below"]


class CoverageCount(NamedTuple):
    """Hits against their exact law: mean and standard deviation of the count, standardised count, p-value."""

    hits: int
    mean: float
    sd: float
    z: float
    p_value: float


def hit_probability(k: npt.ArrayLike, n_cal: npt.ArrayLike) -> FloatArray:
    """min(1, k / (n + 1)): the exact coverage of a threshold of rank k among n continuous scores."""
    rank, size = np.asarray(k, dtype=np.float64), np.asarray(n_cal, dtype=np.float64)
    return np.minimum(1.0, rank / (size + 1))


def beta_binomial_band(n_test: int, k: int, n_cal: int, level: float = 0.999) -> tuple[int, int]:
    """Central interval of the number of covered points, both ends included; everything where k > n_cal."""
    if k > n_cal:
        return n_test, n_test
    law = scipy.stats.betabinom(n_test, k, n_cal + 1 - k)
    return int(law.ppf((1 - level) / 2)), int(law.ppf(1 - (1 - level) / 2))


def lower_band(n_test: int, k: int, n_cal: int, level: float = 0.999) -> int:
    """Fewest covered points that a test from below at 1 - level does not reject."""
    return n_test if k > n_cal else int(scipy.stats.betabinom(n_test, k, n_cal + 1 - k).ppf(1 - level))


def beta_binomial_p_value(hits: int, n_test: int, k: int, n_cal: int, side: Side = "two-sided") -> float:
    """p-value of a count: the lower tail, or twice the smaller one. Two-sided needs randomised ties."""
    if k > n_cal:
        return float(hits == n_test)
    law = scipy.stats.betabinom(n_test, k, n_cal + 1 - k)
    return _p_value(float(law.cdf(hits)), float(law.sf(hits - 1)), side)


def poisson_binomial(hits: int, probabilities: npt.ArrayLike, side: Side = "two-sided") -> CoverageCount:
    """Hits of independent single test points with unequal chances, n_t having varied (METHOD 6).

    The p-value is exact; points with probability 1 (infinite thresholds) belong in the list.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    sure = int((p >= 1).sum())
    open_points = p[p < 1]
    mean, sd = float(p.sum()), float(np.sqrt((p * (1 - p)).sum()))
    if not len(open_points):
        return CoverageCount(hits, mean, sd, 0.0 if hits == sure else -np.inf, float(hits == sure))
    law = scipy.stats.poisson_binom(open_points)
    rest = hits - sure
    return CoverageCount(
        hits, mean, sd, (hits - mean) / sd, _p_value(float(law.cdf(rest)), float(law.sf(rest - 1)), side)
    )


def replicate_count(
    hits: npt.ArrayLike,
    n_test: npt.ArrayLike,
    k: npt.ArrayLike,
    n_cal: npt.ArrayLike,
    side: Side = "two-sided",
) -> CoverageCount:
    """Total hits of R independent replicates (arrays (R,)): exact mean and variance of the sum, normal
    p-value.
    """
    size = np.asarray(n_test, dtype=np.float64)
    mean, variance = beta_binomial_moments(size, np.asarray(k), np.asarray(n_cal))
    total, mu, sd = int(np.sum(hits)), float(mean.sum()), float(np.sqrt(variance.sum()))
    if sd == 0:
        return CoverageCount(total, mu, sd, 0.0 if total == mu else -np.inf, float(total == mu))
    z = (total - mu) / sd
    return CoverageCount(
        total, mu, sd, z, _p_value(float(scipy.stats.norm.cdf(z)), float(scipy.stats.norm.sf(z)), side)
    )


def beta_binomial_moments(n_test: FloatArray, k: IntArray, n_cal: IntArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of BetaBin(n_test, k, n_cal + 1 - k), elementwise; variance 0 where k > n_cal."""
    p = hit_probability(k, n_cal)
    size = np.asarray(n_cal, dtype=np.float64) + 1
    return n_test * p, n_test * p * (1 - p) * (size + n_test) / (size + 1)


def _p_value(lower: float, upper: float, side: Side) -> float:
    return lower if side == "below" else min(1.0, 2 * min(lower, upper))
