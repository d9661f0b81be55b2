"""The captain's loop with a scripted model: every decision, every ending, every fixed rule."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sim.captain.captain import Outcome, lead
from sim.captain.desk import Call
from sim.captain.forms import Unreadable, ask, read, schema_of
from sim.captain.methods import METHODS, attempt, plan_team
from sim.captain.prompts import render, turns
from sim.captain.replies import (
    Answer,
    Consult,
    Finish,
    NewAgent,
    ReuseTeam,
    Review,
    Roles,
    Say,
    SeekExperts,
    Selection,
    Solve,
    Subtask,
    Verdict,
)
from sim.captain.sandbox import Sandbox
from sim.captain.teams import team_id
from sim.captain.toolbox import Toolbox
from sim.engines.protocol import BadReply, ChatRequest, ChooseRequest, EngineError

SEEK = SeekExperts(Subtask("Add them."), ("solves equations", "knows primes"))
TEAM = team_id("sum", SEEK.roles)
SELECT = [Selection("algebraist"), Selection("number_theorist")]
MADE = NewAgent("Somebody", "p", "s", "i")
AGREE = [Say("a", "42"), Say("b", "42")]
FINE = Review("42", "They agree.")


def script(*decisions: Any, **others: Any) -> dict[str, list[Any]]:
    """A playbook in which everything goes well unless said otherwise."""
    lines: dict[str, list[Any]] = {
        "captain": list(decisions),
        "selector": list(SELECT),
        "generator": [MADE],
        "expert": list(AGREE),
        "reflector": [FINE],
        "verifier": [Verdict(True, "It adds up.")],
    }
    return lines | others


def led(stage: Any) -> Outcome:
    """The captain's outcome."""
    return asyncio.run(lead(stage.room))


def decisions(stage: Any) -> list[str]:
    """What was decided, in order."""
    return [row.details["decision"] for row in stage.kinds("decision")]


def test_finish_returns_the_answer_verbatim(stage: Callable[..., Any]) -> None:
    text = "  The answer, with  spaces.\n"
    made = stage(script(Finish(text)))
    assert led(made) == Outcome(text, "finished")
    assert decisions(made) == ["finish"]


@pytest.mark.parametrize(
    "text",
    [
        "The limit is an indeterminate form; calling experts",
        "TERMINATE",
        "I will now terminate.",
        "exit",
        '{"decision": "finnish", "answer": "42"}',
    ],
)
def test_no_word_ends_the_loop(text: str, stage: Callable[..., Any]) -> None:
    made = stage(script(Solve(text), text, Finish("42")))
    assert led(made) == Outcome("42", "finished")
    assert len(decisions(made)) == 2
    assert decisions(made)[0] == "solve"


def test_experts_are_sought_talk_and_are_reviewed(stage: Callable[..., Any]) -> None:
    made = stage(script(SEEK, Finish("42")))
    assert led(made).answer == "42"
    kinds = [row.kind for row in made.events]
    assert kinds == ["decision", "team", "message", "message", "talk", "review", "decision"]
    assert "They agree." in made.prompts("captain")[1]
    assert "Answer after this step: 42" in made.prompts("captain")[1]
    assert {call.component for call in made.calls} == {
        "captain",
        "retriever",
        "selector",
        "expert",
        "reflector",
    }


def test_a_team_is_reused_by_its_id(stage: Callable[..., Any]) -> None:
    again = ReuseTeam(TEAM, Subtask("Check it."))
    made = stage(script(SEEK, again, Finish("42"), expert=[*AGREE, *AGREE]))
    assert led(made).answer == "42"
    assert len(made.kinds("team")) == 1
    assert len(made.kinds("talk")) == 2
    assert f'"{TEAM}"' in made.prompts("captain")[1]
    assert "reuse_team" not in made.prompts("captain")[0]


def test_a_team_that_does_not_exist_is_counted_and_the_loop_goes_on(stage: Callable[..., Any]) -> None:
    made = stage(script(SEEK, ReuseTeam("team-x", Subtask("?")), Finish("42")))
    assert led(made).answer == "42"
    assert made.room.malformed == 1
    assert "There is no team team-x" in made.prompts("captain")[2]


def test_the_round_limit_returns_the_best_answer_unfinished(stage: Callable[..., Any]) -> None:
    made = stage(script(Solve("So far.", "41"), Solve("Better.", "")), rounds=3)
    assert led(made) == Outcome("41", "unfinished")
    assert len(decisions(made)) == 3


