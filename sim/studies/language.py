"""Opening a language world: the engines of the configuration, one or a group's, the branches already on disk,
the call log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from controllers.registry import PROMPTED
from sim.config import LanguageWorldConfig, StudyConfig
from sim.engines.models import ModelConfig, check_found, parse_model
from sim.engines.protocol import Capabilities, Engine, EngineDown
from sim.engines.scripted import SCRIPTED, ScriptedEngine, ScriptedEngineConfig
from sim.errors import UserError
from sim.parsing import typed
from sim.records.rows import BranchRow, VoteRow
from sim.records.store import RunStore, iter_rows
from sim.worlds.branch_store import BranchStore
from sim.worlds.group import Group
from sim.worlds.language import LanguageWorld

Served: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any]]
"""An engine's and a model's configuration."""
OWN = ""
"""Stands for the study's own model among the members of a group."""


@asynccontextmanager
async def language_world(
    directory: Path, config: StudyConfig, world: LanguageWorldConfig, store: RunStore
) -> AsyncIterator[tuple[LanguageWorld, Engine]]:
    """The world and the engine that prompted controllers ask, started; what the run has on disk is not asked of
    any model again."""
    known = BranchStore(
        iter_rows(directory, BranchRow),
        iter_rows(directory, VoteRow),
        on_new=lambda row: store.append([row]),
    )
    try:
        async with AsyncExitStack() as stack:
            engines = await _started(stack, served(config), world)
            engine = next(iter(engines.values()))
            seats = config.seats
            group = Group(engines, seats.order, seats.rotate) if seats.order else None
            language = LanguageWorld(
                engine, world.settings, known, world.horizon, lambda row: store.append([row]), group
            )
            yield language, engine
    except EngineDown as error:
        raise UserError(f"{error}; start the server again, then continue with resume={directory}") from error


def served(config: StudyConfig) -> dict[str, Served]:
    """What a study has to start: its own model, or the members of its group; both where a controller asks the
    study's own model, which then comes first."""
    seated = {name: config.seats.members[name] for name in config.seats.order}
    members: dict[str, Served] = {
        name: (member.served(config.engine), member.model) for name, member in seated.items()
    }
    behind = {config.exploration.behaviour, *(config.variant(name).controller for name in config.conditions)}
    own = not members or bool(behind & set(PROMPTED))
    return ({OWN: (config.engine, config.model)} if own else {}) | members


async def _started(
    stack: AsyncExitStack, wanted: Mapping[str, Served], world: LanguageWorldConfig
) -> dict[str, Engine]:
    """The engines by member, checked; members that are served alike share one."""
    running: dict[bytes, Engine] = {}
    found: dict[str, Engine] = {}
    for name, (engine, model) in wanted.items():
        key = msgspec.json.encode((engine, model), order="sorted")
        if key not in running:
            running[key] = await stack.enter_async_context(make_engine(engine, model))
            check_capabilities(running[key].capabilities, world)
            check_found(parse_model(model), running[key].capabilities)
        found[name] = running[key]
    return found


def check_capabilities(found: Capabilities, world: LanguageWorldConfig) -> None:
    """Raise UserError where the settings need what the canary did not find."""
    by_choice = world.settings.elicitation != "verbal" or world.settings.final_vote == "choice"
    if by_choice and not found.label_logprobs:
        raise UserError(
            f"model {found.model}: gives no probabilities of labels; set world.settings.elicitation=verbal and "
            "world.settings.final_vote=verbal"
        )


def check_served(config: StudyConfig) -> None:
    """Raise UserError where an engine or a model that a study would start is not what it must be; starts nothing."""
    for name, (engine, model) in served(config).items():
        try:
            engine_settings(engine)
            parse_model(model)
        except UserError as error:
            raise UserError(f"seats.members.{name}: {error}" if name else str(error)) from error


def engine_settings(engine: Mapping[str, Any]) -> msgspec.Struct:
    """The typed settings of an engine; UserError naming a wrong key or an unknown kind."""
    return _typed_settings(engine, _kind(engine)[0])


def make_engine(engine: Mapping[str, Any], model: Mapping[str, Any]) -> Engine:
    """The engine of a configuration, not started yet; UserError naming a wrong key or an unknown kind."""
    chosen = parse_model(model)
    settings, make = _kind(engine)
    return make(chosen, _typed_settings(engine, settings))


def _kind(engine: Mapping[str, Any]) -> tuple[type[msgspec.Struct], Callable[[ModelConfig, Any], Engine]]:
    """The type of an engine's settings, and what makes the engine of a model and of them."""
    kind = engine.get("kind")
    if kind == "transformers_local":
        from sim.engines.transformers_local import LocalEngineConfig, TransformersEngine

        return LocalEngineConfig, TransformersEngine
    if kind == "openai_server":
        from sim.engines.openai_server import OpenAIServerEngine, ServerEngineConfig

        return ServerEngineConfig, OpenAIServerEngine
    if kind == "vllm_inprocess":
        from sim.engines.vllm_inprocess import InprocessEngine, InprocessEngineConfig

        return InprocessEngineConfig, InprocessEngine
    if kind == "scripted":
        return ScriptedEngineConfig, _scripted
    raise UserError(
        f"engine.kind is {kind!r}; it must be transformers_local, openai_server, vllm_inprocess or scripted"
    )


def _scripted(model: ModelConfig, settings: ScriptedEngineConfig) -> Engine:
    return ScriptedEngine(capabilities=msgspec.structs.replace(SCRIPTED, model=model.name, alternation=False))


def _typed_settings(engine: Mapping[str, Any], kind: type[msgspec.Struct]) -> msgspec.Struct:
    return typed({key: value for key, value in engine.items() if key != "kind"}, kind, "config: engine")
