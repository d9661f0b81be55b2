"""Full-depth trees: every branch of every branch, each prefix evaluated once, level by level as one batch.

What a rollout does along one path is done here for all of them, with the same round; a replay of the rows can
then hold any controller's discussions. Costs at the leaves become labels for learning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import numpy as np

from controllers.dataset import BranchDataset
from controllers.labels import ROLLOUT, TASK_ACCURACY, Leaf, tree_labels
from controllers.protocol import ProposalFailure
from sim.arrays import Ints, take
from sim.discussion.ending import ABSTAIN, DecisionRule, Votes, decide
from sim.records.rows import DecisionRow, EpisodeRow, VoteRow
from sim.studies.recorder import RowRecorder
from sim.studies.rollout import Ending, Policy, Step, close, decide_round
from sim.worlds.protocol import Episodes, World, WorldFailure, episode_keys

S = TypeVar("S")
TREE = "tree"
"""How the episode of an expanded tree ends: it has no path and no decision of its own."""


async def expand(
    world: World[S], episodes: Episodes, policy: Policy, depth: int, recorder: TreeRecorder
) -> None:
    """Evaluate the tree of `depth` rounds below every opening; discussions that stop earlier are leaves.

    A world or controller that gives up fails the trees of the batch.
    """
    running = np.arange(episodes.size)
    try:
        state = await world.open(episodes)
        recorder.opened(world.view(state))
        for level in range(depth + 1):
            view = world.view(state)
            over = policy.stop(view) | (level == depth)
            if over.any():
                votes = await world.final_votes(world.select(state, over))
                recorder.ended(close(policy, running[over], take(view, over), votes))
            state, running = world.select(state, ~over), running[~over]
            if not running.size:
                break
            step, branches = await decide_round(world, state, policy, running)
            recorder.stepped(step)
            grown = np.flatnonzero(step.candidates.admissible.reshape(-1))
            running = np.repeat(running, step.candidates.actions.shape[1])[grown]
            state = world.select(branches, grown)
        recorder.closed()
    except (WorldFailure, ProposalFailure) as failure:
        recorder.failed(np.arange(episodes.size), None, str(failure))


@dataclass
class TreeRecorder(RowRecorder):
    """Writes trees: a decision row per state, a branch row per branch, final votes per leaf, and one episode
    row per tree. A row of `Step.running` may stand there many times: it is the tree of each state."""

    _votes: dict[int, list[VoteRow]] = field(default_factory=dict)
    _depth: Ints = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._votes = {row: [] for row in range(self.episodes.size)}
        self._depth = np.zeros(self.episodes.size, np.int64)

    def stepped(self, step: Step) -> None:
        """Keep the rows of one level."""
        super().stepped(step)
        self._depth[step.running] = step.view.rounds + 1

    def ended(self, ending: Ending) -> None:
        """Keep the final votes of some leaves."""
        for row, votes in zip(ending.rows.tolist(), self.vote_rows(ending), strict=True):
            self._votes[row].append(votes)

    def closed(self) -> None:
        """Write every tree of the batch; it is complete."""
        rows = np.arange(self.episodes.size)
        votes = [vote for row in rows.tolist() for vote in self._votes[row]]
        self.write(rows, votes, [self._tree(row) for row in rows.tolist()])

    def _tree(self, row: int) -> EpisodeRow:
        nobody = [ABSTAIN] * self.episodes.tasks[row].n_agents
        episode = self.episode_row(row, None, 0, TREE, None, ABSTAIN, nobody)
        return msgspec.structs.replace(episode, rounds=int(self._depth[row]))


def with_tree_horizon(
    data: BranchDataset,
    decisions: Sequence[DecisionRow],
    horizon: str,
    votes: Iterable[VoteRow],
    episodes: Iterable[EpisodeRow],
    rule: DecisionRule = "plurality",
) -> BranchDataset:
    """The data set with the label column of a horizon from whole trees: the mean cost at the leaves below each
    branch. `decisions` are the rows the data set was made from, in its order."""
    if horizon == ROLLOUT:
        return data.with_label(ROLLOUT, tree_labels(decisions, data.actions))
    if horizon == TASK_ACCURACY:
        wrong = leaf_mistakes(votes, {(row.task, row.seed): row.answer for row in episodes}, rule)
        return data.with_label(TASK_ACCURACY, tree_labels(decisions, data.actions, wrong))
    return data


def leaf_mistakes(
    votes: Iterable[VoteRow], answers: Mapping[tuple[str, int], int], rule: DecisionRule = "plurality"
) -> dict[Leaf, float]:
    """1 where the group's decision at a leaf is wrong, else 0; of the (task, seed) in `answers` only."""
    by_shape: dict[tuple[int, int], list[VoteRow]] = {}
    for row in votes:
        if (row.task, row.seed) in answers:
            by_shape.setdefault((len(row.beliefs), len(row.beliefs[0])), []).append(row)
    found: dict[Leaf, float] = {}
    for rows in by_shape.values():
        key = episode_keys((row.task for row in rows), np.array([row.seed for row in rows]))
        cast = Votes(np.array([row.choice for row in rows]), np.array([row.beliefs for row in rows]))
        for row, decision in zip(rows, decide(cast, key, rule).tolist(), strict=True):
            found[row.task, row.seed, row.path] = float(decision != answers[row.task, row.seed])
    return found
