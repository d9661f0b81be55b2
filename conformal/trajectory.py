"""Trajectory-level thresholds: one fold, one simultaneous statement, for when tasks are too few for folds
(METHOD 5).

First-replacement coupling makes a fold run *without* a gate enough: until the first score above its threshold
the gated run is the ungated one. Nothing is claimed round by round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from conformal.ranks import Level, OrderStatistics, exact_level, order_statistic, rank
from conformal.rounds import EXCHANGEABLE, fit_rounds
from conformal.scores import BoolArray, FloatArray, check_disjoint, check_scores, check_units
from conformal.thresholds import Thresholds

_COUPLED = EXCHANGEABLE + (
    " up to the gate, which may replace at will; the controller does not see the thresholds, and its "
    "state, stop rule and commit procedure are the same with and without the gate"
)


def scale(
    scores: npt.ArrayLike, reached: npt.ArrayLike, level: float = 0.8, floor: float = 1e-3
) -> FloatArray:
    """sigma_t (T,): a quantile of the training fold's scores by round, floored; 1 where no score is at hand.

    A scale, not a threshold: it needs only to be independent of the calibration fold. Failed (+inf) scores
    are left out of it.
    """
    values, mask = check_scores(scores, reached)
    present = mask & np.isfinite(values)
    sigma = np.ones(values.shape[1])
    for t in np.flatnonzero(present.any(0)):
        sigma[t] = max(float(np.quantile(values[present[:, t], t], level)), floor)
    return sigma


def max_scores(scores: FloatArray, reached: BoolArray, sigma: FloatArray) -> FloatArray:
    """M (n,): each trajectory's largest scaled score over the rounds it reached; 0 if it reached none."""
    return np.asarray((np.where(reached, scores, 0.0) / sigma).max(axis=1), dtype=np.float64)


def scaled_back(q: FloatArray | float, sigma: FloatArray) -> FloatArray:
    """q_t with S <= q_t iff S / sigma_t <= q, in floats: a score tied with q may not be lost to rounding."""
    largest = np.asarray(q, dtype=np.float64)
    bound = largest * sigma
    for _ in range(2):
        above = np.nextafter(bound, np.inf)
        bound = np.where(above / sigma <= largest, above, bound)
    return bound


def check_sigma(sigma: npt.ArrayLike | None, rounds: int) -> FloatArray:
    """sigma (T,), ones by default; ValueError unless there is one positive finite number per round."""
    width = np.ones(rounds) if sigma is None else np.asarray(sigma, dtype=np.float64)
    if width.shape != (rounds,) or not (np.isfinite(width) & (width > 0)).all():
        raise ValueError(f"sigma: {width.tolist()}; expected {rounds} positive finite numbers, one per round")
    return width


def trajectory(
    scores: npt.ArrayLike,
    reached: npt.ArrayLike,
    alpha: Level,
    *,
    units: Sequence[str],
    sigma: npt.ArrayLike | None = None,
    scale_units: Sequence[str] = (),
    policy_hash: str = "",
    policy: Mapping[str, str] | None = None,
) -> Thresholds:
    """q_t = q * sigma_t with q the conformal order statistic of the trajectories' largest scaled scores.

    `sigma` (T,) comes from other units (`scale_units`), 1 by default. Scores are from a run without a gate.
    """
    fold = check_units(units, np.shape(scores)[0], "calibration")
    values, mask = check_scores(scores, reached, episodes=fold)
    width = check_sigma(sigma, values.shape[1])
    n = len(fold)
    q = order_statistic(max_scores(values, mask, width), alpha)
    found = OrderStatistics(
        scaled_back(q, width), np.full(len(width), n), np.full(len(width), rank(n, alpha))
    )
    folds = {"calibration": fold} | ({"scale": tuple(scale_units)} if len(scale_units) else {})
    check_disjoint(folds)
    return _simultaneous("trajectory", alpha, found, folds, (policy_hash, policy or {}))


def trajectory_bonferroni(
    scores: npt.ArrayLike,
    reached: npt.ArrayLike,
    alpha: Level,
    *,
    units: Sequence[str],
    policy_hash: str = "",
    policy: Mapping[str, str] | None = None,
) -> Thresholds:
    """The Bonferroni form: round t at level alpha / T, looser, infinite below T / alpha - 1 scores."""
    fold = check_units(units, np.shape(scores)[0], "calibration")
    share = exact_level(alpha) / np.shape(scores)[1]
    found = fit_rounds(scores, reached, share, units=fold)
    return _simultaneous("bonferroni", alpha, found, {"calibration": fold}, (policy_hash, policy or {}))


def _simultaneous(
    mode: str,
    alpha: Level,
    found: OrderStatistics,
    folds: Mapping[str, tuple[str, ...]],
    policy: tuple[str, Mapping[str, str]],
) -> Thresholds:
    level = float(1 - exact_level(alpha))
    return Thresholds(
        mode=mode,
        alpha=float(exact_level(alpha)),
        values=found.values,
        acceptance=found.values,
        n=found.n,
        k=found.k,
        certified=np.isfinite(found.values),
        guarantee=f"P(S_t <= q_t at all rounds t reached: no proposal refused) >= {level:g} over whole "
        "episodes; nothing is claimed for a round by itself",
        assumptions=_COUPLED,
        folds=folds,
        policy_hash=policy[0],
        policy=policy[1],
    )
