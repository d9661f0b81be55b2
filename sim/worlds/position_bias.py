"""How far a model's answers depend on where an option stands in the list, apart from what it says.

Asked about every cyclic order of a task's options, a model without bias picks every position equally often,
since each option stands once at each. Recorded votes tell the same of a run at no further call: that is the
report's `positions` table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import numpy as np

from sim.arrays import Floats
from sim.discussion.beliefs import top_shares
from sim.tasks.task import HiddenProfileTask
from sim.worlds.language import LanguageWorld


class PositionBiasRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's first answers, before any message, to tasks of K options over all cyclic orders.

    `picks` (K,) are shares of the readable answers by displayed position; they sum to 1, and each is 1/K
    without bias. Accuracies count an unreadable answer as wrong: with options in their published order, and
    averaged over the orders.
    """

    model: str
    n_options: int
    n_tasks: int
    n_answers: int
    unreadable: int
    picks: list[float | None]
    accuracy_published: float
    accuracy_over_orders: float


def cyclic_orders(n_options: int) -> list[list[int]]:
    """The K orders that put each option once at each position, the published one first."""
    return [[(start + place) % n_options for place in range(n_options)] for start in range(n_options)]


async def measure_position_bias(
    world: LanguageWorld, tasks: Sequence[HiddenProfileTask], seed: int = 0
) -> list[PositionBiasRow]:
    """One row per number of options, ascending; asks every agent of every task about every cyclic order.

    Raises WorldFailure if the engine gives up.
    """
    sizes = sorted({task.n_options for task in tasks})
    groups = [[task for task in tasks if task.n_options == size] for size in sizes]
    answers = [await asyncio.gather(*(_answers(world, task, seed) for task in group)) for group in groups]
    model = world.engine.capabilities.model
    return [_row(model, group, found) for group, found in zip(groups, answers, strict=True)]


async def _answers(world: LanguageWorld, task: HiddenProfileTask, seed: int) -> Floats:
    """Which option each agent picks in each order, ties split: (K orders, N agents, K options), NaN where an
    answer could not be read."""
    orders = cyclic_orders(task.n_options)
    asked = [(order, agent) for order in orders for agent in range(task.n_agents)]
    beliefs = await asyncio.gather(*(world.first_belief(task, seed, agent, order) for order, agent in asked))
    unread = np.full(task.n_options, np.nan)
    picked = [unread if belief is None else top_shares(belief) for belief in beliefs]
    return np.array(picked).reshape(len(orders), task.n_agents, task.n_options)


def _row(model: str, tasks: Sequence[HiddenProfileTask], answers: Sequence[Floats]) -> PositionBiasRow:
    size = tasks[0].n_options
    orders = np.array(cyclic_orders(size))
    shown = [np.take_along_axis(picked, orders[:, None, :], 2).reshape(-1, size) for picked in answers]
    seen = np.concatenate(shown)
    readable = ~np.isnan(seen).any(1)
    right = [
        np.nan_to_num(picked[..., task.answer_index]) for task, picked in zip(tasks, answers, strict=True)
    ]
    return PositionBiasRow(
        model=model,
        n_options=size,
        n_tasks=len(tasks),
        n_answers=len(seen),
        unreadable=int((~readable).sum()),
        picks=seen[readable].mean(0).tolist() if readable.any() else [None] * size,
        accuracy_published=float(np.mean([hits[0].mean() for hits in right])),
        accuracy_over_orders=float(np.mean([hits.mean() for hits in right])),
    )
