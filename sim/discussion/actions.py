"""The interventions, in the one order and spelling used everywhere (METHOD 11), and the admissible set A_t.

`free` is no intervention: an uninstructed message, used by the uncontrolled baselines only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Bools, Ints
from sim.errors import UserError

ACTIONS = ("challenge", "clarify", "seek_evidence", "route", "vote")
ACTION_NAMES = (*ACTIONS, "free")
CHALLENGE, CLARIFY, SEEK_EVIDENCE, ROUTE, VOTE, FREE = range(6)
SPOKEN = (CHALLENGE, CLARIFY, SEEK_EVIDENCE, ROUTE)
NOBODY = -1
_FALLBACK_ORDER = (SEEK_EVIDENCE, ROUTE, CHALLENGE, CLARIFY)


def parse_action(name: str) -> int:
    """The code of an intervention's name; UserError where there is no such intervention."""
    if name not in ACTION_NAMES:
        raise UserError(f"action {name!r} is unknown; it must be one of {', '.join(ACTION_NAMES)}")
    return ACTION_NAMES.index(name)


@dataclass(frozen=True)
class Menu:
    """What may be branched on in a study: one column per (action, draw).

    `actions` and `draws` have shape (C,). Interventions use draw 0;
    `best_of_4_free` uses four draws of `free`.
    """

    actions: tuple[int, ...]
    draws: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.actions or set(self.actions) == {VOTE}:
            raise UserError("menu: at least one intervention other than vote must stay admissible")

    @property
    def size(self) -> int:
        """Number of columns C."""
        return len(self.actions)


def interventions(vote: bool = False, without: tuple[str, ...] = ()) -> Menu:
    """The menu of interventions, minus ablated ones; vote only if enabled (METHOD 1)."""
    for name in without:
        if name not in ACTIONS:
            raise UserError(f"menu.without names {name!r}; it must be one of {', '.join(ACTIONS)}")
    dropped = {parse_action(name) for name in without}
    kept = tuple(a for a in (*SPOKEN, *((VOTE,) if vote else ())) if a not in dropped)
    return Menu(kept, (0,) * len(kept))


def free_messages(draws: int = 1) -> Menu:
    """The menu of an uncontrolled discussion: `draws` independent free messages."""
    return Menu((FREE,) * draws, tuple(range(draws)))


@dataclass(frozen=True)
class Candidates:
    """The branches that could be taken from a state; a function of the public record only.

    `actions`, `speakers` and `admissible` have shape (B, C); `draws` has shape (B, C) too. The speaker of a
    vote is NOBODY.
    """

    actions: Ints
    speakers: Ints
    draws: Ints
    admissible: Bools


def settle(proposed: Ints, candidates: Candidates) -> tuple[Ints, Bools]:
    """Column of each proposed action, and whether the proposal was malformed.

    `proposed` (B,) holds action codes. One that is not admissible becomes the first admissible of
    (seek_evidence, route, challenge, clarify), before any scoring (METHOD 1, 3).
    """
    offered = candidates.admissible
    matches = (candidates.actions == proposed[:, None]) & offered
    malformed = ~matches.any(1)
    rank = np.full(len(ACTION_NAMES), len(_FALLBACK_ORDER))
    rank[list(_FALLBACK_ORDER)] = np.arange(len(_FALLBACK_ORDER))
    fallback = np.where(offered, rank[candidates.actions], len(_FALLBACK_ORDER) + 1).argmin(1)
    return np.where(malformed, fallback, matches.argmax(1)), malformed
