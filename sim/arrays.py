"""Array types and the one idiom of the house: frozen dataclasses of arrays whose first axis is the batch.

Knows nothing of discussions: it only selects, joins and repeats rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Words: TypeAlias = npt.NDArray[np.uint64]

T = TypeVar("T")

TIE = 1e-12
"""Numbers this close are equal: sums of the same terms in another order differ in their last bits."""


def _map_rows(batch: T, change: Callable[[Any], Any]) -> T:
    changed = {}
    for field in fields(batch):  # type: ignore[arg-type]
        value = getattr(batch, field.name)
        if isinstance(value, np.ndarray | tuple) or hasattr(value, "__dataclass_fields__"):
            changed[field.name] = change(value)
    return replace(batch, **changed)  # type: ignore[type-var]


def take(batch: T, rows: Ints | Bools) -> T:
    """The rows of a batch, in the order given (or where a mask is true).

    Scalars are kept, and so is an empty tuple: a world without texts has none for any row.
    """
    index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows

    def pick(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value[index]
        if isinstance(value, tuple):
            return tuple(value[i] for i in index) if value else value
        return take(value, index)

    return _map_rows(batch, pick)


def lowest(scores: Floats) -> Ints:
    """Index of the lowest score over the last axis; ties, within `TIE`, go to the lowest index."""
    index: Ints = (scores <= scores.min(-1, keepdims=True) + TIE).argmax(-1)
    return index


def join(batches: Sequence[T]) -> T:
    """Several batches of one shape as one, rows in order."""
    first = batches[0]
    joined: dict[str, Any] = {}
    for field in fields(first):  # type: ignore[arg-type]
        values = [getattr(batch, field.name) for batch in batches]
        if isinstance(values[0], np.ndarray):
            joined[field.name] = np.concatenate(values)
        elif isinstance(values[0], tuple):
            joined[field.name] = tuple(chain.from_iterable(values))
        elif hasattr(values[0], "__dataclass_fields__"):
            joined[field.name] = join(values)
    return replace(first, **joined)  # type: ignore[type-var]
