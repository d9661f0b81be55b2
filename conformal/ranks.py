"""The conformal rank in exact arithmetic, and the order statistics it selects (METHOD 3).

Ranks are rational: floats lose whole ranks, and quantile functions interpolate or round the wrong way.
Nothing here knows what is being ranked.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from conformal.scores import BoolArray, FloatArray, IntArray, check_scores

Level: TypeAlias = float | str | Fraction


class OrderStatistics(NamedTuple):
    """Selected scores, the number of scores they were selected from, and their ranks; arrays of one shape."""

    values: FloatArray
    n: IntArray
    k: IntArray


def exact_level(alpha: Level) -> Fraction:
    """alpha as the simplest fraction within float noise of it; ValueError outside (0, 1)."""
    try:
        level = Fraction(alpha).limit_denominator(10**6)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise ValueError(f"alpha: {alpha!r} is not a number; expected 0 < alpha < 1") from error
    if not 0 < level < 1:
        raise ValueError(f"alpha: {alpha!r} is outside (0, 1); expected a miscoverage level such as 0.1")
    return level


def ranks(n: npt.ArrayLike, alpha: Level) -> IntArray:
    """k = n + 1 - floor((n + 1) alpha) for every n; a rank k = n + 1 stands for +inf."""
    level = exact_level(alpha)
    size = np.asarray(n, dtype=np.int64)
    return np.asarray(size + 1 - (size + 1) * level.numerator // level.denominator, dtype=np.int64)


def rank(n: int, alpha: Level) -> int:
    """k = n + 1 - floor((n + 1) alpha) for n calibration scores; k > n means the threshold is +inf."""
    if n < 0:
        raise ValueError(f"n: {n} is negative; expected a number of scores")
    return int(ranks(n, alpha))


def smallest_n(alpha: Level) -> int:
    """The fewest scores with a finite threshold, ceil(1/alpha) - 1: 9 at 0.1, 19 at 0.05, 99 at 0.01."""
    level = exact_level(alpha)
    return -(-level.denominator // level.numerator) - 1


def select(scores: FloatArray, reached: BoolArray, k: IntArray, axis: int = 0) -> FloatArray:
    """The k-th smallest reached score along an axis, +inf where k exceeds their number.

    `k` has the shape of the scores without that axis. Absent entries are ordered as +inf, which moves no
    order statistic of rank k <= n.
    """
    moved = np.moveaxis(np.where(reached, scores, np.inf), axis, -1)
    size = moved.shape[-1]
    if size == 0:
        return np.full(k.shape, np.inf)
    place = np.clip(k - 1, 0, size - 1)
    wanted = np.unique(place)
    # One rank is found in linear time; for several, numpy's vectorised sort beats its partition.
    ordered = np.partition(moved, wanted[0], axis=-1) if len(wanted) == 1 else np.sort(moved, axis=-1)
    picked = np.take_along_axis(ordered, place[..., None], axis=-1)[..., 0]
    return np.where(k <= reached.sum(axis), picked, np.inf)


def order_statistics(
    scores: npt.ArrayLike,
    reached: npt.ArrayLike | None,
    alpha: Level,
    *,
    axis: int = 0,
    episodes: Sequence[str] | None = None,
    signed: bool = False,
) -> OrderStatistics:
    """Conformal order statistics along an axis, for all columns, groups or replicates at once.

    Shapes: scores and reached (..., n, ...), results without that axis. Errors as `check_scores`.
    """
    values, mask = check_scores(scores, reached, episodes=episodes, signed=signed)
    n = np.asarray(mask.sum(axis), dtype=np.int64)
    k = ranks(n, alpha)
    return OrderStatistics(select(values, mask, k, axis), n, k)


def order_statistic(
    scores: npt.ArrayLike, alpha: Level, *, episodes: Sequence[str] | None = None, signed: bool = False
) -> float:
    """The conformal threshold of one set of scores (n,): the k-th smallest, or +inf when k > n.

    Raises ValueError naming the index (or episode) of a NaN or, unless `signed`, of a negative score.
    """
    return float(order_statistics(scores, None, alpha, episodes=episodes, signed=signed).values)
