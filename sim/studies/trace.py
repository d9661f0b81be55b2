"""A recorder that keeps a batch as arrays: scores by round, regrets executed, outcomes. No files, no rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sim.arrays import Bools, Floats, Ints, take
from sim.discussion.ending import ABSTAIN, decide
from sim.discussion.public import PublicView
from sim.studies.rollout import Ending, Step
from sim.worlds.protocol import Episodes


@dataclass
class Trace:
    """Arrays over the batch of B discussions and up to T rounds; NaN where a round was not reached.

    scores: regret of the proposal; executed: regret of the branch committed; branches: evaluated per round;
    normalised: normalised regret of the proposal. A discussion its world gave up on scores +inf from the
    round of its failure on (METHOD 3) and is listed in `errors`.
    """

    episodes: Episodes
    scores: Floats = field(init=False)
    executed: Floats = field(init=False)
    spread: Floats = field(init=False)
    branches: Floats = field(init=False)
    replaced: Bools = field(init=False)
    decision: Ints = field(init=False)
    votes: Ints = field(init=False)
    rounds: Ints = field(init=False)
    words: Floats = field(init=False)
    final_objective: Floats = field(init=False)
    errors: dict[int, str] = field(default_factory=dict)

    def opened(self, view: PublicView) -> None:
        """Room for T rounds of every discussion."""
        shape = (self.episodes.size, view.horizon)
        for name in ("scores", "executed", "spread", "branches"):
            setattr(self, name, np.full(shape, np.nan))
        self.replaced = np.zeros(shape, bool)
        self.decision = np.full(self.episodes.size, ABSTAIN)
        self.votes = np.full((self.episodes.size, view.n_agents), ABSTAIN)
        self.rounds = np.zeros(self.episodes.size, np.int64)
        self.words = np.zeros(self.episodes.size)
        self.final_objective = np.full(self.episodes.size, np.nan)

    def stepped(self, step: Step) -> None:
        """Keep the scores of one round."""
        rows, column = step.running, step.view.rounds
        each = np.arange(len(rows))
        finite = np.where(np.isfinite(step.regrets), step.regrets, 0.0)
        self.scores[rows, column] = step.regrets[each, step.proposal]
        self.executed[rows, column] = step.regrets[each, step.decision.executed]
        self.spread[rows, column] = finite.max(1)
        self.branches[rows, column] = step.candidates.admissible.sum(1)
        self.replaced[rows, column] = step.decision.replaced

    def ended(self, ending: Ending) -> None:
        """Keep the outcomes."""
        rows = ending.rows
        self.decision[rows] = decide(ending.votes, ending.view.key)
        self.votes[rows] = ending.votes.choice
        self.rounds[rows] = ending.view.rounds
        self.words[rows] = ending.view.words.sum(1)
        self.final_objective[rows] = ending.objective

    def failed(self, rows: Ints, view: PublicView | None, error: str) -> None:
        """A failed discussion is not covered from its failure on."""
        if view is None:
            raise ValueError(f"no discussion of the batch could be opened: {error}")
        for row, at in zip(rows.tolist(), take(view, np.arange(view.size)).rounds.tolist(), strict=True):
            self.scores[row, at:] = np.inf
            self.errors[row] = error

    @property
    def reached(self) -> Bools:
        """(B, T): which rounds were decided (or would have been, had the world not failed)."""
        return ~np.isnan(self.scores)

    @property
    def correct(self) -> Bools:
        """(B,): whether the group's decision is the answer."""
        correct: Bools = self.decision == self.answers
        return correct

    @property
    def answers(self) -> Ints:
        """(B,): index of the correct option."""
        return np.array([task.answer_index for task in self.episodes.tasks])
