"""How many tasks each mode needs, before any is spent (METHOD 4, 5, 10).

A round needs ceil(1/alpha) - 1 scores for a finite threshold; with a share of episodes reaching it, a fold
must be larger to have that many with the wanted probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy  # its parts load at first use, which keeps start-up short

from conformal.ranks import Level, exact_level, smallest_n


@dataclass(frozen=True)
class ModePlan:
    """What one mode needs and gets.

    needed: tasks for a finite threshold at every round. missing: needed minus those at hand, 0 if enough.
    rounds_certified: rounds, counted from the first, that the tasks at hand certify (for `trajectory` modes,
    all or none: one statement covers the episode). claims: what would be certified.
    """

    mode: str
    folds: int
    needed: int
    missing: int
    rounds_certified: int
    claims: str

    @property
    def can_certify(self) -> bool:
        """Whether the tasks at hand suffice for every round the mode can certify."""
        return self.missing == 0 and self.rounds_certified > 0


def fold_size(reach: float, alpha: Level, probability: float = 0.99) -> int:
    """Fewest tasks m with P(Binomial(m, reach) >= ceil(1/alpha) - 1) >= probability: 13, 22, 53 at .9, .65,
    .3.
    """
    if not 0 < reach <= 1:
        raise ValueError(
            f"reach: {reach}; expected the share of episodes reaching a round, above 0 and up to 1"
        )
    needed = smallest_n(alpha)
    size = needed
    while scipy.stats.binom.sf(needed - 1, size, reach) < probability:
        size += 1
    return size


def plan(tasks: int, alpha: Level, reach: Sequence[float], probability: float = 0.99) -> tuple[ModePlan, ...]:
    """What each mode could certify with `tasks` task families and an expected reach by round (T,)."""
    if tasks < 0 or not len(reach):
        raise ValueError(
            f"plan: {tasks} tasks, {len(reach)} rounds; expected tasks >= 0 and a reach for each round"
        )
    sizes = np.array([fold_size(share, alpha, probability) for share in reach])
    tight = exact_level(alpha) / Fraction(len(reach))
    bonferroni = max(fold_size(share, tight, probability) for share in reach)
    single, rounds = int(sizes.max()), len(reach)
    return (
        _plan("pilot", 2, tasks, 2 * single, _leading(2 * sizes, tasks), "each round's proposals"),
        _plan(
            "sequential",
            rounds,
            tasks,
            int(sizes.sum()),
            _leading(np.cumsum(sizes), tasks),
            "each round's proposals",
        ),
        _plan(
            "audit", 1, tasks, single, _leading(sizes, tasks), "each round's proposals, none of them replaced"
        ),
        _whole("trajectory", tasks, smallest_n(alpha), rounds, "no proposal refused in an episode"),
        _whole("bonferroni", tasks, bonferroni, rounds, "no proposal refused in an episode"),
        _plan(
            "roundwise",
            1,
            tasks,
            int(sizes[0]),
            _leading(sizes[:1], tasks),
            "the first round's proposals only",
        ),
        _plan("lockstep", 1, tasks, single, 0, "nothing proved; approximate at each round"),
    )


def _leading(needed: np.ndarray[tuple[int, ...], np.dtype[np.int64]], tasks: int) -> int:
    """How many rounds, counted from the first, are satisfied without a gap."""
    return int(np.logical_and.accumulate(needed <= tasks).sum())


def _plan(mode: str, folds: int, tasks: int, needed: int, certified: int, claims: str) -> ModePlan:
    return ModePlan(mode, folds, needed, max(0, needed - tasks), certified, claims)


def _whole(mode: str, tasks: int, needed: int, rounds: int, claims: str) -> ModePlan:
    return _plan(mode, 1, tasks, needed, rounds if tasks >= needed else 0, claims)
