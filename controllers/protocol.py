"""What a controller is: who proposes the next intervention. It sees the public record and nothing else: no
private clue, no answer, no threshold of the gate, no branch.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sim.arrays import Bools, Floats, Ints
from sim.discussion.actions import Candidates
from sim.discussion.public import PublicView
from sim.discussion.state import Features
from sim.randomness import keys, uniform

BEST = -2
"""What the reference controllers propose that take the evaluated branch of lowest objective."""


class ProposalFailure(Exception):
    """A controller gave up on a proposal after bounded retries; the episode is to be recorded as failed."""


class Controller(Protocol):
    """Proposes one intervention per discussion; many discussions at a time.

    The same public record always gets the same proposal: whatever is random is drawn from the key of the
    discussion and its round. So proposals do not depend on batches, scheduling or resume.
    """

    @property
    def name(self) -> str:
        """The controller's name in configs and tables."""
        ...

    async def propose(self, view: PublicView, features: Features, candidates: Candidates) -> Ints:
        """Codes of the proposed interventions (B,), as in `sim.discussion.actions`, or BEST.

        A proposal that is not admissible is mapped, counted and scored by the rollout (METHOD 1, 3).
        """
        ...

    def describe(self) -> dict[str, object]:
        """The controller's identity as JSON-able data, part of the policy hash (METHOD 3): anything that
        can change a proposal changes it."""
        ...


def dice(view: PublicView, n: int) -> Floats:
    """n uniforms in (0, 1) per discussion and round, shape (B, n), for a controller's own randomness."""
    return uniform(keys("controller", view.key, view.rounds), n)


def draw_admissible(candidates: Candidates, chance: Floats) -> Ints:
    """An intervention drawn uniformly from each admissible set by `chance` (B,) in (0, 1); codes (B,).

    An empty admissible set gets the first column, which the rollout then maps.
    """
    offered = candidates.admissible
    rank = (chance * offered.sum(1)).astype(np.int64)
    column = (offered & (offered.cumsum(1) == rank[:, None] + 1)).argmax(1)
    drawn: Ints = candidates.actions[np.arange(len(column)), column]
    return drawn


def is_admissible(actions: Ints, candidates: Candidates) -> Bools:
    """Whether each action (B,) is admissible (B,)."""
    offered: Bools = ((candidates.actions == actions[:, None]) & candidates.admissible).any(1)
    return offered
