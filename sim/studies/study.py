"""A study on disk: its configuration, tasks, folds, world and store, and the one way to run a condition.

Stages are built from `hold`; it skips what is recorded, so that every stage resumes where it was killed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.config import LanguageWorldConfig, StudyConfig
from sim.errors import UserError
from sim.records.rows import DecisionRow, EpisodeRow
from sim.records.store import RunStore, episode_key, finished_decisions, read_rows
from sim.studies.conditions import EVALUATE
from sim.studies.recorder import RowRecorder
from sim.studies.rollout import Policy, rollout
from sim.studies.tree import TreeRecorder, expand
from sim.tasks import HiddenProfileTask, split_by_family
from sim.worlds.protocol import Episodes, World, batches

Tasks = tuple[HiddenProfileTask, ...]
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Study:
    """What every stage needs. `world_identity` describes the world for the policy hash."""

    config: StudyConfig
    directory: Path
    folds: Mapping[str, Tasks]
    world: World[Any]
    world_identity: Mapping[str, object]
    store: RunStore
    engine: Any = None
    world_records: bool = False
    """Whether the world writes its own branches as it makes them (language worlds do)."""

    @property
    def batch_size(self) -> int:
        """Discussions per batch: one for language models, whose concurrency is between batches."""
        world = self.config.world
        return 1 if isinstance(world, LanguageWorldConfig) else world.batch

    @property
    def in_flight(self) -> int:
        """Batches held at the same time."""
        world = self.config.world
        return world.in_flight if isinstance(world, LanguageWorldConfig) else 1

    def episodes(self, stage: str, condition: str | None = None) -> list[EpisodeRow]:
        """Recorded episodes of a stage, of one condition if given, in the order of their keys: the order in
        which they were written depends on batches and crashes, and training must not."""
        rows = read_rows(self.directory, EpisodeRow)
        chosen = [row for row in rows if row.stage == stage and condition in (None, row.condition)]
        return sorted(chosen, key=episode_key)

    def decisions(self, stage: str, condition: str | None = None) -> list[DecisionRow]:
        """Decisions of the finished episodes of a stage, in the order of their keys."""
        rows = finished_decisions(self.directory, self.episodes(stage, condition))
        return sorted(rows, key=lambda row: (*episode_key(row), row.round, row.path))


@dataclass(frozen=True)
class Work:
    """One condition to hold in a stage: a policy on tasks × seeds; `depth` expands the tree of so many rounds
    instead of one path."""

    stage: str
    policy: Policy
    tasks: Tasks
    seeds: tuple[int, ...]
    depth: int | None = None

    @property
    def size(self) -> int:
        """Number of episodes."""
        return len(self.tasks) * len(self.seeds)


def make_folds(tasks: Sequence[HiddenProfileTask], config: StudyConfig) -> dict[str, Tasks]:
    """The folds of the split, disjoint by task family; one of size 0 is left out."""
    split = config.split
    last = ("test", "calibration") if split.swap else ("calibration", "test")
    shares = {name: getattr(split, name) for name in ("train", "pilot", *last, "screening")}
    return split_by_family(tasks, {name: share for name, share in shares.items() if share}, split.seed)


def fold(study: Study, name: str) -> Tasks:
    """A fold by name; UserError where the split gave it no tasks."""
    if name not in study.folds:
        raise UserError(f"split.{name} is 0, but this study needs a {name} fold; give it some task families")
    return study.folds[name]


async def hold(study: Study, work: Iterable[Work], advance: Advance) -> None:
    """Hold every episode that is not recorded yet; `advance(n)` is told of n episodes done or found done."""
    limit = asyncio.Semaphore(study.in_flight)

    async def one(item: Work, episodes: Episodes) -> None:
        async with limit:
            await _hold_batch(study, item, episodes, advance)

    for item in work:
        todo = [
            episodes
            for part in batches(item.tasks, item.seeds, _batch_size(study, item))
            if (episodes := unfinished(study, item, part)).size
        ]
        advance(item.size - sum(part.size for part in todo))
        await together(one(item, episodes) for episodes in todo)


def _batch_size(study: Study, item: Work) -> int:
    """Discussions of a batch; of a tree so many fewer that its last level is no larger than a batch."""
    leaves: int = item.policy.menu.size ** (item.depth or 0)
    return max(1, study.batch_size // leaves)


async def _hold_batch(study: Study, item: Work, episodes: Episodes, advance: Advance) -> None:
    branches = study.config.record == "branches" and not study.world_records
    decisions = study.config.record != "episodes" or item.stage != EVALUATE
    what = (study.store, item.stage, item.policy, episodes, branches, decisions, advance)
    if item.depth is None:
        await rollout(study.world, episodes, item.policy, RowRecorder(*what))
    else:
        await expand(study.world, episodes, item.policy, item.depth, TreeRecorder(*what))


async def together(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run jobs together; the first error stops the rest and is raised by itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors


def unfinished(study: Study, item: Work, part: Episodes) -> Episodes:
    """The episodes of a batch that are not recorded yet."""
    keep = [
        not study.store.finished(item.stage, item.policy.name, task.id, int(seed))
        for task, seed in zip(part.tasks, part.seeds, strict=True)
    ]
    return Episodes(tuple(itertools.compress(part.tasks, keep)), part.seeds[keep])
