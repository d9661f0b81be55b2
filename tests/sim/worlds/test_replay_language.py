"""Language and replay worlds: what is shown and asked, what is kept, and that a replay needs no model."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from sim.arrays import Bools
from sim.discussion.actions import ROUTE, VOTE, free_messages, interventions
from sim.discussion.ending import ABSTAIN
from sim.discussion.public import digest
from sim.discussion.routing import candidates, make_router
from sim.engines.protocol import BadReply, ChatRequest, ChooseRequest, EngineError
from sim.engines.scripted import ScriptedEngine
from sim.records.rows import BranchRow, CallRow, VoteRow
from sim.tasks import HiddenProfileTask, demo_task
from sim.worlds.branch_store import BranchStore
from sim.worlds.language import LanguageSettings, LanguageWorld, clean_message, option_order, parse_answer
from sim.worlds.protocol import Episodes, MissingBranch, WorldFailure
from sim.worlds.replay import ReplayWorld
from sim.worlds.row_world import RowState

ROUTER = make_router("action_conditional")
TASK = demo_task()
ONE = Episodes((TASK,), np.zeros(1, np.int64))


def honest(request: ChatRequest) -> str:
    """A message that depends on the prompt, as a model's would."""
    return f"Point {request.key % 97}: the rent is high near station {request.key % 13}."


def first_label(request: ChooseRequest) -> tuple[float, ...]:
    """Always sure of the first label shown."""
    rest = 0.1 / (len(request.labels) - 1)
    return (0.9, *([rest] * (len(request.labels) - 1)))


def world(
    engine: ScriptedEngine | None = None, store: BranchStore | None = None, **settings: object
) -> LanguageWorld:
    """A language world over a scripted engine."""
    chosen = LanguageSettings(**settings)  # type: ignore[arg-type]
    return LanguageWorld(engine or ScriptedEngine(honest, first_label), chosen, store or BranchStore(), 4)


def grown(w: LanguageWorld | ReplayWorld, rounds: int = 2, vote: bool = False) -> RowState:
    """A discussion in which the first candidate is committed every round."""
    state = asyncio.run(w.open(ONE))
    for _ in range(rounds):
        branches = asyncio.run(w.branch(state, candidates(w.view(state), interventions(vote), ROUTER)))
        state = w.select(branches, np.array([0]))
    return state


def test_beliefs_come_back_in_the_published_order() -> None:
    state = asyncio.run(world().open(ONE))
    for agent in range(TASK.n_agents):
        assert state.view.beliefs[0, agent].argmax() == option_order(TASK, 0, agent)[0]
    assert len({tuple(option_order(TASK, seed, 0)) for seed in range(20)}) > 1


def test_cyclic_elicitation_removes_a_position_bias() -> None:
    state = asyncio.run(world(elicitation="choice_cyclic").open(ONE))
    np.testing.assert_allclose(state.view.beliefs, 1 / TASK.n_options, atol=1e-9)


def test_each_agent_sees_its_own_clue_and_nobody_elses() -> None:
    engine = ScriptedEngine(honest, first_label)
    grown(world(engine))
    for request in engine.requests:
        shown = " ".join(turn.content for turn in request.turns)
        holders = [clue for clue in TASK.hidden_information if clue in shown]
        assert len(holders) == 1


def test_full_information_shows_every_clue() -> None:
    engine = ScriptedEngine(honest, first_label)
    asyncio.run(world(engine).open(ONE, full_information=True))
    for request in engine.requests:
        assert all(clue in request.turns[1].content for clue in TASK.hidden_information)


def test_constant_text_comes_first() -> None:
    engine = ScriptedEngine(honest, first_label)
    grown(world(engine))
    assert len({request.turns[0].content for request in engine.requests}) == 1
    private = ScriptedEngine(honest, first_label)
    asyncio.run(world(private, layout="private_first").open(ONE))
    assert all(request.turns[1].content.startswith("You are ") for request in private.requests)