def test_without_any_answer_the_last_work_is_returned(stage: Callable[..., Any]) -> None:
    assert led(stage(script(Solve("Only work.")), rounds=2)) == Outcome("Only work.", "unfinished")


def test_a_decision_that_cannot_be_read_is_work_and_is_counted(stage: Callable[..., Any]) -> None:
    made = stage(script("prose", "prose again", Finish("42")))
    assert led(made).answer == "42"
    assert made.room.malformed == 1
    assert decisions(made) == ["solve", "finish"]


def test_prose_around_a_decision_is_no_obstacle(stage: Callable[..., Any]) -> None:
    made = stage(script('Let me finish. {"decision": "finish", "answer": "42"} That was it.'))
    assert led(made) == Outcome("42", "finished")


def test_roles_without_text_build_no_team(stage: Callable[..., Any]) -> None:
    made = stage(script(SeekExperts(Subtask("?"), ("", " ")), Finish("42")))
    assert led(made).answer == "42"
    assert made.room.malformed == 1
    assert made.kinds("team") == []


def test_a_team_that_could_not_be_built_can_be_asked_for_again(
    stage: Callable[..., Any], broken: Any
) -> None:
    made = stage(script(SEEK, SEEK, Finish("42")), scorer=broken)
    assert led(made).answer == "42"
    assert "No team could be built (bm25: RuntimeError: embedding broke)" in made.prompts("captain")[1]
    assert [row.kind for row in made.events][:4] == ["decision", "note", "decision", "team"]


def test_code_of_the_captain_is_run(stage: Callable[..., Any], sandbox: Sandbox, toolbox: Toolbox) -> None:
    work = Solve("```python\nprint(solve_equation('x - 42 = 0'))\n```")
    made = stage(script(work, Finish("42")), box=sandbox, tools=toolbox)
    led(made)
    assert "['42']" in made.prompts("captain")[1]


def test_double_check_is_enforced_and_budgeted(stage: Callable[..., Any]) -> None:
    doubtful = Review("41", "Not sure.", ("41 against 42",), True, 0.4)
    verdict = Verdict(False, "41 is too small.", "42")
    made = stage(
        script(
            SEEK, ReuseTeam(TEAM, Subtask("Again.")), Finish("42"), reflector=[doubtful], verifier=[verdict]
        ),
        rechecks=1,
    )
    led(made)
    (check,) = made.kinds("verification")
    assert check.details["because"] == "the review asks for it"
    assert (check.details["before"], check.details["after"]) == ("41", "42")
    assert made.room.changes == [("41", "42")]
    assert "41 is too small." in made.prompts("captain")[1]


def test_no_check_without_a_budget_for_it_or_without_a_reflector(stage: Callable[..., Any]) -> None:
    doubtful = Review("41", "Not sure.", (), True)
    made = stage(script(SEEK, Finish("41"), reflector=[doubtful]), rechecks=0)
    led(made)
    assert made.kinds("verification") == []
    assert made.room.answer == "41"
    bare = stage(script(SEEK, Finish("42"), reflector=[]), reflector=False)
    led(bare)
    assert bare.kinds("review") == []
    assert bare.room.answer == "42"


def test_a_changed_answer_is_checked_even_if_nobody_asks(stage: Callable[..., Any]) -> None:
    made = stage(script(Solve("Guess.", "41"), SEEK, Finish("42")))
    led(made)
    (check,) = made.kinds("verification")
    assert check.details["because"] == "the answer changed"
    assert check.details["holds"] is True
    assert made.room.answer == "42"
    same = stage(script(Solve("Guess.", "it is 42.0"), SEEK, Finish("42")))
    led(same)
    assert same.kinds("verification") == []


def test_the_verifier_sees_the_answer_and_not_the_conversation(stage: Callable[..., Any]) -> None:
    made = stage(
        script(
            SEEK,
            Finish("42"),
            expert=[Say("secret reasoning", "42")],
            reflector=[Review("42", "r", (), True)],
        )
    )
    led(made)
    (prompt,) = made.prompts("verifier")
    assert "secret reasoning" not in prompt
    assert "The answer to check: 42" in prompt


