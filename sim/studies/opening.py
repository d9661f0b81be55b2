"""Opening a study: its run directory, tasks, folds and world, from a resolved configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from sim.config import (
    CognitiveWorldConfig,
    LanguageWorldConfig,
    StudyConfig,
    TaskConfig,
    identity_hash,
    parse,
)
from sim.errors import UserError
from sim.records.rows import BranchRow, VoteRow
from sim.records.run_dir import PROVENANCE, claim, provenance, read_config, read_provenance, write_json
from sim.records.store import RunStore, iter_rows
from sim.studies.checks import check_config, check_folds
from sim.studies.study import Study, Tasks, make_folds
from sim.tasks import (
    demo_task,
    fetch_hiddenbench,
    generate_method,
    generate_travel,
    load_recorded_tasks,
    load_tasks,
    tasks_hash,
    write_tasks,
)
from sim.worlds.cognitive import CognitiveWorld
from sim.worlds.protocol import World

TASKS = "tasks.json"


def make_tasks(config: TaskConfig) -> Tasks:
    """The tasks of a configuration; UserError where a source cannot give them."""
    count = config.count or 0
    shape = {"n_agents": config.n_agents, "n_options": config.n_options, "n_shared": config.n_shared}
    if config.source == "travel":
        return tuple(generate_travel(config.level or "medium", count, config.seed, **shape))
    if config.source == "method":
        return tuple(generate_method(count, config.seed))
    if config.source == "demo":
        return (demo_task(),)
    if config.source == "hub":
        return tuple(fetch_hiddenbench(config.revision or ""))
    tasks = tuple(load_tasks(config.path or ""))
    return tasks[:count] if count else tasks


Check = Callable[[StudyConfig], None]
"""Raises UserError where a new run would lack what it needs."""


def new_run(data: Mapping[str, Any], check: Check) -> tuple[Path, StudyConfig]:
    """A new run directory with its configuration and tasks.

    Everything that can be wrong with them is found before the directory is made.
    """
    config = parse(data)
    tasks = checked_tasks(config, check)
    directory = claim(Path(config.output), config.name, identity_hash(data), data)
    write_tasks(directory / TASKS, tasks)
    return directory, config


def checked_tasks(
    config: StudyConfig, check: Check, make: Callable[[TaskConfig], Tasks] | None = None
) -> Tasks:
    """The tasks of a study whose configuration, split and sources have all been found to be sound; `make` makes them
    instead of `make_tasks`."""
    check(config)
    check_config(config)
    tasks = (make or make_tasks)(config.task)
    check_folds(config, make_folds(tasks, config))
    return tasks


def resumed_run(
    directory: Path, data: Mapping[str, Any], overridden: Mapping[str, Any], check: Check
) -> tuple[Path, StudyConfig]:
    """A run directory to continue under its stored configuration; its tasks are made if it has none yet.

    Raises UserError if an override (`overridden`: key -> value) says something else than what was run.
    """
    stored = read_config(directory)
    check_unchanged(directory, stored, overridden)
    config = parse(stored)
    if not (directory / TASKS).exists():
        write_tasks(directory / TASKS, checked_tasks(config, check))
    return directory, msgspec.structs.replace(config, resume=str(directory), progress=data["progress"])


def check_unchanged(directory: Path, stored: Mapping[str, Any], overridden: Mapping[str, Any]) -> None:
    """Raise UserError naming an override that says something else than what was run."""
    for key, value in overridden.items():
        kept = _lookup(stored, key)
        if kept != value:
            raise UserError(
                f"{directory}: was run with {key}={kept!r}, not {value!r}; resume without that override, or "
                "start a new run"
            )


def replayed(data: Mapping[str, Any], overridden: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a replay: the recorded run's, with what the command line says on top.

    Raises UserError where `replay` names no run.
    """
    stored = read_config(Path(data["replay"]))
    own = ("name", "output", "replay", "resume", "progress", "logger")
    merged = {**stored, **{key: data[key] for key in own if key in data}}
    for key, value in overridden.items():
        *path, last = key.split(".")
        place = merged
        for part in path:
            place[part] = dict(place[part])
            place = place[part]
        place[last] = value
    return merged


def _lookup(data: Any, key: str) -> Any:
    for part in key.split("."):
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


@asynccontextmanager
async def opened(directory: Path, config: StudyConfig, store: RunStore) -> AsyncIterator[Study]:
    """The study of a run directory, whose store is held open, and its world, which is closed at the end."""
    made = directory / PROVENANCE
    recorded = read_provenance(directory).get("data_hash") if made.exists() else None
    tasks = load_recorded_tasks(directory / TASKS, recorded)
    folds = make_folds(tasks, config)
    async with opened_world(directory, config, store) as (world, identity, engine):
        if not made.exists():
            write_json(made, provenance(_fingerprint(tasks, folds, identity)))
        own_records = isinstance(config.world, LanguageWorldConfig) and config.replay is None
        yield Study(config, directory, folds, world, identity, store, engine, own_records)


def _fingerprint(tasks: Tasks, folds: Mapping[str, Tasks], identity: Mapping[str, object]) -> dict[str, Any]:
    return {
        "data_hash": tasks_hash(tasks),
        "folds": {name: len(part) for name, part in folds.items()},
        "world": dict(identity),
    }


@asynccontextmanager
async def opened_world(
    directory: Path, config: StudyConfig, store: RunStore
) -> AsyncIterator[tuple[World[Any], dict[str, object], Any]]:
    """The world of a configuration, what identifies it in the policy hash, and its engine if it has one."""
    if config.replay is not None:
        yield replay_world(Path(config.replay), config), _recorded_identity(Path(config.replay)), None
    elif isinstance(config.world, CognitiveWorldConfig):
        world = CognitiveWorld(
            config.world.cognition, config.world.horizon, config.world.novelty == "measured"
        )
        yield world, _identity(config), None
    else:
        from sim.studies.language import language_world

        async with language_world(directory, config, config.world, store) as (language, engine):
            yield language, language.identity(), engine


def _recorded_identity(recorded: Path) -> dict[str, object]:
    """A replay stands for the world it was recorded in."""
    identity: dict[str, object] = read_provenance(recorded)["world"]
    return identity


def _identity(config: StudyConfig) -> dict[str, object]:
    kept = {"batch", "in_flight"}
    world = msgspec.to_builtins(config.world)
    return {name: value for name, value in world.items() if name not in kept}


def replay_world(recorded: Path, config: StudyConfig) -> World[Any]:
    """A world that serves the branches recorded in another run, without any model.

    Raises UserError where the directory is no run, or its tasks are of another world.
    """
    from sim.worlds.branch_store import BranchStore
    from sim.worlds.replay import ReplayWorld

    read_config(recorded)
    store = BranchStore(iter_rows(recorded, BranchRow), iter_rows(recorded, VoteRow))
    world = config.world
    if isinstance(world, CognitiveWorldConfig):
        return ReplayWorld(store, world.horizon, max_words=1.0, has_text=False)
    return ReplayWorld(store, world.horizon, float(world.settings.max_words), has_text=True)
