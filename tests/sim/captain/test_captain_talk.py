"""The nested conversation: who speaks under which policy, what ends it, and code that is run or is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sim.captain.desk import BudgetSpent
from sim.captain.replies import Say, Subtask
from sim.captain.room import EXECUTOR, Team
from sim.captain.sandbox import Limits, Sandbox
from sim.captain.talk import Talk, converse, plurality
from sim.captain.toolbox import Toolbox
from sim.engines.protocol import BadReply, ChooseRequest

TASK = Subtask("Add the numbers.")
CODE = "```python\nprint(20 + 22)\n```"
IDLE = [Say("I am thinking about it.")]


def held(stage: Any, team: Team) -> Talk:
    """The team's conversation."""
    talk: Talk = asyncio.run(converse(stage.room, team, TASK))
    return talk


def speakers(talk: Talk) -> list[str]:
    """Who spoke, in order."""
    return [one.who for one in talk.said]


def test_a_typed_done_ends_it(stage: Callable[..., Any], two: Team) -> None:
    talk = held(stage({"expert": [Say("Hm."), Say("It is 42.", "42", True)]}), two)
    assert (talk.ending, talk.answer, len(talk.said)) == ("done", "42", 2)


def test_done_without_an_answer_does_not_end_it(stage: Callable[..., Any], two: Team) -> None:
    talk = held(stage({"expert": [Say("Done!", "", True)]}, talk_rounds=3), two)
    assert (talk.ending, talk.answer, len(talk.said)) == ("round_limit", "", 3)


@pytest.mark.parametrize(
    "text",
    [
        "TERMINATE",
        "We can terminate now.",
        "The limit is an indeterminate form; calling experts.",
        "exit",
        "done",
    ],
)
def test_no_word_in_a_message_ends_it(text: str, stage: Callable[..., Any], two: Team) -> None:
    talk = held(stage({"expert": [Say(text)]}, talk_rounds=4), two)
    assert (talk.ending, len(talk.said)) == ("round_limit", 4)


def test_agreement_as_the_grader_reads_it_ends_it(stage: Callable[..., Any], two: Team) -> None:
    talk = held(stage({"expert": [Say("a", "42"), Say("b", "it is 42.0")]}), two)
    assert (talk.ending, talk.answer) == ("agreement", "it is 42.0")
    disagreeing = stage({"expert": [Say("a", "42"), Say("b", "43")]}, talk_rounds=2)
    assert held(disagreeing, two).ending == "round_limit"
    assert disagreeing.room.disputes == 1


def test_the_least_heard_speaks_and_nobody_twice_running(stage: Callable[..., Any], two: Team) -> None:
    lines = [Say("one two three four"), Say("one"), Say("two"), Say("three"), Say("four"), Say("five")]
    talk = held(stage({"expert": lines}, talk_rounds=5), two)
    assert speakers(talk) == [
        "Algebraist",
        "Number_Theorist",
        "Number_Theorist",
        "Number_Theorist",
        "Number_Theorist",
    ]
    even = held(stage({"expert": [Say("same length")]}, talk_rounds=4), two)
    assert speakers(even) == ["Algebraist", "Number_Theorist"] * 2


def test_code_goes_to_the_executor_and_an_error_back_to_its_author(
    stage: Callable[..., Any], two: Team, sandbox: Sandbox
) -> None:
    lines = [Say(f"Try {CODE}"), Say("```python\n1 / 0\n```"), Say("I see; it is 42.", "42", True)]
    made = stage({"expert": lines}, box=sandbox)
    talk = held(made, two)
    assert speakers(talk) == ["Algebraist", EXECUTOR, "Number_Theorist", EXECUTOR, "Number_Theorist"]
    assert "42" in talk.said[1].text
    assert "ZeroDivisionError" in talk.said[3].text
    assert [row.details["verdict"] for row in made.kinds("execution")] == ["ok", "error"]
    assert [call.component for call in made.calls if call.component == EXECUTOR] == [EXECUTOR] * 2


def test_an_execution_request_without_code_is_answered_not_fatal(
    stage: Callable[..., Any], two: Team, sandbox: Sandbox
) -> None:
    made = stage(
        {"expert": [Say("Please run my program.")]}, box=sandbox, speaker="round_robin", talk_rounds=3
    )
    talk = held(made, two)
    assert speakers(talk) == ["Algebraist", "Number_Theorist", EXECUTOR]
    assert "no code block" in talk.said[-1].text
    assert made.kinds("execution")[0].details["verdict"] == "no_code"


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("while True: pass", "time"),
        ("import os\nwhile True: os.fork()", None),
        ("x = bytearray(10 << 30)", "memory"),
        ("import socket\nsocket.create_connection(('1.1.1.1', 80), 2)", "error"),
        ("open('/usr/out', 'w')", "error"),
    ],
)
def test_bad_code_is_contained_reported_and_the_talk_goes_on(
    code: str, verdict: str | None, stage: Callable[..., Any], two: Team, bombproof: Sandbox
) -> None:
    limits = Limits(wall_s=1, cpu_s=1, memory_mb=1024, processes=16)
    box = Sandbox(bombproof.wall, limits, bombproof.shown)
    lines = [Say(f"```python\n{code}\n```"), Say("Then by head.", "42", True)]
    made = stage({"expert": lines}, box=box)
    talk = held(made, two)
    found = made.kinds("execution")[0].details["verdict"]
    assert found == verdict if verdict else found != "ok"
    assert talk.said[1].text
    assert (talk.ending, talk.answer) == ("done", "42")


