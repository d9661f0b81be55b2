"""Can calibration and test scores have come from one law? Rank tests by round, and what n can show (METHOD
6).

A check, not a proof: passing it at small n means little, which is why the power statement stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy  # its parts load at first use, which keeps start-up short

from conformal.bands import lower_band
from conformal.ranks import Level, exact_level, rank
from conformal.scores import FloatArray, check_scores


@dataclass(frozen=True)
class RankCheck:
    """Calibration against test scores at one round: Mann-Whitney p-value and its Holm adjustment over rounds.

    shift: P(test score > calibration score) + half the ties, 0.5 under exchangeability. p-values are NaN
    where a side has no score.
    """

    round: int
    n_cal: int
    n_test: int
    shift: float
    p_value: float
    adjusted: float


def rank_checks(
    calibration: npt.ArrayLike, cal_reached: npt.ArrayLike, test: npt.ArrayLike, test_reached: npt.ArrayLike
) -> tuple[RankCheck, ...]:
    """Round-by-round rank tests of scores (n, T) and (m, T) run under the same policy and gate.

    Adjusted p-values control the chance of any false alarm over the rounds (Holm).
    """
    left, left_mask = check_scores(calibration, cal_reached)
    right, right_mask = check_scores(test, test_reached)
    if left.shape[1:] != right.shape[1:]:
        raise ValueError(f"rank_checks: {left.shape[1:]} rounds against {right.shape[1:]}; expected the same")
    pairs = [(left[left_mask[:, t], t], right[right_mask[:, t], t]) for t in range(left.shape[1])]
    found = [_mann_whitney(a, b) for a, b in pairs]
    adjusted = holm(np.array([p for _, p in found]))
    return tuple(
        RankCheck(t + 1, len(a), len(b), shift, p, float(adjusted[t]))
        for t, ((a, b), (shift, p)) in enumerate(zip(pairs, found, strict=True))
    )


def _mann_whitney(calibration: FloatArray, test: FloatArray) -> tuple[float, float]:
    if not len(calibration) or not len(test):
        return float("nan"), float("nan")
    if np.ptp(np.nan_to_num(np.concatenate([calibration, test]), posinf=-1.0)) == 0:
        return 0.5, 1.0
    found = scipy.stats.mannwhitneyu(test, calibration, alternative="two-sided")
    return float(found.statistic) / (len(calibration) * len(test)), float(found.pvalue)


def holm(p_values: FloatArray) -> FloatArray:
    """Holm-adjusted p-values; NaN entries are no tests and stay NaN."""
    adjusted = np.full(len(p_values), np.nan)
    tested = np.flatnonzero(~np.isnan(p_values))
    order = tested[np.argsort(p_values[tested], kind="stable")]
    steps = p_values[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted


@dataclass(frozen=True)
class Power:
    """The largest coverage that a test from below at `level` would expose with the given probability."""

    n_cal: int
    n_test: int
    expected: float
    detectable: float
    level: float
    probability: float

    @property
    def statement(self) -> str:
        """In words."""
        sizes = f"{self.n_cal} calibration and {self.n_test} test units"
        if np.isnan(self.detectable):
            return f"With {sizes} no fall in coverage can be shown at level {self.level:g}."
        return (
            f"With {sizes}, tested from below at level {self.level:g}, a fall in coverage from "
            f"{self.expected:.3f} to {self.detectable:.3f} is seen with probability {self.probability:g}; "
            "a smaller one is often missed."
        )


def power(n_cal: int, n_test: int, alpha: Level, level: float = 0.001, probability: float = 0.8) -> Power:
    """What one fold of n_cal and one test set of n_test can show, before looking at any of it.

    Under the alternative the count is beta-binomial with a lower mean and the same calibration noise.
    """
    exact_level(alpha)
    k = rank(n_cal, alpha)
    expected = min(1.0, k / (n_cal + 1))
    floor = lower_band(n_test, k, n_cal, 1 - level)
    if k > n_cal or floor == 0:
        return Power(n_cal, n_test, expected, float("nan"), level, probability)

    def missing(mean: float) -> float:
        return (
            float(scipy.stats.betabinom(n_test, mean * (n_cal + 1), (1 - mean) * (n_cal + 1)).cdf(floor - 1))
            - probability
        )

    if missing(1e-6) < 0:
        return Power(n_cal, n_test, expected, float("nan"), level, probability)
    detectable = float(scipy.optimize.brentq(missing, 1e-6, expected))
    return Power(n_cal, n_test, expected, detectable, level, probability)


def power_by_round(n_cal: Sequence[int], n_test: Sequence[int], alpha: Level) -> tuple[Power, ...]:
    """`power` for every round, from the numbers of scores at hand."""
    return tuple(power(a, b, alpha) for a, b in zip(n_cal, n_test, strict=True))
