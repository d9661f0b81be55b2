"""The committed study of how beliefs are elicited: the same discussions, asked about in every mode, give agreement
of the modes, what a belief costs in each, and where in the displayed list a model's answers fall.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from sim.arrays import Floats
from sim.config import LanguageWorldConfig, TaskConfig, identity_hash
from sim.discussion.actions import free_messages
from sim.discussion.beliefs import top_shares
from sim.discussion.public import Message
from sim.discussion.routing import candidates, make_router
from sim.engines.models import check_found, parse_model
from sim.engines.protocol import Engine
from sim.errors import UserError
from sim.parsing import check_seed, typed
from sim.records.rows import CallRow
from sim.records.run_dir import PROVENANCE, claim, provenance, tracked, write_json, write_text
from sim.records.store import RunStore
from sim.studies.intervals import FewTasks, clustered
from sim.studies.language import check_capabilities, engine_settings, make_engine
from sim.studies.opening import make_tasks
from sim.studies.progress import Reporter
from sim.tasks.task import HiddenProfileTask
from sim.worlds.branch_store import BranchStore
from sim.worlds.language import Elicitation, LanguageWorld
from sim.worlds.position_bias import measure_position_bias
from sim.worlds.protocol import Episodes


class ElicitationStudy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `scripts/elicitation.py` runs."""

    task: TaskConfig
    world: LanguageWorldConfig
    engine: dict[str, Any]
    model: dict[str, Any]
    seed: int
    messages: int
    modes: tuple[Elicitation, ...]
    output: str
    progress: bool = True

    def __post_init__(self) -> None:
        for name, seed in (("seed", self.seed), ("task.seed", self.task.seed)):
            check_seed(name, seed)
        if self.messages < 0:
            raise UserError(f"messages is {self.messages}; give 0 or more")
        if len(set(self.modes)) < len(self.modes) or not self.modes:
            raise UserError(f"modes is {list(self.modes)}; name at least one, each once")


@dataclass(frozen=True)
class Asked:
    """One agent's belief in one mode about one discussion: None where the answer could not be read; the order in
    which it saw the options, and what it cost."""

    mode: Elicitation
    task: HiddenProfileTask
    messages: int
    agent: int
    belief: Floats | None
    order: list[int]
    seconds: float
    calls: tuple[CallRow, ...]


def parse_elicitation(data: Mapping[str, Any]) -> ElicitationStudy:
    """The typed configuration; UserError naming what is wrong."""
    return typed(data, ElicitationStudy, "config")


def run_elicitation(data: Mapping[str, Any], overridden: Mapping[str, Any]) -> Path:
    """Run the study in a fresh run directory; writes every call, and tables/*.csv anew after each task, so that a
    study that is stopped has those of the tasks it came to."""
    config = parse_elicitation(data)
    tasks = make_tasks(config.task)
    engine_settings(config.engine)
    parse_model(config.model)
    directory = claim(Path(config.output), "elicitation", identity_hash(data), data)
    with RunStore(directory) as store, tracked(directory, "elicitation"):
        (directory / "tables").mkdir()
        for name, table in asyncio.run(_measured(config, tasks, directory, store)).items():
            print(f"{name}\n{table.round(3).to_string(index=False)}\n")
    print(directory)
    return directory


async def _measured(
    config: ElicitationStudy, tasks: tuple[HiddenProfileTask, ...], directory: Path, store: RunStore
) -> dict[str, pd.DataFrame]:
    async with make_engine(config.engine, config.model) as engine:
        check_capabilities(engine.capabilities, config.world)
        check_found(parse_model(config.model), engine.capabilities)
        write_json(directory / PROVENANCE, provenance({"model": msgspec.to_builtins(engine.capabilities)}))
        asked: list[Asked] = []
        tables: dict[str, pd.DataFrame] = {}
        with Reporter(config.progress).stage("elicit", len(tasks)) as advance:
            for place, task in enumerate(tasks):
                asked += await _about(config, engine, task, place, store)
                tables = _written(directory, tables_of(asked))
                advance(1)
        first = _world(config, engine, "choice", lambda call: store.append([call]))
        bias = await measure_position_bias(first, tasks, config.seed)
    flat = pd.DataFrame([_flat(msgspec.to_builtins(row), "picks") for row in bias])
    return tables | _written(directory, {"position_bias": flat})


def tables_of(asked: list[Asked]) -> dict[str, pd.DataFrame]:
    """The tables of the beliefs asked for so far, by name."""
    return {
        "modes": modes_table(asked),
        "agreement": agreement_table(asked),
        "positions": positions_table(asked),
    }


def _written(directory: Path, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    for name, table in tables.items():
        write_text(directory / "tables" / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))
    return tables


def _world(
    config: ElicitationStudy, engine: Engine, mode: Elicitation, log: Callable[[CallRow], None]
) -> LanguageWorld:
    settings = msgspec.structs.replace(config.world.settings, elicitation=mode)
    return LanguageWorld(engine, settings, BranchStore(), config.messages + 1, log)


