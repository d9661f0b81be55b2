"""The room of one episode: what a method works with, and the record of what happens in it.

It knows the problem, never what its answer is checked against beyond telling two answers apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from sim.captain.agents import AgentCard, AgentLibrary
from sim.captain.config import Settings
from sim.captain.desk import Call, Desk
from sim.captain.forms import Choices, Unreadable, ask
from sim.captain.graders import code_blocks, same
from sim.captain.problems import Problem, ProgramTests
from sim.captain.prompts import render
from sim.captain.replies import Reply
from sim.captain.retrieval import Hit, Retriever
from sim.captain.sandbox import Execution, Sandbox
from sim.captain.toolbox import NO_TOOLS, Toolbox
from sim.engines.protocol import Turn, Usage
from sim.randomness import uniform
from sim.records.captain_rows import CaptainEventRow

T = TypeVar("T", bound=Reply)
F = TypeVar("F")
EXECUTOR = "executor"
SANDBOX = "sandbox"


@dataclass(frozen=True)
class Member:
    """An agent in a team, under a name no other member has."""

    name: str
    card: AgentCard
    roles: tuple[str, ...]
    tools: tuple[str, ...]
    source: str
    """`library`, `generated`, `random` or `fixed`."""


@dataclass(frozen=True)
class Team:
    """Members who share a transcript. The id follows from the problem and the set of roles."""

    id: str
    roles: tuple[str, ...]
    members: tuple[Member, ...]


@dataclass
class Room:
    """One episode. Whatever is absent (library, sandbox, every tool) is an ablation or is not needed."""

    desk: Desk
    problem: Problem
    retriever: Retriever
    log: Callable[[CaptainEventRow], None]
    library: AgentLibrary | None = None
    toolbox: Toolbox = NO_TOOLS
    sandbox: Sandbox | None = None
    show: Callable[[CaptainEventRow], None] = lambda row: None
    teams: dict[str, Team] = field(default_factory=dict)
    made: list[AgentCard] = field(default_factory=list)
    """Agents generated in this episode: it can find them again, others cannot."""
    step: int = 0
    answer: str = ""
    """The best current answer."""
    talks: int = 0
    malformed: int = 0
    disputes: int = 0
    detected: int = 0
    checked: int = 0
    changes: list[tuple[str, str]] = field(default_factory=list)
    """Answers before and after a verification."""
    _events: int = 0

    @property
    def settings(self) -> Settings:
        """The condition's settings."""
        return self.desk.settings

    @property
    def task(self) -> str:
        """The user's text, verbatim, with the answer format and files that belong to it."""
        expected = self.problem.expected
        shown = expected.tests if isinstance(expected, ProgramTests) and self.settings.tests_visible else ""
        return render(
            "task",
            task=self.problem.task,
            format=self.problem.format,
            files=list(self.problem.files),
            tests=shown,
        )

    @property
    def all_tools(self) -> tuple[str, ...]:
        """The names of all tools there are."""
        return tuple(self.toolbox.tools)

    def event(self, kind: str, who: str, text: str, **details: object) -> None:
        """Record that something happened."""
        row = CaptainEventRow(self.desk.identity, self._events, self.step, kind, who, text, details)
        self._events += 1
        self.log(row)
        self.show(row)

    def said(
        self, who: str, text: str, answer: str = "", done: bool = False, planted: bool = False, **more: object
    ) -> None:
        """Record a message of a conversation."""
        self.event("message", who, text, answer=answer, done=done, planted=planted, **more)

    def ran(self, done: Execution | None, author: str) -> str:
        """Record what became of an author's code; returns what the executor says of it."""
        text, verdict = reported(done), done.verdict if done else "no_code"
        self.event("execution", EXECUTOR, text, author=author, verdict=verdict)
        return text

    async def ask(
        self,
        call: Call,
        question: tuple[Turn, ...],
        kinds: Sequence[type[T]],
        unread: Callable[[str], F],
        choices: Choices | None = None,
    ) -> T | F:
        """A reply of one of `kinds`; one that cannot be read is counted, and `unread` makes of its text what
        stands in its place. Raises EngineError (BudgetSpent among them)."""
        try:
            return await ask(self.desk, call, question, kinds, choices)
        except Unreadable as unreadable:
            self.malformed += 1
            return unread(unreadable.text)

    def same(self, one: str, other: str) -> bool:
        """Whether two answers are one, as the scenario's grader reads them."""
        return same(self.problem.expected, one, other)

    def groups(self, answers: Sequence[str]) -> list[list[int]]:
        """Indices of the answers that are given, by what they say, in order of first appearance."""
        groups: list[list[int]] = []
        for i, answer in enumerate(answers):
            if answer.strip():
                home = next((group for group in groups if self.same(answers[group[0]], answer)), None)
                if home is None:
                    groups.append([i])
                else:
                    home.append(i)
        return groups

    def draw(self, place: str, n: int) -> list[int]:
        """A random order of n things, by the key of a place."""
        dice = uniform(np.array([self.desk.key(place)], np.uint64), n)[0]
        return [int(i) for i in np.argsort(dice)]

    async def look_up(self, place: str, query: str, texts: Sequence[str]) -> tuple[Hit, ...]:
        """The nearest texts, entered in the ledger. Raises RetrievalFailure."""
        found = await asyncio.to_thread(self.retriever.find, query, texts)
        call = Call("retriever", "look_up", place)
        self.desk.enter(call, self.retriever.scorer.name, Usage(found.tokens, 0, latency_s=found.seconds))
        return found.hits

    async def execute(self, text: str, tools: Sequence[str], place: str) -> Execution | None:
        """Run the code blocks of a text with the tools it mentions; None where it holds none."""
        blocks = code_blocks(text)
        if self.sandbox is None or not blocks:
            return None
        code = "\n\n".join(blocks)
        imports = self.toolbox.imports(code, tools)
        files = {**self.problem.files, "main.py": code, "given_tools.py": imports}
        done = await self.sandbox.run(files, ("-c", _RUN))
        self.desk.enter(
            Call(EXECUTOR, "execution", place), SANDBOX, Usage(0, 0, latency_s=done.seconds), done.verdict
        )
        return done


_RUN = (
    "import os, runpy, sys; sys.path[:0] = [os.getcwd(), os.environ.get('CAPTAIN_TOOLS', '')]; "
    "import given_tools; runpy.run_path('main.py', "
    "{k: v for k, v in vars(given_tools).items() if not k.startswith('_')}, '__main__')"
)


def reported(done: Execution | None) -> str:
    """What the executor says of a run."""
    if done is None:
        return "There is no code block to run. Put Python into a ```python block."
    return render(
        "execution", verdict=done.verdict, code=done.exit_code, stdout=done.stdout, stderr=done.stderr
    )
