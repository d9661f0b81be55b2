"""The generated group-travel benchmark (METHOD 12): unlimited tasks, each a function of (level, seed, index).

Puts together points and wording, and verifies any such task exactly from what it says. Structure as in
GroupTravelBench (arXiv 2605.25200), whose data these are not.
"""

from __future__ import annotations

import numpy as np

from sim.errors import UserError, shown
from sim.randomness import keys, uniform
from sim.tasks.task import HiddenProfileTask
from sim.tasks.travel_points import LEVELS, Ints, Shape, broken_rules, check_shape, draw_points
from sim.tasks.travel_text import Draws, draws_needed, read_points, write_task

LOG_ODDS_PER_POINT = 0.5
_CHUNK = 4096
_DEFAULT_SHAPE = Shape()


def generate_travel(
    level: str, n: int, seed: int, n_agents: int = 4, n_options: int = 3, n_shared: int = 4
) -> tuple[HiddenProfileTask, ...]:
    """Tasks 0 to n - 1 of one level (`easy`, `medium`, `hard`) and seed; task i is the same whatever n.

    3 to 8 agents, 3 to 6 options, 2 to 8 shared clues. Evidence is 0.5 x points, centred over options. Each
    task is its own family. Raises UserError for a level or shape that cannot be had.
    """
    shape = Shape(n_agents, n_options, n_shared)
    check_shape(level, shape)
    if type(n) is not int or n < 1:
        raise UserError(f"travel tasks: field 'n': {shown(n)}; give a number of tasks from 1")
    if type(seed) is not int or seed < 0:
        raise UserError(f"travel tasks: field 'seed': {shown(seed)}; give a whole number from 0")
    return tuple(
        task
        for start in range(0, n, _CHUNK)
        for task in _chunk(level, seed, np.arange(start, min(n, start + _CHUNK)), shape)
    )


def verify_travel(task: HiddenProfileTask) -> None:
    """Check METHOD 12's rules exactly, and that the text of every clue says what its evidence says.

    Raises UserError naming the task and the rule or clue.
    """
    level = task.family.split("-")[1] if task.family.startswith("travel-") else ""
    if level not in LEVELS:
        raise UserError(
            f"task {shown(task.id)}: field 'family': {shown(task.family)}; "
            f"give travel-<level>-<seed>-<index> with a level of {', '.join(LEVELS)}"
        )
    points = _relative_points(task)
    for place, (clue, row) in enumerate(zip(task.clues, points.tolist(), strict=True), start=1):
        read = read_points(clue, task.possible_answers)
        if [own - read[0] for own in read] != row:
            raise UserError(
                f"task {shown(task.id)}: clue {place}: its text says {read} points, its evidence "
                f"{row} above the first option; both must agree"
            )
    truth = np.array([task.answer_index])
    for rule, broken in broken_rules(points[None], truth, task.n_shared, LEVELS[level]).items():
        if broken[0]:
            raise UserError(
                f"task {shown(task.id)}: {rule}; points above the first option: {points.tolist()}"
            )


def _relative_points(task: HiddenProfileTask) -> Ints:
    """Points of each clue above those of the first option, (S + N, K), from the evidence."""
    points = task.evidence_array() / LOG_ODDS_PER_POINT
    relative = points - points[:, :1]
    whole = np.rint(relative).astype(np.int64)
    if np.abs(relative - whole).max() > 1e-6:
        raise UserError(
            f"task {shown(task.id)}: field 'evidence': not {LOG_ODDS_PER_POINT} log-odds times whole points"
        )
    return whole


def _chunk(level: str, seed: int, index: Ints, shape: Shape) -> list[HiddenProfileTask]:
    points, truth = draw_points(level, seed, index, shape)
    root = keys("travel-text", level, shape.n_agents, shape.n_options, shape.n_shared, seed, index)
    numbers = uniform(root, draws_needed(shape.n_agents, shape.n_options, shape.n_shared)).tolist()
    evidence = LOG_ODDS_PER_POINT * (points - points.mean(axis=-1, keepdims=True))
    suffix = "" if shape == _DEFAULT_SHAPE else f"-n{shape.n_agents}k{shape.n_options}s{shape.n_shared}"
    return [
        _task(f"travel-{level}-{seed}-{number}{suffix}", level, shape.n_shared, *parts)
        for number, *parts in zip(
            index.tolist(), points.tolist(), truth.tolist(), evidence.tolist(), numbers, strict=True
        )
    ]


def _task(
    name: str,
    level: str,
    n_shared: int,
    points: list[list[int]],
    truth: int,
    evidence: list[list[float]],
    numbers: list[float],
) -> HiddenProfileTask:
    text = write_task(points, n_shared, LEVELS[level], Draws(numbers))
    return HiddenProfileTask(
        id=name,
        name=text.name,
        description=text.description,
        shared_information=text.shared,
        hidden_information=text.private,
        possible_answers=text.options,
        correct_answer=text.options[truth],
        family=name,
        evidence=tuple(map(tuple, evidence)),
    )