def test_a_dispute_is_detected_and_checked(stage: Callable[..., Any]) -> None:
    quarrel = [Say("a", "41"), Say("b", "42")]
    made = stage(
        script(
            SEEK, Finish("42"), expert=quarrel, reflector=[Review("42", "b is right.", ("41 or 42",), True)]
        ),
        talk_rounds=2,
    )
    led(made)
    assert (made.room.disputes, made.room.detected, made.room.checked) == (1, 1, 1)
    missed = stage(script(SEEK, Finish("42"), expert=list(quarrel)), talk_rounds=2)
    led(missed)
    assert (missed.room.disputes, missed.room.detected, missed.room.checked) == (1, 0, 0)


def test_a_review_or_check_that_cannot_be_read_leaves_the_answer(stage: Callable[..., Any]) -> None:
    made = stage(script(SEEK, Finish("42"), reflector=["well"]))
    led(made)
    assert made.room.answer == "42"
    assert made.room.malformed == 1
    doubtful = stage(script(SEEK, Finish("42"), reflector=[Review("42", "r", (), True)], verifier=["well"]))
    led(doubtful)
    assert doubtful.room.changes == [("42", "42")]


def test_a_spent_budget_returns_the_best_answer_and_is_never_passed(stage: Callable[..., Any]) -> None:
    made = stage(script(Solve("Work.", "41")), budget=1500, reply_tokens=200, rounds=50)
    assert led(made) == Outcome("41", "budget")
    assert made.room.desk.spent <= 1500
    assert sum(call.prompt_tokens + call.completion_tokens for call in made.calls) == made.room.desk.spent
    assert made.kinds("note")[-1].text == "the tokens are spent"


def test_an_engine_error_reaches_the_caller_and_the_ledger(stage: Callable[..., Any]) -> None:
    def fail(request: ChatRequest) -> str:
        raise EngineError("the server is on fire")

    made = stage(script(fail))
    with pytest.raises(EngineError, match="on fire"):
        led(made)
    assert made.calls[-1].error == "the server is on fire"


def test_two_captains_in_one_process_share_nothing(stage: Callable[..., Any]) -> None:
    from sim.captain.agents import AgentCard

    first = stage(script(Solve("w", "1")), rounds=2)
    other = [AgentCard("solo", "Solo", "Solves equations and knows primes.", "s", "i")]
    second = stage(script(SEEK, Finish("2"), selector=[Selection("solo")]), rounds=4, cards=other)

    async def both() -> tuple[Outcome, Outcome]:
        return await asyncio.gather(lead(first.room), lead(second.room))

    one, two = asyncio.run(both())
    assert (one.ending, two.answer) == ("unfinished", "2")
    assert len(decisions(first)) == 2
    assert first.room.teams == {}
    assert [card.id for card in first.room.library.agents] != [card.id for card in second.room.library.agents]
    assert [m.card.id for m in next(iter(second.room.teams.values())).members] == ["solo"]


def test_a_static_captain_cannot_seek(stage: Callable[..., Any]) -> None:
    made = stage(script(Finish("42")))
    asyncio.run(lead(made.room, adaptive=False))
    assert "seek_experts" not in made.prompts("captain")[0]


FORM_LINES = {
    "captain": ["two words"],
    "expert": ["a message"],
    "generator": ["a field"],
    "reflector": ["words"],
}


@pytest.mark.parametrize("letter", range(4))
def test_an_engine_without_schemas_still_decides_by_type(
    letter: int, stage: Callable[..., Any], playbook: Any
) -> None:
    """The form route: kinds and choices by probabilities of letters, texts field by field; nothing is malformed."""

    def weigh(request: Any) -> tuple[float, ...]:
        best = min(letter, len(request.labels) - 1)
        return tuple(0.9 if i == best else 0.1 / len(request.labels) for i in range(len(request.labels)))

    lines = {**{k: list(v) for k, v in FORM_LINES.items()}, "verifier": ["words"], "selector": ["unused"]}
    made = stage(playbook(lines, weigh, structured=False), rounds=2, talk_rounds=2)
    outcome = led(made)
    assert outcome.ending in ("finished", "unfinished")
    assert set(decisions(made)) <= {"solve", "seek_experts", "reuse_team", "finish"}
    assert made.room.malformed == 0