def test_programs_call_tools_and_read_the_files_of_the_problem(
    stage: Callable[..., Any], two: Team, sandbox: Sandbox, toolbox: Toolbox
) -> None:
    import msgspec

    problem = msgspec.structs.replace(stage({"expert": IDLE}).room.problem, files={"a.csv": "x\n41\n"})
    code = "print(solve_equation('x - 42 = 0'), open('a.csv').read())"
    lines = [Say(f"```python\n{code}\n```"), Say("So.", "42", True)]
    made = stage({"expert": lines}, problem=problem, box=sandbox, tools=toolbox)
    talk = held(made, two)
    assert "['42']" in talk.said[1].text
    assert "41" in talk.said[1].text
    assert "solve_equation(equation: str" in made.engine.requests[0].turns[0].content
    assert "a.csv" in made.prompts("expert")[0]


def test_round_robin_takes_everybody_in_turn(stage: Callable[..., Any], two: Team) -> None:
    talk = held(stage({"expert": IDLE}, speaker="round_robin", talk_rounds=4), two)
    assert speakers(talk) == ["Algebraist", "Number_Theorist"] * 2


def test_random_is_drawn_by_key(stage: Callable[..., Any], two: Team) -> None:
    first = held(stage({"expert": IDLE}, speaker="random", talk_rounds=8), two)
    again = held(stage({"expert": IDLE}, speaker="random", talk_rounds=8), two)
    assert speakers(first) == speakers(again)
    assert set(speakers(first)) == {"Algebraist", "Number_Theorist"}


def test_the_model_chooses_the_speaker(stage: Callable[..., Any], two: Team, playbook: Any) -> None:
    def weigh(request: ChooseRequest) -> tuple[float, ...]:
        shown = request.turns[-1].content
        return tuple(0.9 if f"{label}. Number_Theorist" in shown else 0.1 for label in request.labels)

    book = playbook({"expert": list(IDLE), "captain": ["unused"]}, weigh)
    made = stage(book, speaker="llm", talk_rounds=6)
    talk = held(made, two)
    assert speakers(talk) == ["Number_Theorist"] * 6
    asked = [r.turns[-1].content for r in made.engine.requests if isinstance(r, ChooseRequest)]
    assert {"A. Number_Theorist" in text for text in asked} == {True, False}, "no place is favoured"
    assert {call.purpose for call in made.calls if call.component == "captain"} == {"speaker"}


def test_the_rules_choose_where_the_model_gives_no_probabilities(
    stage: Callable[..., Any], two: Team, playbook: Any
) -> None:
    def refuse(request: ChooseRequest) -> tuple[float, ...]:
        raise BadReply("no probabilities")

    made = stage(playbook({"expert": list(IDLE)}, refuse), speaker="llm", talk_rounds=4)
    assert speakers(held(made, two)) == ["Algebraist", "Number_Theorist"] * 2
    assert made.room.malformed == 4


def test_a_turn_that_cannot_be_read_is_said_as_it_is(stage: Callable[..., Any], two: Team) -> None:
    made = stage({"expert": ["just words"]}, talk_rounds=2)
    talk = held(made, two)
    assert [one.text for one in talk.said] == ["just words"] * 2
    assert made.room.malformed == 2


def test_a_planted_answer_is_said_once_and_known_as_planted(stage: Callable[..., Any], two: Team) -> None:
    made = stage({"expert": [Say("b", "42")]}, plant=True, talk_rounds=4)
    held(made, two)
    planted = [row for row in made.kinds("message") if row.details["planted"]]
    assert len(planted) == 1
    assert planted[0].details["answer"] == "44"
    assert made.room.disputes == 1


def test_plurality_counts_members_and_breaks_ties_by_the_last(stage: Callable[..., Any], two: Team) -> None:
    made = stage({"expert": [Say("a", "41"), Say("b", "42"), Say("c")]}, talk_rounds=3)
    assert held(made, two).answer == "42"
    assert plurality(made.room, Talk(two, TASK)) == ""


def test_members_see_one_transcript_and_their_own_card(stage: Callable[..., Any], two: Team) -> None:
    made = stage({"expert": [Say("first message", "41"), Say("second message")]}, talk_rounds=3)
    held(made, two)
    prompts, systems = made.prompts("expert"), [r.turns[0].content for r in made.engine.requests]
    assert "first message [answer: 41]" in prompts[1]
    assert "Solves equations" in systems[0]
    assert "Knows primes" in systems[1]
    assert "Solves equations" not in systems[1]
    assert all(made.room.problem.task in prompt for prompt in prompts)


def test_a_team_of_one_talks_until_it_is_done(stage: Callable[..., Any], two: Team) -> None:
    alone = Team("solo", ("a",), two.members[:1])
    talk = held(stage({"expert": [Say("a", "41"), Say("b", "42", True)]}), alone)
    assert (talk.answer, len(talk.said)) == ("42", 2)


def test_a_spent_budget_keeps_the_answers_given(stage: Callable[..., Any], two: Team) -> None:
    """The talk breaks off where the next call would pass the budget; the plurality of the last answers stands."""
    lines = [Say("So far.", str(number)) for number in range(50)]
    made = stage({"expert": lines}, budget=1100, reply_tokens=60, talk_rounds=50)
    with pytest.raises(BudgetSpent):
        held(made, two)
    given = [row.details["answer"] for row in made.kinds("message")]
    assert 2 <= len(given) < 50
    assert made.room.answer == given[-1]
    assert made.room.desk.spent <= 1100
    assert made.kinds("talk") == []