def test_every_request_is_bounded_and_branches_have_keys_of_their_own() -> None:
    engine = ScriptedEngine(honest, first_label)
    grown(world(engine))
    texts = [request for request in engine.requests if isinstance(request, ChatRequest)]
    assert all(request.max_tokens == 96 for request in texts)
    assert len({request.key for request in texts}) == len(texts)


def test_nothing_is_asked_twice_and_conditions_share_branches() -> None:
    engine, store = ScriptedEngine(honest, first_label), BranchStore()
    first = grown(world(engine, store))
    asked = len(engine.requests)
    again = grown(world(engine, store))
    assert len(engine.requests) == asked
    np.testing.assert_array_equal(digest(first.view), digest(again.view))


def test_concurrent_askers_wait_for_one_answer() -> None:
    engine, store = ScriptedEngine(honest, first_label), BranchStore()
    w = world(engine, store)

    async def twice() -> None:
        await asyncio.gather(w.open(ONE), w.open(ONE))

    asyncio.run(twice())
    assert len(engine.requests) == TASK.n_agents


def test_a_recorded_discussion_replays_bit_for_bit_without_a_model() -> None:
    rows: list[BranchRow | VoteRow] = []
    recorded = world(store=BranchStore(on_new=rows.append))
    state = grown(recorded)
    votes = asyncio.run(recorded.final_votes(state))
    import msgspec

    branches = [row for row in rows if isinstance(row, BranchRow)]
    copies = msgspec.json.decode(msgspec.json.encode(branches), type=list[BranchRow])
    kept = [row for row in rows if isinstance(row, VoteRow)]
    replayed = ReplayWorld(BranchStore(copies, kept), 4, 60.0, has_text=True)
    again = grown(replayed)
    np.testing.assert_array_equal(digest(state.view), digest(again.view))
    assert state.view.transcripts == again.view.transcripts
    np.testing.assert_array_equal(asyncio.run(replayed.final_votes(again)).beliefs, votes.beliefs)


def test_a_path_that_was_not_expanded_is_missing_by_name() -> None:
    rows: list[BranchRow | VoteRow] = []
    grown(world(store=BranchStore(on_new=rows.append)), rounds=1)
    branches = [row for row in rows if isinstance(row, BranchRow)]
    replayed = ReplayWorld(BranchStore(branches), 4, 60.0, has_text=True)
    with pytest.raises(
        MissingBranch, match=r"task demo, seed 0, path 'challenge@\d/challenge@\d': no branch"
    ):
        grown(replayed, rounds=2)
    state = grown(replayed, rounds=1)
    with pytest.raises(MissingBranch, match="no final votes"):
        asyncio.run(replayed.final_votes(state))


def test_a_vote_has_no_message_and_inadmissible_candidates_are_not_asked_for() -> None:
    engine = ScriptedEngine(honest, first_label)
    w = world(engine)
    state = asyncio.run(w.open(ONE))
    options = candidates(state.view, interventions(vote=True), ROUTER)
    opening_calls = len(engine.requests)
    branches = asyncio.run(w.branch(state, options))
    assert len(engine.requests) - opening_calls == 4 * (1 + TASK.n_agents)
    later = w.select(branches, np.array([0]))
    after = asyncio.run(w.branch(later, candidates(later.view, interventions(vote=True), ROUTER)))
    voted = after.view.path[:, 1] // 4096 == VOTE
    assert after.view.voted[voted].all()
    np.testing.assert_array_equal(after.view.words[voted], later.view.words)


def test_an_unreadable_belief_repeats_the_last_one_and_is_stale() -> None:
    def refuses_later(request: ChooseRequest) -> tuple[float, ...]:
        if "The discussion so far" in request.turns[1].content:
            raise BadReply("an option not offered")
        return first_label(request)

    w = world(ScriptedEngine(honest, refuses_later))
    state = grown(w, rounds=1)
    assert stale(state).all()
    opened = asyncio.run(w.open(ONE))
    np.testing.assert_array_equal(state.view.beliefs, opened.view.beliefs)
    assert (asyncio.run(w.final_votes(state)).choice == ABSTAIN).all()


