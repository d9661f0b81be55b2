"""A scripted engine that knows which component is asking, and rooms to work in without a model."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim.arrays import Floats
from sim.captain.agents import AgentCard, AgentLibrary
from sim.captain.config import Price, Settings
from sim.captain.desk import Desk
from sim.captain.problems import Number, Problem
from sim.captain.replies import Reply
from sim.captain.retrieval import BM25, Retriever, Scorer
from sim.captain.room import Member, Room, Team
from sim.captain.sandbox import Limits, Sandbox, make_sandbox
from sim.captain.toolbox import BUILT_IN, NO_TOOLS, Toolbox, read_tools
from sim.engines.protocol import ChatRequest, ChooseRequest
from sim.engines.scripted import SCRIPTED, ScriptedEngine
from sim.errors import UserError
from sim.parsing import typed
from sim.records.captain_rows import CaptainCallRow, CaptainEventRow, Identity

_WHO = {
    "captain": "You lead the work",
    "selector": "You choose who fills",
    "generator": "You describe experts",
    "reflector": "You review the conversation",
    "verifier": "You check an answer",
    "solo": "You solve a task on your own",
    "conductor": "You conduct the work",
    "consulted": "You are consulted once",
}

Line = str | Reply


def component_of(request: ChatRequest | ChooseRequest) -> str:
    """Which component's prompt this is; `expert` where it is none of the others."""
    return next((name for name, mark in _WHO.items() if mark in request.turns[0].content), "expert")


@dataclass
class Playbook:
    """What each component says, in order; its last line is said again. Callables see the request."""

    lines: dict[str, list[Line | Callable[[ChatRequest], Line]]]
    weights: Callable[[ChooseRequest], tuple[float, ...]] = field(
        default=lambda request: tuple([0.9] + [0.1 / (len(request.labels) - 1)] * (len(request.labels) - 1))
    )
    structured: bool = True

    def write(self, request: ChatRequest) -> str:
        """The next line of whoever is asked."""
        waiting = self.lines[component_of(request)]
        line = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        said = line(request) if callable(line) else line
        return said if isinstance(said, str) else msgspec.json.encode(said).decode()

    def engine(self) -> ScriptedEngine:
        """The engine that plays it."""
        found = msgspec.structs.replace(SCRIPTED, structured=self.structured)
        return ScriptedEngine(self.write, self.weights, found)


@dataclass
class Stage:
    """A room with what was recorded in it."""

    room: Room
    engine: ScriptedEngine
    calls: list[CaptainCallRow]
    events: list[CaptainEventRow]

    def kinds(self, kind: str) -> list[CaptainEventRow]:
        """Events of one kind."""
        return [row for row in self.events if row.kind == kind]

    def prompts(self, component: str) -> list[str]:
        """The user turns a component was shown."""
        return [r.turns[-1].content for r in self.engine.requests if component_of(r) == component]


SMALL_BOMB = """
import os, time
for number in range(60):
    try:
        if os.fork() == 0:
            time.sleep(2)
            os._exit(0)
    except OSError:
        print('refused after', number)
        break
"""
"""Starts 60 processes at most, each of which ends by itself."""

SUM = Problem(
    "sum", "mathematics", "What is 20 + 22? (terminate nothing)", Number(42.0), "a number", distractor="44"
)
CARDS = (
    AgentCard(
        "algebraist", "Algebraist", "Solves equations and sums.", "Solve.", "Talk.", ("solve_equation",)
    ),
    AgentCard("number_theorist", "Number_Theorist", "Knows primes and remainders.", "Factor.", "Talk."),
    AgentCard("data-analyst", "Data: Analyst", "Reads tables: columns, rows, means.", "Read.", "Ask."),
)


@pytest.fixture(scope="session")
def toolbox() -> Toolbox:
    """The built-in tools."""
    return read_tools(BUILT_IN)


@pytest.fixture(scope="session")
def sandbox(toolbox: Toolbox) -> Sandbox:
    """A real sandbox; skips where there is none."""
    try:
        return make_sandbox("bubblewrap", Limits(wall_s=20), {"CAPTAIN_TOOLS": toolbox.folder})
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def bombproof(sandbox: Sandbox) -> Sandbox:
    """The sandbox, after a small bomb has shown that the kernel refuses processes: never try a large one before."""
    small = Limits(wall_s=10, processes=16)
    done = asyncio.run(sandbox.run({"main.py": SMALL_BOMB}, limits=small))
    started = re.match(r"refused after (\d+)\n", done.stdout)
    if done.verdict != "ok" or started is None or int(started[1]) >= 16:
        pytest.fail(f"processes are not bounded here, so no fork bomb was tried: {done}")
    return sandbox


class Broken:
    """A scorer whose first look-up fails."""

    name = "bm25"
    failed = False

    def scores(self, query: str, texts: tuple[str, ...]) -> tuple[Floats, int]:
        """Fails once."""
        if not self.failed:
            self.failed = True
            raise RuntimeError("embedding broke")
        return BM25().scores(query, texts)


@pytest.fixture
def broken() -> Broken:
    """Such a scorer."""
    return Broken()


@pytest.fixture
def stage() -> Callable[..., Stage]:
    """Makes a room whose model is a playbook."""

    def make(
        playbook: Playbook | Mapping[str, Sequence[Any]],
        *,
        problem: Problem = SUM,
        cards: Sequence[AgentCard] | None = CARDS,
        tools: Toolbox = NO_TOOLS,
        box: Sandbox | None = None,
        scorer: Scorer | None = None,
        store: Path | None = None,
        **settings: Any,
    ) -> Stage:
        book = (
            playbook
            if isinstance(playbook, Playbook)
            else Playbook({k: list(v) for k, v in playbook.items()})
        )
        engine = book.engine()
        chosen = typed(settings, Settings, "settings")
        calls: list[CaptainCallRow] = []
        events: list[CaptainEventRow] = []
        who = Identity("captain", problem.scenario, problem.id, 0, "x")
        desk = Desk({"default": engine}, chosen, who, {"scripted": Price(1.0, 2.0)}, calls.append)
        room = Room(
            desk,
            problem,
            Retriever(scorer or BM25(), chosen.top_k, {"bm25": 0.1, "embedding": 0.3}),
            events.append,
            None if cards is None else AgentLibrary(tuple(cards), store),
            tools,
            box,
        )
        return Stage(room, engine, calls, events)

    return make


@pytest.fixture
def two() -> Team:
    """A team of two library agents."""
    members = tuple(
        Member(card.name, card, (f"role of {card.name}",), card.tools, "library") for card in CARDS[:2]
    )
    return Team("team-two", ("a", "b"), members)


@pytest.fixture
def playbook() -> type[Playbook]:
    """The class, for tests that need more than lines."""
    return Playbook


def shown_ids(request: ChatRequest) -> list[str]:
    """The agent ids a selector is offered."""
    return re.findall(r"(?m)^(\S+) \(", request.turns[-1].content)


def as_json(**fields: object) -> str:
    """A reply as a model writes it."""
    return json.dumps(fields)
