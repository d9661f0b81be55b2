"""The committed study behind METHOD 8: every way of learning over repeated draws of the training tasks.

One row per recipe, draw and test task stands in outcomes.csv; every table is made from it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from controllers.card import Training, parse_training
from controllers.dataset import BranchDataset, of_tasks
from controllers.registry import make_controller
from sim.arrays import Floats
from sim.config import CognitiveWorldConfig, TaskConfig
from sim.discussion.actions import ACTION_NAMES, SPOKEN
from sim.errors import UserError
from sim.parsing import check_seed, typed
from sim.randomness import keys, text_keys
from sim.records.run_dir import claim, tracked, write_text
from sim.studies.learning_data import States, accuracy, expected_states, explore
from sim.studies.learning_tables import OUTCOMES, write_tables
from sim.studies.opening import make_tasks
from sim.studies.progress import Reporter
from sim.studies.study import Tasks
from sim.tasks import HiddenProfileTask
from sim.worlds.cognitive import CognitiveWorld

FEW, ALL, REFERENCE = "few", "all", "reference"
_CONTROLLERS = ("random", "rules", *(f"fixed_{ACTION_NAMES[action]}" for action in SPOKEN))
_REGRET_SEED, _TEST_SEED = 10_000, 20_000
"""Where the seeds of regret states and of closed-loop discussions start: no exploration has them."""


class LearningStudy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `scripts/learning.py` runs."""

    name: str
    seed: int
    task: TaskConfig
    world: CognitiveWorldConfig
    training: Training
    families: int
    draws: int
    all_task_networks: int
    explore_seeds: int
    test_seeds: int
    regret_seeds: int
    regret_rounds: int
    redraws: int
    recipes: dict[str, dict[str, Any]]
    compared_with: str
    workers: int
    output: str
    resume: str | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        for name in ("families", "draws", "explore_seeds", "test_seeds", "regret_seeds", "regret_rounds",
                     "redraws", "workers"):  # fmt: skip
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.all_task_networks < 0:
            raise UserError(f"all_task_networks is {self.all_task_networks}; give 0 or more")
        for name, seed in (
            ("seed", self.seed),
            ("task.seed", self.task.seed),
            ("training.seed", self.training.seed),
        ):
            check_seed(name, seed)
        if self.compared_with not in self.recipes:
            raise UserError(
                f"compared_with is {self.compared_with!r}; it must be one of {', '.join(self.recipes)}"
            )

    def settings(self, recipe: str, draw: int) -> Training:
        """The training settings of a recipe in a draw, which has a seed of its own."""
        changes = {"seed": self.training.seed + draw, **self.recipes[recipe]}
        return parse_training({**msgspec.to_builtins(self.training), **changes})


@dataclass(frozen=True)
class Material:
    """What every draw shares: tasks, ids of the frozen test split, explored branches, and states of the test
    tasks with expected objectives."""

    config: LearningStudy
    tasks: tuple[HiddenProfileTask, ...]
    test: frozenset[str]
    data: BranchDataset
    states: States


def run_learning(data: Mapping[str, Any], overridden: Mapping[str, Any]) -> Path:
    """Run the study in a fresh run directory, or make the tables of the one in `resume` again."""
    config = parse_learning(data)
    if config.resume is not None:
        directory = Path(config.resume)
        write_tables(directory, config.compared_with)
        return directory
    tasks = pool(config)
    directory = claim(Path(config.output), config.name, f"d{config.draws}", data)
    with tracked(directory, "learning"):
        outcomes = pd.DataFrame(list(_outcomes(config, tasks)))
        write_text(directory / OUTCOMES, outcomes.to_csv(index=False, lineterminator="\n"))
        write_tables(directory, config.compared_with)
    return directory


def parse_learning(data: Mapping[str, Any]) -> LearningStudy:
    """The typed configuration; UserError naming what is wrong, in a recipe too."""
    if data["world"].get("kind") == "language":
        raise UserError("world is language; this study redraws every branch many times: use world=cognitive")
    config = typed(data, LearningStudy, "config")
    for recipe in config.recipes:
        config.settings(recipe, 0)
    return config