def stale(state: RowState) -> Bools:
    """Which beliefs were repeated."""
    return state.view.stale


def test_verbal_answers_are_read_or_stale_never_guessed() -> None:
    said = ['{"answer": "B", "confidence": 0.7}', "B, surely", '{"answer": "Z", "confidence": 1}', "{"]
    answers = iter(said)
    engine = ScriptedEngine(lambda request: next(answers), first_label)
    state = asyncio.run(world(engine, elicitation="verbal").open(ONE))
    np.testing.assert_array_equal(state.view.stale[0][:4], [False, True, True, True][: TASK.n_agents])
    assert state.view.beliefs[0, 0].max() == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"answer": "A", "confidence": 0.25}', (0, 0.25)),
        ('<think>{"answer": "A", "confidence": 1}</think> {"answer": "C", "confidence": 1}', (2, 1.0)),
        ('Sure! {"reason": "x", "answer": "B", "confidence": 0}', (1, 0.0)),
        ('{"answer": "AB", "confidence": 0.5}', None),
        ('{"answer": "A", "confidence": true}', None),
        ('{"answer": "A", "confidence": 1.5}', None),
        ('{"answer": "A"', None),
        ("", None),
    ],
)
def test_parsing_of_verbal_answers(text: str, expected: tuple[int, float] | None) -> None:
    assert parse_answer(text, "ABC") == expected


def test_messages_are_published_without_thinking_or_name_and_cut_at_the_bound() -> None:
    assert clean_message("<think>hm</think> Noor: The bridge\n is open.", ("Noor",), 3) == "The bridge is"
    assert clean_message("Noor thinks so", ("Noor",), 9) == "Noor thinks so"
    for said in ("**Noor:** Two routes: one is open.", "**Noor**: Two routes: one is open."):
        assert clean_message(said, ("Noor",), 9) == "Two routes: one is open."


def test_an_engine_that_gives_up_fails_the_episode() -> None:
    def down(request: ChooseRequest) -> tuple[float, ...]:
        raise EngineError("status 500: gave up")

    with pytest.raises(WorldFailure, match="status 500: gave up"):
        asyncio.run(world(ScriptedEngine(honest, down)).open(ONE))


def test_every_call_is_logged_with_its_tokens() -> None:
    calls: list[CallRow] = []
    engine = ScriptedEngine(honest, first_label)
    w = LanguageWorld(engine, LanguageSettings(), BranchStore(), 4, calls.append)
    state = grown(w, rounds=1)
    asyncio.run(w.final_votes(state))
    assert len(calls) == len(engine.requests)
    assert {call.purpose for call in calls} == {"belief", "message", "vote"}
    row = w.store.find_branch((TASK.id, 0, ""))
    assert row is not None
    assert row.prompt_tokens == sum(call.prompt_tokens for call in calls if call.path == "")


def test_changing_what_is_private_changes_only_what_its_holder_is_asked() -> None:
    import msgspec

    twin: HiddenProfileTask = msgspec.structs.replace(
        TASK, hidden_information=("A fresh secret.", *TASK.hidden_information[1:])
    )
    seen = []
    for task in (TASK, twin):
        engine = ScriptedEngine(honest, first_label)
        asyncio.run(world(engine).open(Episodes((task,), np.zeros(1, np.int64))))
        seen.append([json.dumps([turn.content for turn in request.turns]) for request in engine.requests])
    differs = [a != b for a, b in zip(*seen, strict=True)]
    assert differs == [True] + [False] * (TASK.n_agents - 1)


def test_free_draws_are_different_messages() -> None:
    w = world()
    state = asyncio.run(w.open(ONE))
    branches = asyncio.run(w.branch(state, candidates(state.view, free_messages(4), ROUTER)))
    assert len({heard[-1].text for heard in branches.view.transcripts}) > 1
    assert (branches.view.path[:, 0] // 4096 != ROUTE).all()