async def _about(
    config: ElicitationStudy, engine: Engine, task: HiddenProfileTask, place: int, store: RunStore
) -> list[Asked]:
    """One free round-robin discussion, and every mode's beliefs before it and after each message.

    Modes take turns in being first: the first one reads the prompt, the others may find it in a cache.
    """
    speaking = _world(config, engine, config.modes[0], lambda call: store.append([call]))
    state = await speaking.open(Episodes((task,), np.array([config.seed])))
    asked: list[Asked] = []
    for messages in range(config.messages + 1):
        heard = speaking.view(state).transcripts[0]
        turn = (place + messages) % len(config.modes)
        for mode in config.modes[turn:] + config.modes[:turn]:
            asked += await _ask(config, engine, mode, task, heard, store)
        if messages < config.messages:
            options = candidates(speaking.view(state), free_messages(), make_router("round_robin"))
            state = await speaking.branch(state, options)
    return asked


async def _ask(
    config: ElicitationStudy,
    engine: Engine,
    mode: Elicitation,
    task: HiddenProfileTask,
    heard: tuple[Message, ...],
    store: RunStore,
) -> list[Asked]:
    """All agents' beliefs in one mode, asked together."""
    calls: list[CallRow] = []
    world = _world(config, engine, mode, calls.append)
    started = time.perf_counter()
    beliefs = await world.elicit(task, config.seed, heard, f"{mode} {len(heard)}")
    seconds = (time.perf_counter() - started) / task.n_agents
    store.append(calls)
    return [
        Asked(
            mode, task, len(heard), agent, belief, world.order(task, config.seed, agent), seconds,
            tuple(call for call in calls if call.agent == agent),
        )
        for agent, belief in enumerate(beliefs)
    ]  # fmt: skip


def modes_table(asked: list[Asked]) -> pd.DataFrame:
    """A row per mode: accuracy (unreadable answers are wrong, ties split), confidence of readable ones, and means
    per belief of calls, tokens and seconds; beliefs of all agents of a discussion are asked together."""
    rows = []
    for mode in dict.fromkeys(item.mode for item in asked):
        mine = [item for item in asked if item.mode == mode]
        read = [item.belief for item in mine if item.belief is not None]
        rows.append(
            {
                "mode": mode,
                "n": len(mine),
                "unreadable": len(mine) - len(read),
                **_interval("accuracy", [_right(item) for item in mine], mine),
                "confidence": float(np.mean([belief.max() for belief in read])) if read else np.nan,
                "calls": float(np.mean([len(item.calls) for item in mine])),
                **{name: _mean_calls(mine, name) for name in _TOKENS},
                "seconds": float(np.mean([item.seconds for item in mine])),
            }
        )
    return pd.DataFrame(rows)


_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")


def _mean_calls(mine: list[Asked], name: str) -> float:
    """Mean per belief of a count of its calls; NaN where the engine does not say."""
    counts = [[getattr(call, name) for call in item.calls] for item in mine]
    if any(count is None for each in counts for count in each):
        return float("nan")
    return float(np.mean([sum(each) for each in counts]))


def agreement_table(asked: list[Asked]) -> pd.DataFrame:
    """A row per pair of modes, over the beliefs that both could be read in: share with the same option on top
    (ties split), and total variation. `unreadable` counts the beliefs left out."""
    found = {(item.mode, item.task.id, item.messages, item.agent): item for item in asked}
    rows = []
    for first, second in itertools.combinations(dict.fromkeys(item.mode for item in asked), 2):
        pairs = [(item, found[(second, *key[1:])]) for key, item in found.items() if key[0] == first]
        read = [
            (one, one.belief, other.belief)
            for one, other in pairs
            if one.belief is not None and other.belief is not None
        ]
        row: dict[str, object] = {
            "modes": f"{first}, {second}",
            "n": len(read),
            "unreadable": len(pairs) - len(read),
        }
        if read:
            about = [one for one, _, _ in read]
            same = [float(top_shares(a) @ top_shares(b)) for _, a, b in read]
            distance = [float(np.abs(a - b).sum() / 2) for _, a, b in read]
            row |= _interval("same_option", same, about) | _interval("total_variation", distance, about)
        rows.append(row)
    return pd.DataFrame(rows)


def positions_table(asked: list[Asked]) -> pd.DataFrame:
    """Where in the list that an agent was shown its top option stood, by mode and number of options K: shares by
    displayed position, 1/K each without bias since the orders are seeded. For `choice_cyclic` it is the first of
    the K orders."""
    rows = []
    for mode, size in sorted({(item.mode, item.task.n_options) for item in asked}):
        mine = [item for item in asked if (item.mode, item.task.n_options) == (mode, size)]
        seen = [top_shares(item.belief)[item.order] for item in mine if item.belief is not None]
        shares = np.mean(seen, axis=0).tolist() if seen else [None] * size
        rows.append(
            _flat({"mode": mode, "n_options": size, "n": len(seen), "displayed": shares}, "displayed")
        )
    return pd.DataFrame(rows)


def _flat(row: dict[str, Any], name: str) -> dict[str, object]:
    """A row with a list in it as one column an entry, 1-based."""
    return {
        key: value
        for field, content in row.items()
        for key, value in (
            [(f"{name}_{place}", entry) for place, entry in enumerate(content, 1)]
            if field == name
            else [(field, content)]
        )
    }


def _right(item: Asked) -> float:
    return 0.0 if item.belief is None else float(top_shares(item.belief)[item.task.answer_index])


def _interval(name: str, values: list[float], about: list[Asked]) -> dict[str, float]:
    """A mean with its interval, clustered by task."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewTasks)
        found = clustered(np.array(values), np.array([item.task.id for item in about]))
    return {name: found.estimate, f"{name}_low": found.low, f"{name}_high": found.high}
