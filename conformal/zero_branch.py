"""Bounds on regret from predictions alone, with no branch evaluated (METHOD 7).

The all-candidate form bounds every candidate at once and so survives any selection; the proposal form is
tighter and covers the proposal only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from conformal.scores import BoolArray, FloatArray, IntArray


def predicted_regret(predicted: npt.ArrayLike, admissible: npt.ArrayLike | None = None) -> FloatArray:
    """Predicted objective minus the least predicted among the admissible (B, C); +inf where inadmissible."""
    values = np.asarray(predicted, dtype=np.float64)
    mask = _mask(values, admissible)
    shown = np.where(mask, values, np.inf)
    return np.where(mask, values - shown.min(1, keepdims=True), np.inf)


def all_candidate_scores(
    regrets: npt.ArrayLike, predicted: npt.ArrayLike, admissible: npt.ArrayLike | None = None
) -> FloatArray:
    """max over candidates of regret minus predicted regret (B,); signed scores for `order_statistic`."""
    r = np.asarray(regrets, dtype=np.float64)
    mask = _mask(r, admissible)
    guess = np.where(mask, predicted_regret(predicted, mask), 0.0)
    return np.asarray(np.where(mask, np.where(mask, r, 0.0) - guess, -np.inf).max(1), dtype=np.float64)


def proposal_only_scores(
    regrets: npt.ArrayLike,
    predicted: npt.ArrayLike,
    proposal: IntArray,
    admissible: npt.ArrayLike | None = None,
) -> FloatArray:
    """The proposal's regret minus its predicted regret (B,); covers the proposal only."""
    rows = np.arange(len(proposal))
    r = np.asarray(regrets, dtype=np.float64)
    return np.asarray(
        r[rows, proposal] - predicted_regret(predicted, admissible)[rows, proposal], dtype=np.float64
    )


def regret_bound(predicted: npt.ArrayLike, q: float, admissible: npt.ArrayLike | None = None) -> FloatArray:
    """Upper bounds (B, C): predicted regret plus the calibrated excess q; +inf where inadmissible."""
    return predicted_regret(predicted, admissible) + q


def _mask(values: FloatArray, admissible: npt.ArrayLike | None) -> BoolArray:
    return np.ones(values.shape, bool) if admissible is None else np.asarray(admissible, dtype=np.bool_)
