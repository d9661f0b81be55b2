"""Intervals and comparisons clustered by task (METHOD 8): seeds of one task are not independent tasks.

Pure functions on arrays: a value per episode (n,) and the task of each (n,). The quantity estimated is the
mean over tasks of each task's mean, so every task counts once however many seeds it has.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy  # its parts load at first use, which keeps start-up short

from sim.arrays import Floats, Ints
from sim.errors import UserError

FEW_TASKS = 10
"""Below this a bootstrap over tasks is far from its nominal level (.80 at five tasks, nominal .95)."""

Method: TypeAlias = Literal["percentile", "bca", "t"]
RESAMPLES = 4000
_AT_ONCE = 4_000_000
"""Values drawn at a time by a bootstrap, so that its memory does not grow with the tasks."""


class FewTasks(UserWarning):
    """A comparison rests on fewer than ten tasks."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval. `note` says what a reader must know, empty where there is nothing."""

    estimate: float
    low: float
    high: float
    n_tasks: int
    method: Method
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """A paired difference, its two-sided p-value (cluster t), and the p-value after Holm's correction."""

    difference: Interval
    p_value: float
    p_holm: float


def task_means(value: npt.ArrayLike, task: npt.ArrayLike) -> Floats:
    """Mean value of each task (J,), tasks in sorted order.

    Raises UserError for empty input, for values that are not finite and for shapes that differ.
    """
    values, tasks = np.asarray(value, np.float64), np.asarray(task)
    if values.ndim != 1 or values.shape != tasks.shape:
        raise UserError(f"interval: values {values.shape} and tasks {tasks.shape}; give one task per value")
    if not values.size:
        raise UserError("interval: there are no values; give at least one episode")
    if not np.isfinite(values).all():
        raise UserError(
            f"interval: {int((~np.isfinite(values)).sum())} values are not finite; count them apart"
        )
    _, index = np.unique(tasks, return_inverse=True)
    means: Floats = np.bincount(index, weights=values) / np.bincount(index)
    return means


def clustered(
    value: npt.ArrayLike,
    task: npt.ArrayLike,
    *,
    level: float = 0.95,
    method: Method = "percentile",
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """The mean with an interval clustered by task: a bootstrap over tasks, or Student's t on task means.

    With fewer than ten tasks a bootstrap is replaced by t, a FewTasks warning is issued and the note says so.
    """
    means = task_means(value, task)
    if len(means) >= FEW_TASKS:
        return t_interval(means, level) if method == "t" else bootstrap(means, level, method, seed, resamples)
    found = t_interval(means, level)
    warnings.warn(f"an interval rests on {found.n_tasks} tasks", FewTasks, stacklevel=2)
    return found


def t_interval(means: Floats, level: float = 0.95) -> Interval:
    """Student's t on task means (J,). A single task has no spread: its interval is the whole line."""
    _check_level(level)
    size, estimate = len(means), float(means.mean())
    if size < 2:
        return Interval(estimate, -np.inf, np.inf, size, "t", "one task: no interval")
    reach = float(scipy.stats.t.ppf(0.5 + level / 2, size - 1) * means.std(ddof=1) / np.sqrt(size))
    return Interval(estimate, estimate - reach, estimate + reach, size, "t", _note(means))


def bootstrap(
    means: Floats,
    level: float = 0.95,
    method: Literal["percentile", "bca"] = "percentile",
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Bootstrap over tasks of the mean of task means (J,), by scipy; the same seed gives the same interval.

    Raises UserError for fewer than ten tasks: use `t_interval`.
    """
    _check_level(level)
    size, estimate = len(means), float(means.mean())
    if size < FEW_TASKS:
        raise UserError(f"bootstrap over {size} tasks; it needs at least {FEW_TASKS}: use the t interval")
    if np.ptp(means) == 0:
        return Interval(estimate, estimate, estimate, size, method, _note(means))
    found = scipy.stats.bootstrap(
        (means,),
        np.mean,
        n_resamples=resamples,
        batch=max(1, _AT_ONCE // size),
        confidence_level=level,
        method="BCa" if method == "bca" else "percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(estimate, float(found.low), float(found.high), size, method, _note(means))


def paired_difference(
    value: npt.ArrayLike,
    reference: npt.ArrayLike,
    task: npt.ArrayLike,
    *,
    level: float = 0.95,
    method: Method = "percentile",
    seed: int = 0,
) -> Interval:
    """Mean of value - reference (n,), paired by episode and clustered by task."""
    values, references = np.asarray(value, np.float64), np.asarray(reference, np.float64)
    if values.shape != references.shape:
        raise UserError(
            f"paired difference: {values.shape} values against {references.shape}; pair them first"
        )
    return clustered(values - references, task, level=level, method=method, seed=seed)


def pair(
    value: Mapping[tuple[str, int], float], reference: Mapping[tuple[str, int], float]
) -> tuple[Floats, Floats, Ints]:
    """Two conditions' values by (task, seed) as paired arrays (n,), with the task index of each pair (n,).

    Raises UserError naming an episode that only one of them has: a pair is never dropped.
    """
    alone = sorted(value.keys() ^ reference.keys())
    if alone:
        raise UserError(
            f"paired difference: {len(alone)} episodes stand in one condition only, first {alone[0]}"
        )
    episodes = sorted(value)
    _, index = np.unique(np.array([task for task, _ in episodes]), return_inverse=True)
    return (
        np.array([value[episode] for episode in episodes], np.float64),
        np.array([reference[episode] for episode in episodes], np.float64),
        index.astype(np.int64),
    )


def t_test(means: Floats) -> float:
    """Two-sided p-value of a mean of zero, by Student's t on task means (J,); 1 where there is one task."""
    if len(means) < 2:
        return 1.0
    if np.ptp(means) == 0:
        return 1.0 if means[0] == 0 else 0.0
    return float(scipy.stats.ttest_1samp(means, 0.0).pvalue)


def holm(p_values: npt.ArrayLike) -> Floats:
    """Holm's step-down adjustment of p-values (m,): rejecting where it is at most a keeps the chance of any
    false rejection at most a, whatever their dependence (Holm 1979)."""
    p = np.asarray(p_values, np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise UserError("holm: a p-value must lie in [0, 1]")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, stepped)
    return adjusted


def compare(
    values: Mapping[str, npt.ArrayLike],
    reference: npt.ArrayLike,
    task: npt.ArrayLike,
    *,
    level: float = 0.95,
    method: Method = "percentile",
    seed: int = 0,
) -> dict[str, Comparison]:
    """Each condition against one reference, paired; p-values corrected by Holm over the table."""
    differences = {name: np.subtract(value, reference, dtype=np.float64) for name, value in values.items()}
    p_values = {name: t_test(task_means(difference, task)) for name, difference in differences.items()}
    adjusted = holm(list(p_values.values()))
    return {
        name: Comparison(
            clustered(difference, task, level=level, method=method, seed=seed),
            p_values[name],
            float(adjusted[at]),
        )
        for at, (name, difference) in enumerate(differences.items())
    }


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise UserError(f"interval level is {level}; it must lie in (0, 1)")


def _note(means: Floats) -> str:
    notes = []
    if len(means) < FEW_TASKS:
        notes.append(f"only {len(means)} tasks")
    if np.ptp(means) == 0:
        notes.append("no variation between tasks: the interval says nothing")
    return "; ".join(notes)
