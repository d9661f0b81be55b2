"""Who learns from what: METHOD 8's protocols as lessons, planned from the configuration and the folds alone.

A lesson is one network: the tasks it is trained on and the test tasks it is evaluated on. Nothing here holds a
discussion or trains; the stages do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from controllers.card import Training
from sim.config import DRAW_MARK, FOLD_MARK, LEARNED, Learner, StudyConfig
from sim.errors import UserError
from sim.randomness import keys, text_keys
from sim.studies.study import Tasks
from sim.tasks import folds as cut_folds

CONTROLLER = "controller"


@dataclass(frozen=True)
class Lesson:
    """One trained controller. `condition` is its row in the tables, with its draw; `folder` the place of its
    weights below a run's `controller/`; `run` the run they are read from, if not this one."""

    condition: str
    controller: str
    folder: str
    settings: Training
    train_tasks: Tasks
    test_tasks: Tasks
    run: str | None = None

    def weights(self, directory: Path) -> Path:
        """Where the weights are kept, for a study in `directory`."""
        return (Path(self.run) if self.run else directory) / CONTROLLER / self.folder


def is_learned(config: StudyConfig, condition: str) -> bool:
    """Whether a condition runs a learned controller."""
    return config.variant(condition).controller in LEARNED


def lessons(config: StudyConfig, folds: Mapping[str, Tasks], condition: str) -> list[Lesson]:
    """The networks behind a learned condition; their test tasks are disjoint within one row of the tables."""
    variant = config.variant(condition)
    learner = variant.learner or Learner()
    train, test = folds.get("train", ()), folds.get("test", ())
    settings = config.training_of(condition)
    if learner.from_run or (config.from_run and variant.learner is None):
        run = learner.from_run or config.from_run
        folder = variant.controller
        return [Lesson(condition, variant.controller, folder, settings, (), test, run)]
    if variant.learner is None:
        return [Lesson(condition, variant.controller, variant.controller, settings, train, test)]
    return [
        Lesson(name, variant.controller, folder, _reseeded(settings, draw), learned, evaluated)
        for name, draw in _names(condition, learner)
        for folder, learned, evaluated in _parts(name, learner, train, test, config.split.seed, draw)
    ]


def all_lessons(config: StudyConfig, folds: Mapping[str, Tasks]) -> list[Lesson]:
    """Every network that a study trains itself, each folder once."""
    found = {
        lesson.folder: lesson for condition in config.trained for lesson in lessons(config, folds, condition)
    }
    return list(found.values())


def explored_tasks(config: StudyConfig, folds: Mapping[str, Tasks]) -> Tasks:
    """The tasks whose branches are to be explored: those of the configured folds and of every lesson."""
    wanted: list[Tasks] = [folds[name] for name in config.exploration.folds if name in folds]
    wanted += [lesson.train_tasks for lesson in all_lessons(config, folds)]
    return _union(wanted)


def _reseeded(settings: Training, draw: int) -> Training:
    """Each draw trains from its own seed, so that the spread over draws holds the chance of training too."""
    return msgspec.structs.replace(settings, seed=settings.seed + draw)


def _names(condition: str, learner: Learner) -> Iterator[tuple[str, int]]:
    if learner.draws == 1:
        yield condition, 0
        return
    for draw in range(learner.draws):
        yield f"{condition}{DRAW_MARK}{draw}", draw


def _parts(
    name: str, learner: Learner, train: Tasks, test: Tasks, seed: int, draw: int
) -> Iterator[tuple[str, Tasks, Tasks]]:
    """Folder, training tasks and test tasks of each network behind one row of the tables."""
    pool = train if learner.drawn_from == "train" else _union([train, test])
    drawn = _drawn(pool, learner.families, seed, draw, name)
    if learner.test_tasks == "none":
        seen = {task.family for task in drawn}
        yield name, drawn, tuple(task for task in test if task.family not in seen)
    elif learner.test_tasks == "all":
        yield name, _union([drawn, test]), test
    else:
        count = learner.folds or len({task.family for task in test})
        for number, part in enumerate(cut_folds(test, count, seed)):
            hidden = {task.id for task in part}
            rest = tuple(task for task in test if task.id not in hidden)
            yield f"{name}{FOLD_MARK}{number}", _union([drawn, rest]), part


def _drawn(pool: Tasks, families: int | None, seed: int, draw: int, name: str) -> Tasks:
    """The tasks of so many families, ranked by a hash of their names, the seed and the draw."""
    if families is None:
        return pool
    names = sorted({task.family for task in pool})
    if families > len(names):
        raise UserError(
            f"variants.{name.partition(DRAW_MARK)[0]}.learner.families is {families}, but there are "
            f"{len(names)} to draw from; enlarge split.train"
        )
    order = np.argsort(keys("training draw", seed, draw, text_keys(names)), kind="stable")
    chosen = {names[place] for place in order[:families].tolist()}
    return tuple(task for task in pool if task.family in chosen)


def _union(parts: Sequence[Tasks]) -> Tasks:
    return tuple({task.id: task for part in parts for task in part}.values())
