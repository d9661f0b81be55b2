"""Screened acceptance: predictions of branch objectives, with a calibrated band, decide what must be
evaluated.

The candidate to commit is always an evaluated branch. P(executed regret <= q) >= 1 - alpha_s becomes a
marginal probability instead of a certainty; proposals that are truly within q are still always accepted
(METHOD 7).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from conformal.scores import BoolArray, FloatArray, IntArray

BandKind: TypeAlias = Literal["procedure", "union"]

GRID: FloatArray = np.concatenate([[-6.0], np.linspace(-3, 5, 161)])


class Predictions(NamedTuple):
    """Predicted objectives and their scales, (B, C) each, or (C,) for a constant per action; scales > 0."""

    objective: FloatArray
    scale: FloatArray


class ScreenStep(NamedTuple):
    """The candidate so far (B,) and the branch to evaluate next (B,), -1 where the candidate may be
    committed.
    """

    candidate: IntArray
    branch: IntArray


class Screened(NamedTuple):
    """The outcome of a screened round: executed (B,), evaluated (B, C), and whether the proposal was kept
    (B,).
    """

    executed: IntArray
    evaluated: BoolArray
    accepted: BoolArray

    @property
    def branches(self) -> IntArray:
        """Number of branches evaluated (B,)."""
        return np.asarray(self.evaluated.sum(1), dtype=np.int64)


class ScreenProblem(NamedTuple):
    """What a screened round is given: proposal (B,), admissible (B, C), predictions, threshold q (B,), band
    (B,).
    """

    proposal: IntArray
    admissible: BoolArray
    predictions: Predictions
    threshold: FloatArray
    band: FloatArray


def problem(
    proposal: npt.ArrayLike,
    predictions: Predictions,
    threshold: npt.ArrayLike,
    band: npt.ArrayLike,
    admissible: npt.ArrayLike | None = None,
) -> ScreenProblem:
    """A checked problem; one threshold or band may serve all rows. Raises ValueError naming what is wrong."""
    p, forecast = np.asarray(proposal, dtype=np.int64), np.asarray(predictions.objective, dtype=np.float64)
    if forecast.ndim == 1:
        forecast = np.broadcast_to(forecast, (len(p), len(forecast)))
    width = np.broadcast_to(np.asarray(predictions.scale, dtype=np.float64), forecast.shape)
    mask = np.ones(forecast.shape, bool) if admissible is None else np.asarray(admissible, dtype=np.bool_)
    if forecast.ndim != 2 or len(p) != len(forecast) or mask.shape != forecast.shape:
        raise ValueError(
            f"screened: proposal {p.shape}, predictions {forecast.shape}; expected (B,) and (B, C)"
        )
    wrong = mask & ~(np.isfinite(forecast) & (width > 0) & np.isfinite(width))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"screened: row {row}, candidate {column} is predicted {forecast[row, column]} with scale "
            f"{width[row, column]}; expected finite predictions and positive scales"
        )
    if not mask[np.arange(len(p)), p].all():
        raise ValueError("screened: an inadmissible proposal; map it before screening")
    q = np.broadcast_to(np.asarray(threshold, dtype=np.float64), p.shape)
    return ScreenProblem(
        p, mask, Predictions(forecast, width), q, np.broadcast_to(np.asarray(band, float), p.shape)
    )


def screen_step(given: ScreenProblem, objectives: FloatArray, evaluated: BoolArray) -> ScreenStep:
    """What to do next in each row, given the objectives (B, C) of the branches evaluated so far.

    The proposal is evaluated first. A row may be committed once nothing unevaluated could beat its candidate
    by more than q, as far as the band tells, or once nothing is left to evaluate. Entries not evaluated are
    ignored.
    """
    rows = np.arange(len(given.proposal))
    known = np.where(evaluated, objectives, np.inf)
    best, own = known.min(1), known[rows, given.proposal]
    started = evaluated[rows, given.proposal]
    refused = started & _exceeds(own, best, given.threshold)
    candidate = np.where(refused, known.argmin(1), given.proposal)
    left = given.admissible & ~evaluated
    bound = np.where(
        left, given.predictions.objective - given.band[:, None] * given.predictions.scale, np.inf
    )
    doubtful = _exceeds(known[rows, candidate], np.minimum(best, bound.min(1)), given.threshold)
    following = np.where(left.any(1) & doubtful, _most_promising(bound, left), -1)
    return ScreenStep(candidate, np.where(started, following, given.proposal))


def _exceeds(value: FloatArray, lower: FloatArray, threshold: FloatArray) -> BoolArray:
    """Whether value - lower > threshold; a failed branch (+inf) exceeds every threshold."""
    gap = np.subtract(value, lower, out=np.zeros(len(value)), where=value > lower)
    return np.asarray((gap > threshold) | np.isinf(value), dtype=np.bool_)


def _most_promising(bound: FloatArray, left: BoolArray) -> IntArray:
    """The unevaluated branch of lowest bound; an infinite band makes every bound -inf, and the first one is
    taken.
    """
    lowest = np.where(left, bound, np.inf).min(1, keepdims=True)
    return np.asarray((left & (bound <= lowest)).argmax(1), dtype=np.int64)


def screen(given: ScreenProblem, objectives: FloatArray) -> Screened:
    """Run the procedure on rows whose objectives (B, C) are all known: calibration, simulation and replay."""
    rows = np.arange(len(given.proposal))
    evaluated = np.zeros(given.admissible.shape, bool)
    step = screen_step(given, objectives, evaluated)
    while (live := step.branch >= 0).any():
        evaluated[rows[live], step.branch[live]] = True
        step = screen_step(given, objectives, evaluated)
    return Screened(step.candidate, evaluated, step.candidate == given.proposal)


def union_scores(given: ScreenProblem, objectives: FloatArray) -> FloatArray:
    """max over b != proposal of (predicted - actual) / scale (B,): within the band every prune is right.

    The lowest band of the grid where nothing but the proposal is admissible.
    """
    others = given.admissible.copy()
    others[np.arange(len(given.proposal)), given.proposal] = False
    excess = np.where(others, given.predictions.objective - objectives, -np.inf) / given.predictions.scale
    return np.asarray(np.where(others.any(1), excess.max(1), GRID[0]), dtype=np.float64)


def procedure_scores(given: ScreenProblem, objectives: FloatArray, grid: FloatArray = GRID) -> FloatArray:
    """lambda_i (B,): the smallest grid band at which, and above which, the procedure commits a regret <= q.

    +inf where even the largest band of the grid errs (METHOD 7). The band of `given` is not used.
    """
    best = np.where(given.admissible, objectives, np.inf).min(1)
    found = np.full(len(best), np.inf)
    right = np.arange(len(best))
    for band in grid[::-1]:
        part = rows_of(given, right)._replace(band=np.full(len(right), band))
        executed = screen(part, objectives[right]).executed
        right = right[objectives[right, executed] - best[right] <= part.threshold]
        found[right] = band
    return found


def rows_of(given: ScreenProblem, rows: IntArray | BoolArray) -> ScreenProblem:
    """Some rows of a problem."""
    forecast = Predictions(given.predictions.objective[rows], given.predictions.scale[rows])
    return ScreenProblem(
        given.proposal[rows], given.admissible[rows], forecast, given.threshold[rows], given.band[rows]
    )


def constant_predictions(
    objectives: npt.ArrayLike, admissible: npt.ArrayLike | None = None, floor: float = 0.01
) -> Predictions:
    """The baseline every learned prediction must beat: each action's training mean, with its standard
    deviation.

    objectives and admissible (n, C) from training units; results (C,). Raises ValueError for an action never
    seen.
    """
    values = np.asarray(objectives, dtype=np.float64)
    mask = np.ones(values.shape, bool) if admissible is None else np.asarray(admissible, dtype=np.bool_)
    if not mask.any(0).all():
        raise ValueError(
            f"constant_predictions: candidate {int(np.argmin(mask.any(0)))} never occurs in training"
        )
    seen = np.where(mask, values, 0.0)
    count = mask.sum(0)
    mean = seen.sum(0) / count
    spread = np.sqrt((mask * (seen - mean) ** 2).sum(0) / count)
    return Predictions(mean, np.maximum(spread, floor))


def audit_rows(uniforms: npt.ArrayLike, fraction: float) -> BoolArray:
    """Rows (B,) to evaluate in full, from seeded uniforms (B,): coverage is observed on these alone."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"audit_fraction: {fraction}; expected a share between 0 and 1")
    return np.asarray(np.asarray(uniforms) < fraction, dtype=np.bool_)
