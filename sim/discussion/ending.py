"""How long a discussion may last, when it stops and what the group then decides (METHOD 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from sim.arrays import TIE, Bools, Floats, Ints, Words
from sim.discussion.public import PublicView
from sim.discussion.state import plurality_share
from sim.errors import UserError
from sim.randomness import keys, uniform

ABSTAIN = -1
DecisionRule = Literal["plurality", "strict_majority"]


class Each(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A horizon in rounds of the whole table: everybody speaks `each` times where speakers take turns."""

    each: int


Horizon: TypeAlias = int | Each | None
"""The most messages of a discussion: a number, so many a participant, or None for the default."""


def default_horizon(n_agents: int) -> int:
    """T where none is configured: 8, or 2N where N > 4 (METHOD 1)."""
    return 8 if n_agents <= 4 else 2 * n_agents


def horizon_of(horizon: Horizon, n_agents: int) -> int:
    """T of a discussion of N agents."""
    if isinstance(horizon, Each):
        return horizon.each * n_agents
    return horizon or default_horizon(n_agents)


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stop at a vote, at the horizon, or once a quorum with one top option is confident and well informed.

    `quorum` is the share of agents in (0, 1], or None for no early stop.
    """

    quorum: float | None = 1.0
    confidence: float = 0.8
    coverage: float = 0.6

    def __post_init__(self) -> None:
        if self.quorum is not None and not 0 < self.quorum <= 1:
            raise UserError(
                f"stop.quorum is {self.quorum}; it must lie in (0, 1] or be null for no early stop"
            )
        for name in ("confidence", "coverage"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"stop.{name} is {getattr(self, name)}; it must lie in [0, 1]")

    def __call__(self, view: PublicView) -> Bools:
        """Which discussions are over (B,)."""
        over: Bools = view.voted | (view.rounds >= view.horizon)
        if self.quorum is None:
            return over
        agreed = plurality_share(view) >= self.quorum - 1e-9
        confident = view.beliefs.max(-1).mean(1) > self.confidence
        informed = view.evidence.mean(1) > self.coverage
        answered = view.stale.mean(1) < 0.5
        settled: Bools = over | (agreed & confident & informed & answered)
        return settled


@dataclass(frozen=True)
class Votes:
    """Fresh, independent final answers: choice (B, N), ABSTAIN where unparsable; beliefs (B, N, K)."""

    choice: Ints
    beliefs: Floats


def decide(votes: Votes, key: Words, rule: DecisionRule = "plurality") -> Ints:
    """The group's decision (B,): plurality, ties by the larger mean belief, then by a seeded hash; or, by
    `strict_majority`, the option that more than half of all agents vote for, and ABSTAIN where there is none.

    It does not depend on the order of the agents: mean beliefs that differ by rounding alone are equal. Where
    everybody abstains the decision is ABSTAIN: nothing can be carried by no vote.
    """
    n_options = votes.beliefs.shape[2]
    counts = (votes.choice[:, :, None] == np.arange(n_options)).sum(1)
    if rule == "strict_majority":
        return np.where(2 * counts.max(1) > votes.choice.shape[1], counts.argmax(1), ABSTAIN)
    carried = counts == counts.max(1, keepdims=True)
    support = np.where(carried, votes.beliefs.mean(1), -np.inf)
    tied = support >= support.max(1, keepdims=True) - TIE
    winner = np.where(tied, uniform(keys("decision", key), n_options), -1.0).argmax(1)
    return np.where(counts.any(1), winner, ABSTAIN)
