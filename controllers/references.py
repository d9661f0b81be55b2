"""Reference controllers (METHOD 11): what a controlled discussion is compared with. None of them learns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controllers.protocol import BEST, dice, draw_admissible
from sim.arrays import Ints
from sim.discussion.actions import ACTION_NAMES, FREE, Candidates, parse_action
from sim.discussion.public import PublicView
from sim.discussion.state import Features


@dataclass(frozen=True)
class Random:
    """A uniform draw from the admissible set, by the key of the discussion and its round."""

    @property
    def name(self) -> str:
        """`random`."""
        return "random"

    async def propose(self, view: PublicView, features: Features, candidates: Candidates) -> Ints:
        """The drawn interventions (B,)."""
        return draw_admissible(candidates, dice(view, 1)[:, 0])

    def describe(self) -> dict[str, object]:
        """Name only."""
        return {"name": self.name}


@dataclass(frozen=True)
class Fixed:
    """Always one intervention. `free` is the uncontrolled discussion: no instruction at all."""

    action: str

    def __post_init__(self) -> None:
        parse_action(self.action)

    @property
    def name(self) -> str:
        """`fixed_<action>`, or `free`."""
        return self.action if self.action == ACTION_NAMES[FREE] else f"fixed_{self.action}"

    async def propose(self, view: PublicView, features: Features, candidates: Candidates) -> Ints:
        """The same code for everybody (B,)."""
        return np.full(view.size, parse_action(self.action))

    def describe(self) -> dict[str, object]:
        """Name only: it holds the intervention."""
        return {"name": self.name}


@dataclass(frozen=True)
class Best:
    """The evaluated branch of lowest objective: `greedy` over interventions, `best_of_4_free` over free
    messages. Only the menu differs, so only the name does."""

    label: str = "greedy"

    @property
    def name(self) -> str:
        """`greedy` or `best_of_4_free`."""
        return self.label

    async def propose(self, view: PublicView, features: Features, candidates: Candidates) -> Ints:
        """BEST for everybody (B,): the rollout resolves it once the branches are evaluated."""
        return np.full(view.size, BEST)

    def describe(self) -> dict[str, object]:
        """Name only."""
        return {"name": self.name}