def test_a_form_fills_every_kind_of_field(stage: Callable[..., Any], playbook: Any) -> None:
    """Truth by letter, confidence by level, lists by line; and no reply where there are no probabilities."""

    def weigh(request: ChooseRequest) -> tuple[float, ...]:
        shown = request.turns[-1].content
        return tuple(float(f"{label}. yes" in shown or f"{label}. 70%" in shown) for label in request.labels)

    made = stage(playbook({"reflector": ["- one\n\n- two"]}, weigh, structured=False))
    call, shown = Call("reflector", "review", "1/review"), turns(render("reflector"), "?")
    review = asyncio.run(ask(made.room.desk, call, shown, (Review,)))
    assert review == Review("- one\n\n- two", "- one\n\n- two", ("one", "two"), True, 0.7, "- one\n\n- two")
    for wanted in ("a", "b", None):
        made.engine._weigh = lambda request, name=wanted: tuple(
            float(f"{label}. {name}" in request.turns[-1].content) for label in request.labels
        )
        asked = ask(made.room.desk, call, shown, (Selection,), {"agent": ["a", "b", None]})
        assert asyncio.run(asked) == Selection(wanted)
    made.engine._weigh = refuse
    with pytest.raises(Unreadable):
        asyncio.run(ask(made.room.desk, call, shown, (Review,)))


def refuse(request: ChooseRequest) -> tuple[float, ...]:
    """A model that gives no probabilities."""
    raise BadReply("no probabilities")


def test_a_reply_is_read_from_json_only() -> None:
    assert read('x {"agent": "a"} y {"agent": "b"}', (Selection,)) == Selection("a")
    assert read('{"oops": 1} {"agent": "b"}', (Selection,)) == Selection("b")
    assert read('<think>{"agent": "a"}</think>{"agent": "b"}', (Selection,)) == Selection("b")
    assert read('{"text": "line\nbreak"}', (Say,)) == Say("line\nbreak")
    assert read('{"agent": "\\ud800"}', (Selection,)) == Selection("?"), "it can be stored"
    for text in ("agent: a", "{", '{"agent":' * 3000, '{"confidence": NaN}', '{"agent": "a"', "[]", ""):
        with pytest.raises(ValueError, match=r"."):
            read(text, (Selection,))


def test_schemas_are_narrowed_and_closed() -> None:
    schema = schema_of((Selection,), {"agent": ["a", None]})
    part = schema["$defs"]["Selection"]  # type: ignore[index]
    assert part["properties"]["agent"] == {"enum": ["a", None]}
    assert part["additionalProperties"] is False
    union = schema_of((Solve, Finish), {})
    assert "discriminator" not in union
    json.dumps(union)


def test_unreadable_carries_the_last_text(stage: Callable[..., Any]) -> None:
    made = stage({"captain": ["first", "second"]})
    with pytest.raises(Unreadable) as found:
        asyncio.run(ask(made.room.desk, Call("captain", "x", "x"), turns(render("captain"), "?"), (Answer,)))
    assert found.value.text == "second"


SOLO = [Answer("20 + 22 = 42", "42")]


def outcome_of(stage: Any, method: str) -> Outcome:
    """A method's outcome."""
    return asyncio.run(attempt(stage.room, method))


def test_single(stage: Callable[..., Any]) -> None:
    made = stage({"solo": SOLO})
    assert outcome_of(made, "single") == Outcome("42", "finished")
    assert len(made.engine.requests) == 1


def test_single_with_code(stage: Callable[..., Any], sandbox: Sandbox) -> None:
    made = stage({"solo": [Solve("```python\nprint(6 * 7)\n```"), *SOLO]}, box=sandbox)
    assert outcome_of(made, "single_code").answer == "42"
    assert "It printed:\n42" in made.prompts("solo")[1]
    without = stage({"solo": [Solve("no code"), *SOLO]}, box=sandbox)
    assert outcome_of(without, "single_code").answer == "42"
    assert "no code block" in without.prompts("solo")[1]


def test_two_agents(stage: Callable[..., Any], sandbox: Sandbox) -> None:
    made = stage({"expert": [Say("```python\nprint(42)\n```"), Say("There.", "42", True)]}, box=sandbox)
    assert outcome_of(made, "two_agents") == Outcome("42", "finished")
    assert [row.kind for row in made.events] == ["message", "execution", "message", "talk"]


