"""The `controlled` speaker policy: the communication controller on a team's talk, and its certificate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from conformal import Thresholds, policy_hash
from sim.captain.calibration import _FirstTalk, thresholds_of
from sim.captain.controlled import NONE_OF_THESE, options_of
from sim.captain.desk import BudgetSpent
from sim.captain.replies import Say, Subtask
from sim.captain.room import Team
from sim.captain.sandbox import Sandbox
from sim.captain.talk import Talk, converse
from sim.engines.protocol import ChatRequest, ChooseRequest, EngineError
from sim.engines.scripted import SCRIPTED
from sim.errors import UserError
from sim.records.captain_rows import Identity

FIRST = [Say("I add.", "41"), Say("I count.", "42")]


def weigh(request: ChooseRequest) -> tuple[float, ...]:
    """Believes in the option whose text is 42, wherever it stands."""
    lines = request.turns[-1].content.splitlines()
    right = next((i for i, label in enumerate(request.labels) if f"{label}. 42" in lines), 0)
    rest = 0.2 / (len(request.labels) - 1)
    return tuple(0.8 if i == right else rest for i in range(len(request.labels)))


@pytest.fixture
def talking(stage: Callable[..., Any], playbook: Any) -> Callable[..., Any]:
    """A room whose team talks under control."""

    def make(first: list[Any] | None = None, **settings: Any) -> Any:
        lines: dict[str, list[Any]] = {"expert": [*(first or FIRST), "The columns speak for 42, not for 41."]}
        control = {"rounds": 2, "stop": {"quorum": None}, "exhaustive": True} | settings.pop("control", {})
        return stage(playbook(lines, weigh), speaker="controlled", control=control, **settings)

    return make


def held(made: Any, team: Team) -> Talk:
    """The controlled talk."""
    talk: Talk = asyncio.run(converse(made.room, team, Subtask("Add.")))
    return talk


def test_options_are_the_distinct_first_answers_and_none_of_these(talking: Any) -> None:
    room = talking().room
    assert options_of(room, ["42", "it is 42.0", "41"]) == ["42", "41", NONE_OF_THESE]
    assert options_of(room, ["42", "", "42"]) == ["42", NONE_OF_THESE]
    assert options_of(room, ["", " "]) == [NONE_OF_THESE]
    assert options_of(room, ["None of these"]) == ["None of these", f"{NONE_OF_THESE} (2)"]


def test_the_talk_is_held_by_the_controller_and_decided_by_votes(talking: Any, two: Team) -> None:
    made = talking()
    talk = held(made, two)
    assert (talk.ending, talk.answer) == ("decision", "42")
    assert made.kinds("options")[0].details["options"] == ["41", "42", NONE_OF_THESE]
    rounds = made.kinds("intervention")
    assert [row.details["round"] for row in rounds] == [1, 2]
    assert rounds[0].details["candidates"] == ["challenge", "clarify", "seek_evidence", "route"]
    assert rounds[0].details["proposal"] == "route", "METHOD 1: route until everybody has spoken"
    assert all(row.details["regret"] >= 0 for row in rounds)
    assert [one.who for one in talk.said[:2]] == ["Algebraist", "Number_Theorist"]
    spoken = [row for row in made.kinds("message") if "action" in row.details]
    assert [row.details["action"] for row in spoken] == [row.text for row in rounds]
    assert made.room.disputes == 1


def test_members_hold_their_own_working_and_nobody_elses(talking: Any, two: Team) -> None:
    made = talking()
    held(made, two)
    beliefs = [r for r in made.engine.requests if isinstance(r, ChooseRequest)]
    shown = [" ".join(turn.content for turn in request.turns) for request in beliefs]
    assert all(("I add." in text) != ("I count." in text) for text in shown)
    assert all(made.room.problem.task in text for text in shown)


def test_everything_is_on_the_episodes_account(talking: Any, two: Team) -> None:
    made = talking()
    held(made, two)
    tokens = sum(call.prompt_tokens + call.completion_tokens for call in made.calls)
    assert tokens == made.room.desk.spent
    assert {call.purpose for call in made.calls} == {"message", "branch", "belief"}
    assert len(made.engine.requests) == len(made.calls)


def test_without_regrets_only_the_proposal_is_evaluated(talking: Any, two: Team) -> None:
    made, full = talking(control={"exhaustive": False}), talking()
    held(made, two)
    held(full, two)
    assert made.kinds("intervention")[0].details["regret"] is None
    texts = [sum(isinstance(r, ChatRequest) for r in one.engine.requests) for one in (made, full)]
    assert texts == [2 + 2, 2 + 4 * 2]


def test_beliefs_are_said_in_words_where_letters_have_no_probabilities(talking: Any, two: Team) -> None:
    made = talking(first=[*FIRST, 'I believe {"answer": "B", "confidence": 0.9}'])
    made.engine._capabilities = msgspec.structs.replace(SCRIPTED, label_logprobs=False)
    talk = held(made, two)
    assert talk.ending in ("decision", "abstained")
    assert talk.answer in ("41", "42")
    assert not [request for request in made.engine.requests if isinstance(request, ChooseRequest)]


def test_none_of_these_is_no_answer(talking: Any, two: Team) -> None:
    made = talking(first=[Say("a", "41"), Say("b", "43")])

    def none(request: ChooseRequest) -> tuple[float, ...]:
        lines = request.turns[-1].content.splitlines()
        at = next(i for i, label in enumerate(request.labels) if f"{label}. {NONE_OF_THESE}" in lines)
        return tuple(0.9 if i == at else 0.1 / (len(request.labels) - 1) for i in range(len(request.labels)))

    made.engine._weigh = none
    talk = held(made, two)
    assert (talk.ending, talk.answer) == ("decision", "")


def test_a_team_without_any_answer_has_nothing_to_discuss(talking: Any, two: Team) -> None:
    talk = held(talking(first=[Say("a"), Say("b")]), two)
    assert (talk.ending, talk.answer) == ("no_answer", "")


def test_one_member_talks_freely(talking: Any, two: Team) -> None:
    alone = Team("solo", ("a",), two.members[:1])
    talk = held(talking(first=[Say("a", "42", True)]), alone)
    assert (talk.ending, talk.answer) == ("done", "42")


def test_first_answers_may_run_code(talking: Any, two: Team, sandbox: Sandbox) -> None:
    code = Say("```python\nprint(6 * 7)\n```")
    made = talking(first=[code, Say("It printed 42.", "42"), Say("b", "42")], box=sandbox)
    talk = held(made, Team("solo", ("a",), two.members))
    assert talk.ending == "decision"
    assert any(call.component == "executor" for call in made.calls)


def test_a_planted_first_answer_is_an_option(talking: Any, two: Team) -> None:
    made = talking(first=[Say("b", "42")], plant=True)
    held(made, two)
    assert "44" in made.kinds("options")[0].details["options"]
    assert sum(row.details["planted"] for row in made.kinds("message")) == 1


def test_a_spent_budget_ends_the_talk_with_what_there_is(talking: Any, two: Team) -> None:
    made = talking(budget=1600, reply_tokens=120)
    with pytest.raises(BudgetSpent):
        held(made, two)
    assert made.room.answer in ("41", "42")
    assert made.room.desk.spent <= 1600


@pytest.mark.parametrize("spoken", [1, 3])
def test_an_engine_error_reaches_the_caller(spoken: int, talking: Any, two: Team) -> None:
    """Among the first answers, and in a branch of the discussion."""

    def fail(request: ChatRequest) -> str:
        raise EngineError("the server is on fire")

    made = talking(first=[*FIRST[:spoken], fail] if spoken == 1 else [*FIRST, fail])
    with pytest.raises(EngineError, match="on fire"):
        held(made, two)
    assert [call.error for call in made.calls if call.error]


def parts_of(made: Any) -> dict[str, str]:
    """The policy of the first talk, as recorded."""
    found: dict[str, str] = made.kinds("policy")[0].details["parts"]
    return found


def saved(path: Path, parts: dict[str, str], value: float, units: tuple[str, ...] = ("other",)) -> Path:
    """Thresholds of a policy, the same at every round."""
    values = np.full(2, value)
    Thresholds(
        mode="trajectory",
        alpha=0.1,
        values=values,
        acceptance=values,
        n=np.full(2, 99),
        k=np.full(2, 90),
        certified=np.isfinite(values),
        guarantee="test",
        assumptions="test",
        folds={"calibration": units},
        policy_hash=policy_hash(parts),
        policy=parts,
    ).save(path)
    return path


def test_thresholds_gate_the_first_talk_of_a_problem(talking: Any, two: Team, tmp_path: Path) -> None:
    base = talking()
    held(base, two)
    regrets = [row.details["regret"] for row in base.kinds("intervention")]
    path = saved(tmp_path / "t.json", parts_of(base), 0.0)
    made = talking(control={"thresholds": str(path), "exhaustive": False})
    held(made, two)
    assert parts_of(made) == parts_of(base), "exhaustive and thresholds are no part of the policy"
    first = made.kinds("intervention")
    assert all(row.details["threshold"] == 0.0 and row.details["certified"] for row in first)
    assert first[0].details["replaced"] == (regrets[0] > 0)
    executed = [row.details["regrets"][row.details["candidates"].index(row.text)] for row in first]
    assert executed == [0.0, 0.0]
    made.engine._write = lambda request: json.dumps({"text": "again", "answer": "42"})
    held(made, two)
    later = made.kinds("intervention")[len(first) :]
    assert later
    assert not any(row.details["certified"] for row in later)
    assert [row.details["first"] for row in made.kinds("policy")] == [True, False]


def test_thresholds_of_another_policy_or_of_this_problem_are_refused(
    talking: Any, two: Team, tmp_path: Path
) -> None:
    base = talking()
    held(base, two)
    other = saved(tmp_path / "a.json", parts_of(base) | {"router": '"random"'}, 0.1)
    with pytest.raises(UserError, match="calibrated under policy"):
        held(talking(control={"thresholds": str(other)}), two)
    mine = saved(tmp_path / "b.json", parts_of(base), 0.1, units=("sum",))
    with pytest.raises(UserError, match="test units were in fold"):
        held(talking(control={"thresholds": str(mine)}), two)
    with pytest.raises(UserError, match=r"captain\.control\.thresholds"):
        held(talking(control={"thresholds": str(tmp_path / "none.json")}), two)


def talks(count: int, regrets: tuple[float, ...], **changes: Any) -> dict[Identity, _FirstTalk]:
    """First talks of several problems, the i-th with regrets scaled by i."""
    parts = {"world": json.dumps({"horizon": 3}), "controller": "x"}
    return {
        Identity("c", "mathematics", f"p{i:02}", 0, "a"): _FirstTalk(
            parts, {t: i * regret for t, regret in enumerate(regrets, 1)}, **({"ended": True} | changes)
        )
        for i in range(count)
    }


def test_thresholds_are_the_conformal_order_statistic_of_first_talks() -> None:
    family = {f"p{i:02}": f"f{i:02}" for i in range(19)}
    found = thresholds_of(talks(19, (0.01, 0.02)), family, 0.1, "run")
    assert found.k[0] == 18
    assert found.values[0] == pytest.approx(17 * 0.02), "the 18th smallest of 0, .02, ..., .36"
    assert found.rounds == 3
    assert found.folds["calibration"] == tuple(family[name] for name in sorted(family))
    few = thresholds_of(talks(8, (0.01,)), family, 0.1, "run")
    assert np.isinf(few.values).all()
    assert not few.certified.any()


def test_families_count_once_and_broken_talks_are_infinite() -> None:
    one_family = dict.fromkeys((f"p{i:02}" for i in range(19)), "same")
    assert thresholds_of(talks(19, (0.01,)), one_family, 0.1, "run").n[0] == 1
    family = {f"p{i:02}": f"f{i:02}" for i in range(9)}
    assert np.isinf(thresholds_of(talks(9, (0.01,), ended=False), family, 0.1, "run").values).all()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (talks(3, (0.1,), gated=True), "gated"),
        (talks(3, (float("nan"),)), r"captain\.control\.exhaustive=true"),
    ],
)
def test_talks_that_cannot_calibrate_are_refused(made: dict[Identity, _FirstTalk], words: str) -> None:
    with pytest.raises(UserError, match=words):
        thresholds_of(made, {who.problem: who.problem for who in made}, 0.1, "run")
