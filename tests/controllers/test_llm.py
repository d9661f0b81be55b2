"""The prompted controller: what it shows, what it makes of an answer, and what it cannot show."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
import pytest

from controllers.llm import LLM, MALFORMED, Asked, prompt_hash, question
from controllers.protocol import ProposalFailure
from sim.arrays import Ints, take
from sim.discussion.actions import ACTION_NAMES, VOTE, Menu, interventions, settle
from sim.discussion.public import Message, PublicView, opening
from sim.discussion.routing import action_conditional, candidates
from sim.discussion.state import observe
from sim.engines.protocol import (
    BadReply,
    Capabilities,
    ChatReply,
    ChatRequest,
    ChooseReply,
    ChooseRequest,
    EngineDown,
    EngineError,
    Usage,
)
from sim.errors import UserError
from sim.randomness import keys
from sim.tasks.demo import demo_task
from sim.tasks.task import HiddenProfileTask
from sim.worlds.prompts import names_of

TASK = demo_task()


@dataclass
class FakeEngine:
    """A fake engine, for answers and faults that a real one does not give on demand: it wants one
    intervention wherever it is listed, or raises."""

    wanted: str = "Route"
    error: EngineError | None = None
    requests: list[ChooseRequest] = field(default_factory=list)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities("fake", "r1", True, True, True, True, True, False, False)

    async def chat(self, request: ChatRequest) -> ChatReply:
        raise AssertionError("a proposal is chosen, never written")

    async def choose(self, request: ChooseRequest) -> ChooseReply:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        found = re.search(rf"^([A-Z])\. {self.wanted}", request.turns[-1].content, re.MULTILINE)
        chosen = found[1] if found else request.labels[0]
        share = 0.3 / (len(request.labels) - 1)
        return ChooseReply(
            tuple(0.7 if label == chosen else share for label in request.labels), Usage(120, 1)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def view_of(size: int, rounds: int = 2) -> PublicView:
    shape = (size, TASK.n_agents)
    beliefs = np.random.default_rng(0).dirichlet(np.ones(TASK.n_options), shape)
    view = opening(
        keys("test", np.arange(size)), beliefs, horizon=8, max_words=60.0, tasks=(TASK.public(),) * size
    )
    words = np.zeros(shape)
    words[:, 0] = 5.0
    said = (Message(0, "route", "The rent is <b>high</b>."),) * min(rounds, 1)
    return replace(view, rounds=np.full(size, rounds), words=words, transcripts=(said,) * size)


def ask(controller: LLM, view: PublicView, menu: Menu) -> Ints:
    options = candidates(view, menu, action_conditional)
    return asyncio.run(controller.propose(view, observe(view), options))


@pytest.mark.parametrize("action", ACTION_NAMES[:VOTE])
def test_the_answer_is_read_by_what_its_letter_stands_for(action: str) -> None:
    engine = FakeEngine(wanted=action.replace("_", " ").capitalize())
    assert ask(LLM(engine), view_of(12), interventions()).tolist() == [ACTION_NAMES.index(action)] * 12
    assert {request.labels for request in engine.requests} == {("A", "B", "C", "D")}


def test_positions_are_even_over_discussions() -> None:
    """A model that always says A proposes every intervention about equally often."""
    view = view_of(2000)
    chosen = ask(LLM(FakeEngine(wanted="nothing of this")), view, interventions())
    share = np.bincount(chosen, minlength=4) / 2000
    assert np.abs(share - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / 2000)


def test_only_the_vote_variant_is_offered_the_vote_and_from_the_second_round() -> None:
    menu = interventions(vote=True, without=("clarify",))
    for vote, rounds, offered in ((True, 1, True), (True, 0, False), (False, 1, False)):
        engine = FakeEngine(wanted="Vote")
        ask(LLM(engine, vote=vote), view_of(1, rounds), menu)
        text = engine.requests[0].turns[-1].content
        assert ("Vote: end" in text) == offered
        assert "Clarify" not in text
    assert ask(LLM(FakeEngine(wanted="Vote"), vote=True), view_of(2), menu).tolist() == [VOTE] * 2


def test_what_is_shown_is_the_public_record_and_nothing_private() -> None:
    view = view_of(1)
    options = candidates(view, interventions(vote=True), action_conditional)
    asked = question(view, observe(view), options, vote=True)
    shown = "\n".join(turn.content for turn in asked.turns)
    names = names_of(TASK)
    for text in (TASK.description, *TASK.shared_information, *TASK.possible_answers, *names):
        assert text in shown
    assert f"{names[0]} (route): The rent is <b>high</b>." in shown
    assert f"not spoken: {', '.join(names[1:])}" in shown
    assert "Round 3 of at most 8" in shown
    for clue in TASK.hidden_information:
        assert clue not in shown
    assert set(asked.actions) == set(range(5))


def test_private_clues_and_answer_change_nothing() -> None:
    other = replace_private()
    first, second = view_of(1), replace(view_of(1), tasks=(other.public(),))
    options = candidates(first, interventions(), action_conditional)
    assert question(first, observe(first), options, vote=False) == question(
        second, observe(second), options, vote=False
    )


def replace_private() -> HiddenProfileTask:
    return msgspec.structs.replace(
        TASK,
        hidden_information=TASK.hidden_information[::-1],
        correct_answer=next(name for name in TASK.possible_answers if name != TASK.correct_answer),
        evidence=None,
    )


def test_a_malformed_answer_is_mapped_and_a_failed_engine_fails_the_episode() -> None:
    seen: list[Asked] = []
    view = view_of(3)
    controller = LLM(FakeEngine(error=BadReply("an unoffered label")), log=seen.append)
    proposed = ask(controller, view, interventions())
    assert proposed.tolist() == [MALFORMED] * 3
    column, malformed = settle(proposed, candidates(view, interventions(), action_conditional))
    assert malformed.all()
    assert column.tolist() == [ACTION_NAMES.index("seek_evidence")] * 3
    assert [asked.error for asked in seen] == ["an unoffered label"] * 3
    with pytest.raises(ProposalFailure, match="llm: status 400"):
        ask(LLM(FakeEngine(error=EngineError("status 400"))), view, interventions())


def test_an_engine_that_is_gone_fails_no_episode_but_stops_the_run() -> None:
    with pytest.raises(EngineDown, match="server gone"):
        ask(LLM(FakeEngine(error=EngineDown("server gone"))), view_of(2), interventions())


def test_calls_are_told_with_their_discussion() -> None:
    seen: list[Asked] = []
    view = view_of(4)
    ask(LLM(FakeEngine(), log=seen.append), view, interventions())
    assert {asked.key for asked in seen} == set(view.key.tolist())
    assert {(asked.task, asked.usage.prompt_tokens, asked.error) for asked in seen} == {(TASK.id, 120, "")}


def test_the_question_depends_on_the_discussion_alone() -> None:
    view = view_of(5)
    engine, single = FakeEngine(), FakeEngine()
    ask(LLM(engine), view, interventions())
    ask(LLM(single), take(view, np.array([3])), interventions())
    assert single.requests[0] == engine.requests[3]


def test_a_world_without_texts_is_refused_and_the_model_is_in_the_identity() -> None:
    view = replace(view_of(1), tasks=(), transcripts=())
    with pytest.raises(UserError, match="a world with texts"):
        ask(LLM(FakeEngine()), view, interventions())
    described = LLM(FakeEngine(), vote=True).describe()
    assert described == {"name": "llm_vote", "model": "fake", "revision": "r1", "prompt": prompt_hash()}
