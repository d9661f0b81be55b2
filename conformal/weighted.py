"""Weighted conformal thresholds under covariate shift, with weights kept beside their scores (METHOD 5).

Valid iff the law of the score given the covariate is common to calibration and test and the likelihood ratio
is known; an estimated ratio adds an error of the order of its total-variation distance. For later rounds
prefer folds: a deterministic policy never visits replaced states, so no ratio exists there. Sums of weights
are exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from conformal.ranks import Level, exact_level
from conformal.scores import FloatArray, IntArray, check_scores, check_units


def effective_sample_size(weights: FloatArray) -> float:
    """(sum w)^2 / sum w^2: how many equally weighted scores these are worth; 0 if there are none."""
    total = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / total if total > 0 else 0.0


def threshold_from_integers(
    scores: FloatArray, weights: list[int], extra: list[int], alpha: Level
) -> FloatArray:
    """inf{q : sum_{S_i <= q} w_i >= (1 - alpha)(sum w + w_x)} for every w_x of `extra`, in exact integers."""
    level = 1 - exact_level(alpha)
    order = np.argsort(scores, kind="stable")
    sums = list(accumulate(weights[i] for i in order))
    total = sums[-1] if sums else 0
    needed = [-(-(total + w) * level.numerator // level.denominator) for w in extra]
    places = np.array([bisect_left(sums, need) for need in needed], dtype=np.int64)
    return np.append(scores[order], np.inf)[places]


def weighted_threshold(
    scores: npt.ArrayLike, weights: npt.ArrayLike, test_weights: npt.ArrayLike, alpha: Level
) -> FloatArray:
    """Thresholds (B,) for test points of weights (B,) from scores (n,) and their weights (n,); else +inf.

    Raises ValueError on unusable scores, on weights that do not pair with scores one to one, and on weights
    that are negative or not finite (test weights: not positive).
    """
    values, _ = check_scores(scores)
    w, x = np.asarray(weights, dtype=np.float64), np.atleast_1d(np.asarray(test_weights, dtype=np.float64))
    if w.shape != values.shape:
        raise ValueError(
            f"weights: shape {w.shape} for scores of shape {values.shape}; expected one per score"
        )
    _check_weights("weights", w, w >= 0)
    _check_weights("test_weights", x, x > 0)
    exact = _integers(np.concatenate([w, x]))
    return threshold_from_integers(values, exact[: len(w)], exact[len(w) :], alpha)


def _check_weights(name: str, weights: FloatArray, proper: npt.NDArray[np.bool_]) -> None:
    wrong = ~(proper & np.isfinite(weights))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueError(
            f"{name}: {weights[at]} at index {at}; expected finite likelihood ratios, not negative"
        )


def _integers(weights: FloatArray) -> list[int]:
    """Floats as integers on one common scale, exactly."""
    mantissa, exponent = np.frexp(weights)
    shift = (exponent - exponent.min()).tolist() if len(weights) else []
    return [int(m) << s for m, s in zip((mantissa * 2.0**53).astype(np.int64).tolist(), shift, strict=True)]


@dataclass(frozen=True, eq=False)
class WeightedThresholds:
    """Calibration scores and weights by round; a threshold exists only for a test point's weight.

    ess (T,): effective sample size by round, to be reported with every use.
    """

    alpha: float
    scores: tuple[FloatArray, ...]
    weights: tuple[FloatArray, ...]
    folds: Mapping[str, tuple[str, ...]]
    policy_hash: str = ""
    guarantee: str = field(init=False)
    assumptions: str = (
        "the law of a score given its covariate is common to calibration and test; weights are the true "
        "likelihood ratio (an estimated one adds an error of the order of its total variation)"
    )

    def __post_init__(self) -> None:
        promise = f"P(S_t <= q_t(x) | round t reached) >= {1 - self.alpha:g} under the test law of x"
        object.__setattr__(self, "guarantee", promise)

    @property
    def n(self) -> IntArray:
        """Scores by round (T,)."""
        return np.array([len(s) for s in self.scores], dtype=np.int64)

    @property
    def ess(self) -> FloatArray:
        """Effective sample size by round (T,)."""
        return np.array([effective_sample_size(w) for w in self.weights])

    def at(self, round: int, test_weights: npt.ArrayLike) -> FloatArray:  # noqa: A002
        """Thresholds (B,) at a round (1-based) for test points of the given weights (B,)."""
        if not 1 <= round <= len(self.scores):
            raise ValueError(f"weighted: round {round} was not calibrated; expected 1 to {len(self.scores)}")
        return weighted_threshold(self.scores[round - 1], self.weights[round - 1], test_weights, self.alpha)


def weighted(
    scores: npt.ArrayLike,
    reached: npt.ArrayLike,
    weights: npt.ArrayLike,
    alpha: Level,
    *,
    units: Sequence[str],
    policy_hash: str = "",
) -> WeightedThresholds:
    """Calibrate under covariate shift: scores, reached and weights (likelihood ratios) all (n, T)."""
    fold = check_units(units, np.shape(scores)[0], "calibration")
    values, mask = check_scores(scores, reached, episodes=fold)
    ratio = np.asarray(weights, dtype=np.float64)
    if ratio.shape != values.shape:
        raise ValueError(
            f"weights: shape {ratio.shape} for scores of shape {values.shape}; expected one per score"
        )
    _check_weights("weights", ratio[mask], ratio[mask] >= 0)
    columns = range(values.shape[1])
    return WeightedThresholds(
        alpha=float(exact_level(alpha)),
        scores=tuple(values[mask[:, t], t] for t in columns),
        weights=tuple(ratio[mask[:, t], t] for t in columns),
        folds={"calibration": fold},
        policy_hash=policy_hash,
    )
