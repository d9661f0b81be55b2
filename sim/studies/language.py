"""Opening a language world: the engine of the configuration, the branches already on disk, the call log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from sim.config import LanguageWorldConfig, StudyConfig
from sim.engines.protocol import Engine
from sim.errors import UserError
from sim.records.rows import BranchRow, VoteRow
from sim.records.store import RunStore, iter_rows
from sim.worlds.branch_store import BranchStore
from sim.worlds.language import LanguageWorld


@asynccontextmanager
async def language_world(
    directory: Path, config: StudyConfig, world: LanguageWorldConfig, store: RunStore
) -> AsyncIterator[tuple[LanguageWorld, Engine]]:
    """The world and its engine, started; what the run has on disk is not asked of the model again."""
    known = BranchStore(
        iter_rows(directory, BranchRow),
        iter_rows(directory, VoteRow),
        on_new=lambda row: store.append([row]),
    )
    async with make_engine(config.engine, config.model) as engine:
        yield (
            LanguageWorld(engine, world.settings, known, world.horizon, lambda row: store.append([row])),
            engine,
        )


def make_engine(engine: Mapping[str, Any], model: Mapping[str, Any]) -> Engine:
    """The engine of a configuration, not started yet; UserError naming a wrong key or an unknown kind."""
    settings = {key: value for key, value in engine.items() if key != "kind"}
    if engine.get("kind") == "transformers_local":
        from sim.engines.transformers_local import LocalEngineConfig, TransformersEngine

        try:
            parsed = msgspec.convert(settings, LocalEngineConfig)
        except msgspec.ValidationError as error:
            raise UserError(f"config: engine: {error}") from error
        return TransformersEngine(str(model["name"]), parsed, model.get("revision"))
    raise UserError(f"engine.kind is {engine.get('kind')!r}; it must be transformers_local")
