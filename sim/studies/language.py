"""Opening a language world: the engine of the configuration, the branches already on disk, the call log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sim.config import LanguageWorldConfig, StudyConfig
from sim.engines.models import check_found, parse_model
from sim.engines.protocol import Capabilities, Engine, EngineDown
from sim.errors import UserError
from sim.records.rows import BranchRow, VoteRow
from sim.records.store import RunStore, iter_rows
from sim.worlds.branch_store import BranchStore
from sim.worlds.language import LanguageWorld

C = TypeVar("C")


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
    try:
        async with make_engine(config.engine, config.model) as engine:
            check_capabilities(engine.capabilities, world)
            check_found(parse_model(config.model), engine.capabilities)
            yield (
                LanguageWorld(engine, world.settings, known, world.horizon, lambda row: store.append([row])),
                engine,
            )
    except EngineDown as error:
        raise UserError(f"{error}; start the server again, then continue with resume={directory}") from error


def check_capabilities(found: Capabilities, world: LanguageWorldConfig) -> None:
    """Raise UserError where the settings need what the canary did not find."""
    by_choice = world.settings.elicitation != "verbal" or world.settings.final_vote == "choice"
    if by_choice and not found.label_logprobs:
        raise UserError(
            f"model {found.model}: gives no probabilities of labels; set world.settings.elicitation=verbal and "
            "world.settings.final_vote=verbal"
        )


def make_engine(engine: Mapping[str, Any], model: Mapping[str, Any]) -> Engine:
    """The engine of a configuration, not started yet; UserError naming a wrong key or an unknown kind."""
    settings = {key: value for key, value in engine.items() if key != "kind"}
    chosen = parse_model(model)
    kind = engine.get("kind")
    if kind == "transformers_local":
        from sim.engines.transformers_local import LocalEngineConfig, TransformersEngine

        return TransformersEngine(chosen, _parsed(settings, LocalEngineConfig))
    if kind == "openai_server":
        from sim.engines.openai_server import OpenAIServerEngine, ServerEngineConfig

        return OpenAIServerEngine(chosen, _parsed(settings, ServerEngineConfig))
    if kind == "vllm_inprocess":
        from sim.engines.vllm_inprocess import InprocessEngine, InprocessEngineConfig

        return InprocessEngine(chosen, _parsed(settings, InprocessEngineConfig))
    raise UserError(
        f"engine.kind is {kind!r}; it must be transformers_local, openai_server or vllm_inprocess"
    )


def _parsed(settings: Mapping[str, Any], kind: type[C]) -> C:
    try:
        return msgspec.convert(settings, kind, strict=True)
    except msgspec.ValidationError as error:
        raise UserError(f"config: engine: {error}") from error
