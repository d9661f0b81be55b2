"""Which member of a group of several models plays which seat: a fixed order, rotated over tasks and seeds.

Names only: what a member is, and what answers for it, is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from sim.randomness import keys, text_key

Rotation = Literal["none", "tasks", "seeds", "both"]


def seated(order: Sequence[str], rotate: Rotation, task: str, seed: int, n_agents: int) -> tuple[str, ...]:
    """The members in the seats of one discussion, (N,) names.

    Seat i is played by `order[(i + shift) mod L]`: a shorter order repeats around the table, of a longer one
    some members sit out. With `seeds` the shift is the seed's, so that L seeds in a row put every member on
    every seat once; with `tasks` it is drawn from the task's id; with `both` it is their sum.
    """
    shift = 0
    if rotate in ("tasks", "both"):
        shift += int(keys("seating", np.uint64(text_key(task)))[0] % np.uint64(len(order)))
    if rotate in ("seeds", "both"):
        shift += seed
    return tuple(order[(seat + shift) % len(order)] for seat in range(n_agents))
