"""How many tasks and seeds a comparison needs (METHOD 8): power of a paired, task-clustered t test.

A paired difference of episode s of task j is gap + between·u_j + within·v_js with independent standard
normals, so the mean over J tasks and M seeds has variance (between² + within²/M)/J. More seeds cannot make up
for few tasks. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy  # its parts load at first use, which keeps start-up short

from sim.errors import UserError

_MOST_TASKS = 10**7


def standard_error(tasks: int, seeds: int, between: float, within: float) -> float:
    """Standard error of a mean difference over `tasks` × `seeds`, from the two standard deviations."""
    _check(tasks=tasks, seeds=seeds, between=between, within=within)
    return float(np.sqrt((between**2 + within**2 / seeds) / tasks))


def power(gap: float, tasks: int, seeds: int, between: float, within: float, level: float = 0.05) -> float:
    """Chance that a two-sided test at `level` sees a true gap, in [level, 1]; 0 for a single task."""
    error = standard_error(tasks, seeds, between, within)
    if tasks < 2:
        return 0.0
    if gap == 0 or error == 0:
        return level if gap == 0 else 1.0
    critical = scipy.stats.f.ppf(1 - level, 1, tasks - 1)
    return float(scipy.stats.ncf.sf(critical, 1, tasks - 1, (gap / error) ** 2))


def tasks_needed(
    gap: float, seeds: int, between: float, within: float, wanted: float = 0.8, level: float = 0.05
) -> int:
    """The fewest tasks that see a gap with power `wanted`. Raises UserError for a gap of zero or a power
    outside (level, 1)."""
    if gap == 0 or not level < wanted < 1:
        raise UserError(
            f"power: gap {gap} and power {wanted}; give a gap other than 0 and a power in (level, 1)"
        )
    low, high = 1, 2
    while power(gap, high, seeds, between, within, level) < wanted:
        low, high = high, high * 2
        if high > _MOST_TASKS:
            raise UserError(f"power: a gap of {gap} needs more than {_MOST_TASKS} tasks")
    while high - low > 1:
        middle = (low + high) // 2
        enough = power(gap, middle, seeds, between, within, level) >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return high


def detectable_gap(
    tasks: int, seeds: int, between: float, within: float, wanted: float = 0.8, level: float = 0.05
) -> float:
    """The smallest gap that `tasks` × `seeds` see with power `wanted`."""
    if tasks < 2 or not level < wanted < 1:
        raise UserError(
            f"power: {tasks} tasks and power {wanted}; give two tasks or more and a power in (level, 1)"
        )
    error = standard_error(tasks, seeds, between, within)
    if error == 0:
        return 0.0
    found = scipy.optimize.brentq(
        lambda shift: power(shift * error, tasks, seeds, between, within, level) - wanted, 1e-9, 1e3
    )
    return float(found) * error


def power_table(
    gap: float,
    tasks: Sequence[int],
    seeds: Sequence[int],
    between: float,
    within: float,
    level: float = 0.05,
) -> list[dict[str, float]]:
    """Power for every pair of numbers of tasks and seeds, one row each."""
    return [
        {"tasks": j, "seeds": m, "gap": gap, "power": power(gap, j, m, between, within, level)}
        for j in tasks
        for m in seeds
    ]


def variance_components(difference: npt.ArrayLike, task: npt.ArrayLike) -> tuple[float, float]:
    """Standard deviations between and within tasks of paired differences (n,), by the analysis of variance.

    A negative estimate of the variance between tasks is reported as 0. Raises UserError with fewer than two
    tasks, or where no task has two seeds.
    """
    values, tasks = np.asarray(difference, np.float64), np.asarray(task)
    names, index = np.unique(tasks, return_inverse=True)
    counts = np.bincount(index).astype(np.float64)
    if len(names) < 2 or len(values) <= len(names):
        raise UserError(
            f"power: {len(values)} values of {len(names)} tasks; give two tasks or more, some with two seeds"
        )
    means = np.bincount(index, weights=values) / counts
    within = float(np.square(values - means[index]).sum() / (len(values) - len(names)))
    spread = float((counts * np.square(means - values.mean())).sum() / (len(names) - 1))
    size = (counts.sum() - np.square(counts).sum() / counts.sum()) / (len(names) - 1)
    between = max(0.0, (spread - within) / float(size))
    return float(np.sqrt(between)), float(np.sqrt(within))


def _check(tasks: int, seeds: int, between: float, within: float) -> None:
    if tasks < 1 or seeds < 1:
        raise UserError(f"power: {tasks} tasks and {seeds} seeds; give at least one of each")
    if not (between >= 0 and within >= 0):
        raise UserError(f"power: standard deviations {between} and {within}; they must be at least 0")
