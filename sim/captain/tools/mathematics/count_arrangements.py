"""Counting."""

from __future__ import annotations

import math
from collections import Counter


def count_arrangements(items: list[str], length: int | None = None, ordered: bool = True) -> int:
    """Count the arrangements (or selections, if not ordered) of `length` items; equal items are not told apart."""
    size = len(items) if length is None else length
    if not 0 <= size <= len(items):
        raise ValueError(f"length is {size}; it must lie between 0 and {len(items)}")
    ways = [1] + [0] * size
    for repeated in Counter(items).values():
        for total in range(size, 0, -1):
            ways[total] += sum(
                ways[total - taken] * (math.comb(total, taken) if ordered else 1)
                for taken in range(1, min(repeated, total) + 1)
            )
    return ways[size]
