"""Language-model agents: who is shown what, what is asked of the model, and what becomes of its answers.

A discussion's branches and beliefs run concurrently; the record is advanced by the code shared with replay.
Only this room sees private clues, and it shows each agent its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec
import numpy as np

from sim.arrays import Floats
from sim.discussion.actions import ACTION_NAMES, NOBODY, VOTE
from sim.discussion.beliefs import from_choice, from_probabilities, uniform
from sim.discussion.ending import ABSTAIN, Horizon
from sim.discussion.naming import names_of
from sim.discussion.public import Message
from sim.discussion.text import novelty, overlap, vocabulary
from sim.engines.protocol import (
    BadReply,
    ChatRequest,
    ChooseRequest,
    Engine,
    EngineDown,
    EngineError,
    Turn,
    Usage,
)
from sim.errors import UserError
from sim.randomness import keys, text_key
from sim.randomness import uniform as uniforms
from sim.records.rows import FULL_INFORMATION, OPENING, BranchRow, CallRow, VoteRow
from sim.tasks.task import HiddenProfileTask
from sim.worlds.branch_store import BranchStore
from sim.worlds.group import Group
from sim.worlds.prompts import LABELS, Context, Layout, participant_turns, prompts_hash, render
from sim.worlds.protocol import WorldFailure
from sim.worlds.row_world import RowState, RowWorld

R = TypeVar("R")
Elicitation = Literal["choice", "choice_cyclic", "verbal"]
_JSON_ANSWER = re.compile(r"\{[^{}]*\}")
_THINKING = re.compile(r"(?s)<think>.*?(</think>|$)")


class LanguageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How language-model agents talk and are asked."""

    elicitation: Elicitation = "choice"
    final_vote: Literal["choice", "verbal"] = "choice"
    vote_attempts: int = 1
    """How often a verbal vote is asked for until it can be read."""
    option_order: Literal["seeded", "published"] = "seeded"
    """`seeded`: an order of its own for every agent, so that position favours no option."""
    context: Context = "whole"
    layout: Layout = "private_last"
    max_words: int = 60
    max_tokens: int = 96
    verbal_tokens: int = 64
    vote_tokens: int = 256
    temperature: float = 0.8
    top_p: float = 0.95

    def __post_init__(self) -> None:
        for name in ("max_words", "max_tokens", "verbal_tokens", "vote_tokens", "vote_attempts"):
            if getattr(self, name) < 1:
                raise UserError(f"world.settings.{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.temperature <= 2:
            raise UserError(f"world.settings.temperature is {self.temperature}; it must lie in [0, 2]")
        if not 0 < self.top_p <= 1:
            raise UserError(f"world.settings.top_p is {self.top_p}; it must lie in (0, 1]")


@dataclass(frozen=True)
class Seat:
    """One agent at one moment of one discussion: what it is asked about."""

    task: HiddenProfileTask
    seed: int
    agent: int
    path: str
    transcript: tuple[Message, ...]
    full_information: bool

    @property
    def clues(self) -> tuple[str, ...]:
        """What this agent alone knows; everything under full information."""
        hidden = self.task.hidden_information
        return hidden if self.full_information else (hidden[self.agent],)

    @property
    def name(self) -> str:
        """The agent's name."""
        return names_of(self.task)[self.agent]


@dataclass
class _Tokens:
    """Tokens that a row took, summed over its calls."""

    prompt: int = 0
    completion: int = 0

    def add(self, usage: Usage) -> None:
        self.prompt += usage.prompt_tokens
        self.completion += usage.completion_tokens


def option_order(task: HiddenProfileTask, seed: int, agent: int) -> list[int]:
    """The order in which an agent is shown the options: seeded, so that position favours none."""
    dice = uniforms(keys("option order", np.uint64(text_key(task.id)), seed, agent), task.n_options)[0]
    return [int(option) for option in np.argsort(dice)]


class LanguageWorld(RowWorld):
    """Agents played by a language model; implements `World[RowState]`."""

    def __init__(
        self,
        engine: Engine,
        settings: LanguageSettings,
        store: BranchStore,
        horizon: Horizon = None,
        log: Callable[[CallRow], None] = lambda row: None,
        group: Group | None = None,
    ) -> None:
        """`log` is told of every model call; `engine` answers for every agent, unless a `group` says whose
        engine does."""
        super().__init__(horizon, float(settings.max_words), has_text=True)
        self.engine = engine
        self.settings = settings
        self.store = store
        self.log = log
        self.group = group

    def identity(self) -> dict[str, object]:
        """What must agree between calibration and deployment: model, prompts, settings."""
        speakers = (
            {"engine": msgspec.to_builtins(self.engine.capabilities)}
            if self.group is None
            else {"seats": self.group.identity()}
        )
        return {
            "kind": "language",
            **speakers,
            "prompts": prompts_hash(),
            "settings": msgspec.to_builtins(self.settings),
        }

    async def opening_row(self, task: HiddenProfileTask, seed: int, root: str) -> BranchRow:
        """First beliefs of every agent."""

        async def make() -> BranchRow:
            seats = [Seat(task, seed, i, root, (), root == FULL_INFORMATION) for i in range(task.n_agents)]
            tokens = _Tokens()
            beliefs, stale = await self._beliefs(seats, None, tokens)
            return BranchRow(
                task.id, seed, root, 0, OPENING, NOBODY, 0, 0.0, 0.0, 0.0, beliefs, stale,
                prompt_tokens=tokens.prompt, completion_tokens=tokens.completion,
            )  # fmt: skip

        return await self._surely(self.store.branch((task.id, seed, root), make))

    async def branch_row(self, state: RowState, row: int, action: int, speaker: int, path: str) -> BranchRow:
        """The message of one branch and everybody's beliefs after it; a vote has no message."""
        task, seed = state.episodes[row]

        async def make() -> BranchRow:
            tokens = _Tokens()
            heard = state.view.transcripts[row]
            text = ""
            if action != VOTE:
                seat = Seat(task, seed, speaker, path, heard, state.full_information)
                text = await self._message(seat, action, self._leader(state, row), tokens)
            after = heard if action == VOTE else (*heard, Message(speaker, ACTION_NAMES[action], text))
            seats = [Seat(task, seed, i, path, after, state.full_information) for i in range(task.n_agents)]
            beliefs, stale = await self._beliefs(seats, state.view.beliefs[row], tokens)
            earlier = [message.text for message in heard]
            base = (task.description, *task.shared_information, *earlier)
            return BranchRow(
                task=task.id,
                seed=seed,
                path=path,
                round=int(state.view.rounds[row]) + 1,
                action=ACTION_NAMES[action],
                speaker=speaker,
                draw=_draw_of(path),
                words=float(len(text.split())),
                novelty=novelty(text, vocabulary(base)) if text else 0.0,
                overlap=overlap(text, (*task.shared_information, *earlier)) if action != VOTE else 0.0,
                beliefs=beliefs,
                stale=stale,
                text=text,
                prompt_tokens=tokens.prompt,
                completion_tokens=tokens.completion,
            )

        return await self._surely(self.store.branch((task.id, seed, path), make))

    async def vote_row(self, state: RowState, row: int, path: str) -> VoteRow:
        """Secret final votes; an unparsable one is an abstention with the last belief."""
        task, seed = state.episodes[row]

        async def make() -> VoteRow:
            tokens = _Tokens()
            heard = state.view.transcripts[row]
            seats = [Seat(task, seed, i, path, heard, state.full_information) for i in range(task.n_agents)]
            verbal = self.settings.final_vote == "verbal"
            votes = await asyncio.gather(*(self._ask(seat, "vote", verbal, tokens) for seat in seats))
            last = state.view.beliefs[row]
            return VoteRow(
                task=task.id,
                seed=seed,
                path=path,
                choice=[ABSTAIN if vote is None else int(vote.argmax()) for vote in votes],
                beliefs=[(last[i] if vote is None else vote).tolist() for i, vote in enumerate(votes)],
                orders=[self.order(task, seed, agent) for agent in range(task.n_agents)],
                prompt_tokens=tokens.prompt,
                completion_tokens=tokens.completion,
            )

        return await self._surely(self.store.votes((task.id, seed, path), make))

    async def first_belief(
        self, task: HiddenProfileTask, seed: int, agent: int, order: Sequence[int]
    ) -> Floats | None:
        """An agent's belief (K,) before any message, by choice among options shown in a given order; it
        comes in their published order. None where the answer cannot be read; raises WorldFailure."""
        seat = Seat(task, seed, agent, "", (), False)
        return await self._surely(self._ask_by_choice(seat, "belief", list(order), _Tokens()))

    async def elicit(
        self, task: HiddenProfileTask, seed: int, transcript: tuple[Message, ...], path: str
    ) -> list[Floats | None]:
        """What every agent believes about a discussion (K,), asked as the settings say and kept nowhere; None
        where an answer cannot be read. `path` tells calls apart. Raises WorldFailure."""
        seats = [Seat(task, seed, agent, path, transcript, False) for agent in range(task.n_agents)]
        verbal = self.settings.elicitation == "verbal"
        asked = (self._ask(seat, "belief", verbal, _Tokens()) for seat in seats)
        return await self._surely(asyncio.gather(*asked))

    def order(self, task: HiddenProfileTask, seed: int, agent: int) -> list[int]:
        """The order in which an agent is shown the options."""
        published = self.settings.option_order == "published"
        return list(range(task.n_options)) if published else option_order(task, seed, agent)

    @staticmethod
    async def _surely(made: Awaitable[R]) -> R:
        """Turn an engine that gave up into a failed episode; one that is gone stops the run, resumable."""
        try:
            return await made
        except EngineDown:
            raise
        except EngineError as error:
            raise WorldFailure(str(error)) from error

    def _engine(self, seat: Seat) -> Engine:
        """What answers for an agent: its own model alone."""
        return self.engine if self.group is None else self.group.engine(seat.task, seat.seed, seat.agent)

    @staticmethod
    def _leader(state: RowState, row: int) -> str:
        return state.episodes[row][0].possible_answers[int(state.view.beliefs[row].mean(0).argmax())]

    async def _message(self, seat: Seat, action: int, leader: str, tokens: _Tokens) -> str:
        question = render(ACTION_NAMES[action], name=seat.name, leader=leader)
        request = ChatRequest(
            turns=self._turns(seat, question),
            max_tokens=self.settings.max_tokens,
            key=_request_key(seat, "message"),
            temperature=self.settings.temperature,
            top_p=self.settings.top_p,
            affinity=f"{seat.task.id}/{seat.seed}",
        )
        reply = await self._engine(seat).chat(request)
        tokens.add(reply.usage)
        self._log(seat, "message", request.turns, reply.usage, reply.finish_reason)
        return clean_message(reply.text, names_of(seat.task), self.settings.max_words)

    async def _beliefs(
        self, seats: Sequence[Seat], last: Floats | None, tokens: _Tokens
    ) -> tuple[list[list[float]], list[bool]]:
        """Beliefs (N, K) of all seats at once, and which of them are stale."""
        verbal = self.settings.elicitation == "verbal"
        found = await asyncio.gather(*(self._ask(seat, "belief", verbal, tokens) for seat in seats))
        beliefs = []
        for seat, belief in zip(seats, found, strict=True):
            kept = uniform(seat.task.n_options) if last is None else last[seat.agent]
            beliefs.append((kept if belief is None else belief).tolist())
        return beliefs, [belief is None for belief in found]

    async def _ask(
        self, seat: Seat, purpose: Literal["belief", "vote"], verbal: bool, tokens: _Tokens
    ) -> Floats | None:
        """An agent's belief (K,) in the options' published order; None where its answer cannot be read."""
        order = self.order(seat.task, seat.seed, seat.agent)
        if verbal:
            return await self._ask_verbally(seat, purpose, order, tokens)
        cyclic = purpose == "belief" and self.settings.elicitation == "choice_cyclic"
        turns = range(len(order)) if cyclic else range(1)
        answers = await asyncio.gather(
            *(self._ask_by_choice(seat, purpose, order[turn:] + order[:turn], tokens) for turn in turns)
        )
        read = [answer for answer in answers if answer is not None]
        return from_probabilities(np.mean(read, axis=0)) if read else None

    async def _ask_by_choice(
        self, seat: Seat, purpose: str, order: list[int], tokens: _Tokens
    ) -> Floats | None:
        question = self._question(seat, purpose, order)
        labels = tuple(LABELS[: len(order)])
        request = ChooseRequest(self._turns(seat, question), labels, f"{seat.task.id}/{seat.seed}")
        try:
            reply = await self._engine(seat).choose(request)
        except BadReply as error:
            self._log(seat, purpose, request.turns, Usage(0, 0), "unparsable", str(error))
            return None
        tokens.add(reply.usage)
        self._log(seat, purpose, request.turns, reply.usage, "stop")
        belief = np.empty(len(order))
        belief[order] = reply.probabilities
        return belief

    async def _ask_verbally(
        self, seat: Seat, purpose: str, order: list[int], tokens: _Tokens
    ) -> Floats | None:
        """A vote that cannot be read is asked for again, as often as the settings say."""
        attempts = self.settings.vote_attempts if purpose == "vote" else 1
        for attempt in range(attempts):
            belief = await self._attempt(seat, purpose, order, tokens, attempt)
            if belief is not None:
                return belief
        return None

    async def _attempt(
        self, seat: Seat, purpose: str, order: list[int], tokens: _Tokens, attempt: int
    ) -> Floats | None:
        labels = LABELS[: len(order)]
        request = ChatRequest(
            turns=self._turns(seat, self._question(seat, f"{purpose}_verbal", order)),
            max_tokens=self.settings.vote_tokens if purpose == "vote" else self.settings.verbal_tokens,
            key=_request_key(seat, f"{purpose} {attempt}" if attempt else purpose),
            temperature=self.settings.temperature,
            top_p=self.settings.top_p,
            affinity=f"{seat.task.id}/{seat.seed}",
            schema=answer_schema(labels, reason=purpose == "vote"),
        )
        reply = await self._engine(seat).chat(request)
        tokens.add(reply.usage)
        self._log(seat, purpose, request.turns, reply.usage, reply.finish_reason)
        parsed = parse_answer(reply.text, labels)
        return None if parsed is None else from_choice(order[parsed[0]], parsed[1], len(order))

    @staticmethod
    def _question(seat: Seat, template: str, order: list[int]) -> str:
        options = [seat.task.possible_answers[option] for option in order]
        return render(template, name=seat.name, options=options, labels=LABELS)

    def _turns(self, seat: Seat, question: str) -> tuple[Turn, ...]:
        return participant_turns(
            seat.task,
            seat.clues,
            seat.agent,
            seat.transcript,
            question,
            self.settings.layout,
            self.settings.context,
        )

    def _log(
        self, seat: Seat, purpose: str, turns: tuple[Turn, ...], usage: Usage, finish: str, error: str = ""
    ) -> None:
        content = msgspec.json.encode(turns)
        self.log(
            CallRow(
                task=seat.task.id,
                seed=seat.seed,
                path=seat.path,
                purpose=purpose,
                agent=seat.agent,
                prompt_hash=hashlib.blake2b(content, digest_size=8).hexdigest(),
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
                latency_s=usage.latency_s,
                retries=usage.retries,
                finish_reason=finish,
                model=self._engine(seat).capabilities.model,
                replica=usage.replica,
                error=error,
            )
        )


def _request_key(seat: Seat, purpose: str) -> int:
    key = keys(
        purpose, np.uint64(text_key(seat.task.id)), seat.seed, np.uint64(text_key(seat.path)), seat.agent
    )
    return int(key[0])


def _draw_of(path: str) -> int:
    step = path.rsplit("/", 1)[-1]
    return int(step.rsplit("#", 1)[1]) if "#" in step else 0


def clean_message(text: str, names: Sequence[str], max_words: int) -> str:
    """A model's message as published: no thinking, no name in front, one paragraph, at most max_words."""
    words = _THINKING.sub("", text).split()
    if words and ":" in words[0] and words[0].strip("*:") in names:
        words = words[1:]
    return " ".join(words[:max_words])


def answer_schema(labels: str, reason: bool) -> dict[str, object]:
    """JSON schema of a verbal answer; the reason, where wanted, comes first."""
    answer: dict[str, object] = {
        "answer": {"type": "string", "enum": list(labels)},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    }
    properties = {"reason": {"type": "string", "maxLength": 600}, **answer} if reason else answer
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def parse_answer(text: str, labels: str) -> tuple[int, float] | None:
    """(position of the label, confidence) of a verbal answer; None where there is none, never a guess."""
    for candidate in reversed(_JSON_ANSWER.findall(_THINKING.sub("", text))):
        try:
            content = json.loads(candidate)
        except json.JSONDecodeError:
            continue
        answer, confidence = content.get("answer"), content.get("confidence")
        given = isinstance(confidence, int | float) and not isinstance(confidence, bool)
        if (
            isinstance(answer, str)
            and len(answer) == 1
            and answer in labels
            and given
            and 0 <= confidence <= 1
        ):
            return labels.index(answer), float(confidence)
    return None
