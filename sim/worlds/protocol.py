"""The World protocol: what every world of discussions offers, whoever speaks in it (DESIGN).

A state is immutable. `branch` answers with a state of B·C rows, candidate c of discussion b at row b·C + c;
committing a branch is selecting its row. Nothing here knows of language models or of cognitive agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from sim.arrays import Bools, Ints, Words
from sim.discussion.actions import Candidates
from sim.discussion.ending import Votes
from sim.discussion.public import PublicView
from sim.errors import UserError
from sim.randomness import keys, text_keys
from sim.tasks.task import HiddenProfileTask

S = TypeVar("S")


@dataclass(frozen=True)
class Episodes:
    """A batch of discussions to hold: tasks (B) of one shape, and their seeds (B,)."""

    tasks: tuple[HiddenProfileTask, ...]
    seeds: Ints

    @property
    def size(self) -> int:
        """Number of discussions B."""
        return len(self.tasks)

    @property
    def key(self) -> Words:
        """Identity of each (task, seed), the root of every random number of the discussion."""
        return episode_keys((task.id for task in self.tasks), self.seeds)


def episode_keys(tasks: Iterable[str], seeds: Ints) -> Words:
    """64-bit identities (B,) of discussions by task id and seed (B,)."""
    return keys("episode", text_keys(tasks), seeds)


class WorldFailure(Exception):
    """A world gave up on an episode after its bounded retries; the episode is recorded as failed."""


class MissingBranch(UserError, LookupError):
    """A recorded tree does not hold the branch asked for; names task, seed and path."""


class World(Protocol[S]):
    """Opens, views, branches and closes a batch of discussions."""

    async def open(self, episodes: Episodes, full_information: bool = False) -> S:
        """The state before any message, beliefs elicited; with every clue shown to everybody if asked."""
        ...

    def view(self, state: S) -> PublicView:
        """The public record of a state."""
        ...

    async def branch(self, state: S, candidates: Candidates) -> S:
        """Every candidate branch from the frozen state, independently: B·C rows. Rows of inadmissible
        candidates may hold anything and must not be read."""
        ...

    def select(self, state: S, rows: Ints | Bools) -> S:
        """The state restricted to some rows."""
        ...

    async def final_votes(self, state: S) -> Votes:
        """Fresh, independent final answers of every agent."""
        ...


def shape_of(task: HiddenProfileTask) -> tuple[int, int, int]:
    """(N, K, S): discussions can share a batch only if these agree."""
    return task.n_agents, task.n_options, task.n_shared


def batches(tasks: Sequence[HiddenProfileTask], seeds: Sequence[int], limit: int) -> list[Episodes]:
    """All (task, seed) pairs cut into batches of one shape and at most `limit` discussions."""
    groups: dict[tuple[int, int, int], list[tuple[HiddenProfileTask, int]]] = {}
    for task in tasks:
        groups.setdefault(shape_of(task), []).extend((task, seed) for seed in seeds)
    return [
        Episodes(tuple(task for task, _ in part), np.array([seed for _, seed in part], np.int64))
        for pairs in groups.values()
        for part in (pairs[i : i + limit] for i in range(0, len(pairs), limit))
    ]
