"""Batches as frozen dataclasses of arrays: selecting, joining, and ties."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.arrays import Floats, Ints, join, lowest, take


@dataclass(frozen=True)
class Inner:
    """Nested arrays."""

    x: Floats


@dataclass(frozen=True)
class Batch:
    """Arrays, texts, a nested batch and a scalar."""

    numbers: Ints
    texts: tuple[str, ...]
    inner: Inner
    horizon: int
    nothing: tuple[str, ...] = ()


def batch(size: int) -> Batch:
    """Row i holds i everywhere."""
    rows = np.arange(size)
    return Batch(rows, tuple(map(str, range(size))), Inner(rows[:, None] * np.ones(2)), 8)


@given(st.integers(1, 12), st.data())
def test_rows_stay_together_in_the_order_asked_for(size: int, data: st.DataObject) -> None:
    chosen = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=15)), dtype=np.int64)
    taken = take(batch(size), chosen)
    np.testing.assert_array_equal(taken.numbers, chosen)
    assert taken.texts == tuple(map(str, chosen.tolist()))
    np.testing.assert_array_equal(taken.inner.x[:, 0], chosen)
    assert taken.horizon == 8
    assert taken.nothing == ()


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_a_mask_selects_what_its_indices_do(mask: list[bool]) -> None:
    chosen = np.array(mask)
    by_mask, by_index = take(batch(len(mask)), chosen), take(batch(len(mask)), np.flatnonzero(chosen))
    np.testing.assert_array_equal(by_mask.numbers, by_index.numbers)
    assert by_mask.texts == by_index.texts


@given(st.integers(2, 12), st.data())
def test_joining_what_was_cut_gives_the_batch_back(size: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, size - 1))
    whole = batch(size)
    again = join([take(whole, np.arange(cut)), take(whole, np.arange(cut, size))])
    np.testing.assert_array_equal(again.numbers, whole.numbers)
    np.testing.assert_array_equal(again.inner.x, whole.inner.x)
    assert again.texts == whole.texts
    assert again.horizon == whole.horizon


def test_ties_within_rounding_go_to_the_lowest_index() -> None:
    assert lowest(np.array([0.3, 0.1 + 0.2, 0.1 + 0.2 - 1e-16])) == 0
    assert lowest(np.array([0.3, 0.3 - 1e-9])) == 1
    np.testing.assert_array_equal(lowest(np.array([[1.0, 0.0], [0.0, 0.0]])), [1, 0])
