"""Conformal risk control of the expected executed regret, with the argmin as fallback (METHOD 5).

Accepting up to lambda costs S * 1{S <= lambda}, which never decreases in lambda because the fallback costs 0.
With another fallback it would not be monotone, and whole-trajectory sums after replacement are not covered:
apply it round by round, in sequential folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from conformal.ranks import Level, OrderStatistics, exact_level
from conformal.scores import BoolArray, FloatArray, check_scores
from conformal.sequential import SequentialCalibrator


def risk_threshold(
    scores: npt.ArrayLike,
    reached: npt.ArrayLike | None,
    alpha_r: Level,
    grid: FloatArray,
    *,
    episodes: Sequence[str] | None = None,
) -> OrderStatistics:
    """The largest lambda of the grid with [sum_i L_i(lambda) + max(grid)] / (n + 1) <= alpha_r, 0 if there is
    none.

    Scores and reached (n,) or (n, R): one fold, or R replicates of it. Returns lambda, n and the number of
    scores accepted at lambda. A failed (+inf) score is refused at every lambda.
    """
    values, mask = check_scores(scores, reached, episodes=episodes)
    steps = _check_grid(grid)
    columns, present = values.reshape(len(values), -1), mask.reshape(len(values), -1)
    found = [_one_fold(columns[present[:, j], j], alpha_r, steps) for j in range(columns.shape[1])]
    shape = values.shape[1:]
    value, accepted = np.array([f[0] for f in found]), np.array([f[1] for f in found], dtype=np.int64)
    return OrderStatistics(
        value.reshape(shape), np.asarray(mask.sum(0), dtype=np.int64), accepted.reshape(shape)
    )


def _one_fold(scores: FloatArray, alpha_r: Level, grid: FloatArray) -> tuple[float, int]:
    ordered = np.sort(scores[np.isfinite(scores)])
    accepted = np.searchsorted(ordered, grid, side="right")
    loss = np.concatenate([[0.0], np.cumsum(ordered)])[accepted]
    allowed: BoolArray = (loss + grid[-1]) / (len(scores) + 1) <= float(exact_level(alpha_r))
    if not allowed.any():
        return 0.0, int((ordered <= 0).sum())
    last = int(np.flatnonzero(allowed)[-1])
    return float(grid[last]), int(accepted[last])


def _check_grid(grid: FloatArray) -> FloatArray:
    steps = np.asarray(grid, dtype=np.float64)
    if (
        steps.ndim != 1
        or not len(steps)
        or not np.isfinite(steps).all()
        or steps[0] < 0
        or (np.diff(steps) <= 0).any()
    ):
        raise ValueError(
            f"grid: {steps[:5].tolist()}...; expected finite, increasing values of lambda from 0 up"
        )
    return steps


def sequential_risk(
    alpha_r: Level, grid: FloatArray, *, policy_hash: str = "", policy: Mapping[str, str] | None = None
) -> SequentialCalibrator:
    """A sequential calibrator whose every round controls the expected executed regret at alpha_r."""
    steps = _check_grid(grid)

    def rule(
        scores: npt.ArrayLike, reached: npt.ArrayLike | None, episodes: Sequence[str]
    ) -> OrderStatistics:
        return risk_threshold(scores, reached, alpha_r, steps, episodes=episodes)

    return SequentialCalibrator(
        alpha=alpha_r,
        policy_hash=policy_hash,
        policy=policy or {},
        rule=rule,
        mode="risk",
        guarantee=f"E[executed regret | round t reached] <= {float(exact_level(alpha_r)):g} at every "
        "round t, refused proposals becoming the argmin",
    )