def test_meta_prompting(stage: Callable[..., Any]) -> None:
    lines = {"conductor": [Consult("an adder", "What is 20 + 22?"), Finish("42")], "consulted": ["It is 42."]}
    made = stage(lines)
    assert outcome_of(made, "meta_prompting") == Outcome("42", "finished")
    assert "an adder answered: It is 42." in made.prompts("conductor")[1]
    assert made.prompts("consulted") == ["What is 20 + 22?"]
    endless = stage({"conductor": [Consult("a", "?")], "consulted": ["Nothing."]}, rounds=2)
    assert outcome_of(endless, "meta_prompting") == Outcome("Nothing.", "unfinished")


def test_a_solo_reply_that_cannot_be_read_is_counted(stage: Callable[..., Any]) -> None:
    made = stage({"solo": ["well"]})
    assert outcome_of(made, "single") == Outcome("well", "finished")
    assert made.room.malformed == 1
    coded = stage({"solo": ["well", "well", *SOLO]})
    assert outcome_of(coded, "single_code").answer == "42"
    assert coded.room.malformed == 1
    conducted = stage({"conductor": ["well", "well", Finish("42")]})
    assert outcome_of(conducted, "meta_prompting") == Outcome("42", "finished")
    assert conducted.room.malformed == 1


def test_a_random_team_is_drawn_by_key(stage: Callable[..., Any]) -> None:
    made, again = (stage(script(Finish("42")), team_size=2) for _ in range(2))
    outcome_of(made, "random_team")
    outcome_of(again, "random_team")
    (team,), (other,) = made.room.teams.values(), again.room.teams.values()
    assert [m.card.id for m in team.members] == [m.card.id for m in other.members]
    assert len(team.members) == 2
    assert outcome_of(stage(script(Finish("42")), cards=None), "random_team").answer == "42"


def test_a_static_team_is_planned_from_the_scenario_alone(stage: Callable[..., Any]) -> None:
    made = stage(script(Roles(("solves equations",))))
    team = asyncio.run(plan_team(made.room))
    assert team is not None
    assert [m.card.id for m in team.members] == ["algebraist"]
    assert made.room.problem.task not in made.prompts("captain")[0]
    assert asyncio.run(plan_team(stage(script("prose")).room)) is None


def test_every_method_stays_within_its_budget(stage: Callable[..., Any]) -> None:
    lines = script(Solve("w", "41")) | {"solo": SOLO, "conductor": [Consult("a", "?")], "consulted": ["no"]}
    for method in METHODS:
        made = stage(
            {k: list(v) for k, v in lines.items()}, budget=900, reply_tokens=150, rounds=20, talk_rounds=20
        )
        found = outcome_of(made, method)
        assert found.ending in ("finished", "unfinished", "budget")
        assert made.room.desk.spent <= 900, method


def test_all_methods_show_the_same_task(stage: Callable[..., Any]) -> None:
    lines = script(Finish("42")) | {
        "solo": SOLO,
        "conductor": [Finish("42")],
        "expert": [Say("x", "42", True)],
    }
    shown = set()
    for method in METHODS:
        made = stage({k: list(v) for k, v in lines.items()})
        outcome_of(made, method)
        text = made.engine.requests[0].turns[-1].content
        assert made.room.task in text, method
        shown.add(made.room.task)
    assert len(shown) == 1


def test_hidden_tests_are_shown_only_where_the_study_says_so(stage: Callable[..., Any]) -> None:
    from sim.captain.problems import Problem, ProgramTests

    problem = Problem(
        "f", "programming", "Write f.", ProgramTests("def f():\n", "def check(candidate): pass", "f")
    )
    assert "def check" not in stage({"solo": SOLO}, problem=problem).room.task
    assert "def check" in stage({"solo": SOLO}, problem=problem, tests_visible=True).room.task


def test_experts_may_have_a_backbone_of_their_own(stage: Callable[..., Any], playbook: Any) -> None:
    made = stage(script(SEEK, Finish("42"), expert=[]), expert_backbone="other")
    other = playbook({"expert": list(AGREE)}).engine()
    made.room.desk.engines = {**made.room.desk.engines, "other": other}
    assert led(made).answer == "42"
    assert len(other.requests) == 2


def test_decisions_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Finish("42").answer = "43"  # type: ignore[misc]
    assert msgspec.json.decode(msgspec.json.encode(SEEK))["decision"] == "seek_experts"