def _outcomes(config: LearningStudy, tasks: Tasks) -> Iterator[dict[str, object]]:
    """Every row of the study, draw by draw in a fixed order."""
    reporter = Reporter(config.progress)
    with reporter.stage("explore", 2) as advance:
        material = gather(config, tasks, advance)
    jobs = [(FEW, draw) for draw in range(config.draws)] + [(ALL, i) for i in range(config.all_task_networks)]
    with reporter.stage("learn", len(jobs)) as advance, ProcessPoolExecutor(config.workers) as pool:
        yield from references(material)
        for done in [pool.submit(learn, material, kind, draw) for kind, draw in jobs]:
            yield from done.result()
            advance(1)


def pool(config: LearningStudy) -> Tasks:
    """The tasks that draws are made from. UserError if they are too few."""
    tasks = make_tasks(config.task)
    if len(tasks) <= config.families:
        raise UserError(
            f"task.count is {len(tasks)}; the pool must be larger than families = {config.families}"
        )
    return tasks


def gather(config: LearningStudy, tasks: Tasks, advance: Callable[[int], None]) -> Material:
    """Explore the pool and measure expected objectives on the test tasks."""
    test = frozenset(task.id for task in tasks) - drawn(tasks, config, 0)
    data = explore(world_of(config), tasks, range(config.explore_seeds))
    advance(1)
    held_out = [task for task in tasks if task.id in test]
    seeds = range(_REGRET_SEED, _REGRET_SEED + config.regret_seeds)
    states = expected_states(world_of(config), held_out, seeds, config.regret_rounds, config.redraws)
    advance(1)
    return Material(config, tasks, test, data, states)


def world_of(config: LearningStudy) -> CognitiveWorld:
    """The agents."""
    world = config.world
    return CognitiveWorld(world.cognition, world.horizon, world.novelty == "measured")


def drawn(tasks: Sequence[HiddenProfileTask], config: LearningStudy, draw: int) -> set[str]:
    """The training tasks of a draw: the first of a seeded order. Draw 0's complement is the frozen test split."""
    order = np.argsort(
        keys("learning", config.seed, draw, text_keys(task.id for task in tasks)), kind="stable"
    )
    return {tasks[place].id for place in order[: config.families].tolist()}


def learn(material: Material, kind: str, draw: int) -> list[dict[str, object]]:
    """Train every recipe on one draw, or on the whole pool, and evaluate it on the test tasks: those of the
    frozen split that a draw has left."""
    from controllers.training import train

    config = material.config
    few = drawn(material.tasks, config, draw) if kind == FEW else set()
    data = of_tasks(material.data, few) if few else material.data
    rows: list[dict[str, object]] = []
    for recipe in config.recipes:
        model = train(data, config.settings(recipe, draw))
        proposed = model.network(material.states.vectors).argmin(1)
        head = {"recipe": recipe, "trained_on": kind, "draw": draw}
        found = accuracy(world_of(config), _played(material, few), _seeds(config), model)
        rows += _rows(material, head, material.states.regret_of(proposed), found)
    return rows


def references(material: Material) -> Iterator[dict[str, object]]:
    """Controllers that learn nothing, on the same tasks; regret where it does not depend on the discussion."""
    states = material.states
    regrets = {f"fixed_{ACTION_NAMES[code]}": states.regrets[:, at] for at, code in enumerate(SPOKEN)}
    regrets["random"] = states.regrets.mean(1)
    for name in _CONTROLLERS:
        head = {"recipe": name, "trained_on": REFERENCE, "draw": 0}
        played = _played(material, set())
        found = accuracy(world_of(material.config), played, _seeds(material.config), make_controller(name))
        yield from _rows(material, head, regrets.get(name), found)


def _played(material: Material, left_out: set[str]) -> list[HiddenProfileTask]:
    wanted = material.test - left_out
    return [task for task in material.tasks if task.id in wanted]


def _seeds(config: LearningStudy) -> range:
    return range(_TEST_SEED, _TEST_SEED + config.test_seeds)


def _rows(
    material: Material, head: Mapping[str, object], regret: Floats | None, found: Mapping[str, float]
) -> list[dict[str, object]]:
    """One row per test task: expected regret over its states (empty where unknown), closed-loop accuracy."""
    task = np.array(material.states.task)
    return [
        {
            **head,
            "task": name,
            "expected_regret": np.nan if regret is None else float(regret[task == name].mean()),
            "task_accuracy": value,
        }
        for name, value in found.items()
    ]
