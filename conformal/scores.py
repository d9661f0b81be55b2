"""What a score array may hold, and how awkward episodes enter it.

A score is a number >= 0, +inf for an episode that failed; `reached` says which entries exist at all. Scores
are (n, T): episodes by rounds, round t in column t-1. Nothing here knows where a score comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


def check_scores(
    scores: npt.ArrayLike,
    reached: npt.ArrayLike | None = None,
    *,
    episodes: Sequence[str] | None = None,
    signed: bool = False,
) -> tuple[FloatArray, BoolArray]:
    """Scores and their mask as arrays of one shape; raise ValueError naming the first episode that is
    unusable.

    The first axis counts episodes, the second (if any) rounds. `reached` defaults to everything. Entries not
    reached are ignored whatever they hold. A reached NaN is an error, and so is a reached negative number
    unless the scores are signed (predictions minus outcomes); +inf is a failed episode and legal.
    """
    values = np.asarray(scores, dtype=np.float64)
    mask = np.ones(values.shape, bool) if reached is None else np.asarray(reached)
    if values.ndim == 0:
        raise ValueError("scores: a single number was given; expected an array with one score per episode")
    if mask.dtype != np.bool_ or mask.shape != values.shape:
        raise ValueError(
            f"reached: {mask.dtype} array of shape {mask.shape} does not match scores of shape "
            f"{values.shape}; expected booleans of the same shape"
        )
    wrong = mask & (np.isnan(values) | (np.isneginf(values) if signed else values < 0))
    if wrong.any():
        raise ValueError(_describe(values, tuple(np.argwhere(wrong)[0]), episodes, signed))
    return values, mask


def _describe(
    values: FloatArray, index: tuple[int, ...], episodes: Sequence[str] | None, signed: bool
) -> str:
    name = f"episode {episodes[index[0]]!r}" if episodes is not None else f"episode at index {index[0]}"
    place = f", round {index[1] + 1}" if len(index) > 1 else ""
    right = "a number" if signed else "a number >= 0"
    return f"scores: {name}{place}: {values[index]} is not a score; expected {right} (or +inf if it failed)"


def check_units(units: Sequence[str], n: int, fold: str) -> tuple[str, ...]:
    """The units (task families) of a fold's n episodes; ValueError if miscounted or if one occurs twice.

    Several episodes of one unit are not exchangeable with an episode of a new unit (METHOD 3), so they may
    not be counted as so many units; `conformal.hierarchical` is the way to use them.
    """
    names = tuple(str(unit) for unit in units)
    if len(names) != n:
        raise ValueError(
            f"units: fold {fold!r} names {len(names)} units for {n} episodes; expected one per episode"
        )
    if len(set(names)) < n:
        twice, times = Counter(names).most_common(1)[0]
        raise ValueError(
            f"units: {twice!r} occurs {times} times in fold {fold!r}; expected one episode per unit "
            "(several seeds of one task need hierarchical weights)"
        )
    return names


def check_disjoint(folds: dict[str, tuple[str, ...]]) -> None:
    """Raise ValueError naming a unit that two folds share."""
    owner: dict[str, str] = {}
    for fold, units in folds.items():
        for unit in units:
            if owner.setdefault(unit, fold) != fold:
                raise ValueError(
                    f"folds: unit {unit!r} is in {owner[unit]!r} and in {fold!r}; expected disjoint folds"
                )


def fail_from(
    scores: npt.ArrayLike, reached: npt.ArrayLike, failed_round: npt.ArrayLike
) -> tuple[FloatArray, BoolArray]:
    """Scores in which an episode counts as +inf, and as reached, from the round its engine gave up (METHOD
    3).

    `failed_round` (n,) is 1-based; 0 marks an episode that did not fail. Use it on calibration and test
    alike: a failed calibration episode is an infinite score, a failed test episode an uncovered one.
    """
    values, mask = np.array(scores, dtype=np.float64), np.array(reached, dtype=bool)
    first = np.asarray(failed_round, dtype=np.int64)
    lost = (first[:, None] > 0) & (np.arange(1, values.shape[1] + 1) >= first[:, None])
    return np.where(lost, np.inf, values), mask | lost
