"""Costs of a branch beyond its own round (METHOD 8): J after a rollout, or whether the group was right in the
end. Correctness is a label for training tasks only; no controller ever reads it.

Pure functions: from records or arrays to label columns of a `BranchDataset`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np

from controllers.dataset import BranchDataset, Singles, intervention
from sim.records.rows import DecisionRow, EpisodeRow

ROLLOUT = "rollout"
TASK_ACCURACY = "task_accuracy"

Leaf: TypeAlias = tuple[str, int, str]
"""(task, seed, path) of a branch."""


def episode_labels(data: BranchDataset, costs: Mapping[tuple[str, int], float]) -> Singles:
    """Labels (R, A) from how each episode ended: the committed branch of a decision costs what its episode
    cost, the other branches are unknown (NaN). `costs` maps (task, seed) to the episode's cost.

    Under a uniform explorer this estimates each branch's expected cost when play goes on uniformly. Raises
    KeyError for an episode without a cost.
    """
    labels = np.full(data.mask.shape, np.nan, np.float32)
    of_row = [
        costs[data.tasks[task], seed]
        for task, seed in zip(data.task.tolist(), data.seed.tolist(), strict=True)
    ]
    rows = np.flatnonzero(data.executed >= 0)
    labels[rows, data.executed[rows]] = np.array(of_row, np.float32)[rows]
    return labels


def with_horizon(data: BranchDataset, horizon: str, episodes: Iterable[EpisodeRow]) -> BranchDataset:
    """The data set with the label column that a training horizon asks for, taken from how its episodes ended;
    unchanged for `one_step`. The episodes must be those that the decisions were made in."""
    if horizon == ROLLOUT:
        return data.with_label(ROLLOUT, episode_labels(data, final_objectives(episodes)))
    if horizon == TASK_ACCURACY:
        return data.with_label(TASK_ACCURACY, episode_labels(data, mistakes(episodes)))
    return data


def final_objectives(episodes: Iterable[EpisodeRow]) -> dict[tuple[str, int], float]:
    """J at the end of each episode, by (task, seed); NaN for one that failed."""
    return {
        (row.task, row.seed): float("nan") if row.final_objective is None else row.final_objective
        for row in episodes
    }


def mistakes(episodes: Iterable[EpisodeRow]) -> dict[tuple[str, int], float]:
    """1 where the group's decision was wrong, 0 where it was right, NaN where the episode failed."""
    return {
        (row.task, row.seed): float("nan") if row.error else float(row.decision != row.answer)
        for row in episodes
    }


def tree_labels(
    rows: Iterable[DecisionRow], actions: tuple[str, ...], leaves: Mapping[Leaf, float] | None = None
) -> Singles:
    """Labels (R, A) from a full-depth tree, in the order of `rows`: the mean cost at the end of a branch when
    play goes on uniformly.

    A branch that was expanded costs the mean of its own branches; one that was not costs its J, or what
    `leaves` says. The tree is kept in memory: one entry per decision.
    """
    tree = [_node(row, actions) for row in rows]
    labels = np.full((len(tree), len(actions)), np.nan, np.float32)
    below: dict[Leaf, float] = {}
    for at in sorted(range(len(tree)), key=lambda i: -tree[i][1]):
        (task, seed, path), _, branches = tree[at]
        for column, candidate, value in branches:
            leaf = (task, seed, f"{path}/{candidate}" if path else candidate)
            labels[at, column] = below.get(leaf, value if leaves is None else leaves.get(leaf, value))
        below[task, seed, path] = float(np.mean([labels[at, column] for column, _, _ in branches]))
    return labels


def _node(row: DecisionRow, actions: tuple[str, ...]) -> tuple[Leaf, int, list[tuple[int, str, float]]]:
    """Address, round and evaluated branches (column, candidate, J) of a decision."""
    branches = [
        (actions.index(intervention(candidate)), candidate, value)
        for candidate, value in zip(row.candidates, row.objectives, strict=True)
        if value is not None
    ]
    return (row.task, row.seed, row.path), row.round, branches
