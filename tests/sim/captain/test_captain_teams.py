"""The team builder: what a selector may say, who is generated, how teams are named, cached and recalled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.captain.agents import AgentCard, read_library
from sim.captain.replies import NewAgent, Selection
from sim.captain.retrieval import RetrievalFailure
from sim.captain.room import Team
from sim.captain.teams import build, team_id
from sim.captain.toolbox import Toolbox

MADE = NewAgent("2. Dr. Smith!", "Bakes bread.", "Slowly.", "Kindly.", ("fit_line", "no_such_tool"))
TABLES = "reads tables: columns and rows"


def built(stage: Any, *roles: str) -> Team:
    """The team of some roles."""
    team: Team = asyncio.run(build(stage.room, roles))
    return team


def outcome(stage: Any, place: int = 0) -> str:
    """What became of a role in the last team."""
    return str(stage.kinds("team")[-1].details["selections"][place]["outcome"])


@pytest.mark.parametrize(
    ("line", "result", "malformed"),
    [
        (Selection("data-analyst"), "selected", 0),
        ('{"agent": "data-analyst"}', "selected", 0),
        ('Surely this one: {"agent": "data-analyst"}. It is the best.', "selected", 0),
        ('```json\n{"agent": "data-analyst"}\n```', "selected", 0),
        ('{"agent": "data_analyst"}', "selected", 0),
        ('{"agent": "Data Analyst"}', "selected", 0),
        ('{"agent": "Data: Analyst"}', "selected", 0),
        ('{"agent": null}', "abstained", 0),
        ('{"agent": "none"}', "abstained", 0),
        ('{"agent": "None"}', "abstained", 0),
        ("null", "abstained", 0),
        ("none", "abstained", 0),
        ("None", "abstained", 0),
        ("None.", "abstained", 0),
        ('{"agent": "somebody-else"}', "unknown", 0),
        ('{"agent": "algebraist"}', "unknown", 0),
        ("I would take the data analyst.", "unreadable", 1),
        ('{"who": "data-analyst"}', "unreadable", 1),
        ('{"agent": 7}', "unreadable", 1),
        ("", "abstained", 0),
    ],
)
def test_what_a_selector_says(line: Any, result: str, malformed: int, stage: Callable[..., Any]) -> None:
    """Only an offered agent is selected; `algebraist` was not near this role, so it is not known here."""
    made = stage({"selector": [line], "generator": [MADE]})
    team = built(made, TABLES)
    assert outcome(made) == result
    assert made.room.malformed == malformed
    assert team.members[0].card.id == ("data-analyst" if result == "selected" else team.members[0].card.id)
    assert team.members[0].source == ("library" if result == "selected" else "generated")


def test_an_unreadable_selection_is_asked_for_once_more(stage: Callable[..., Any]) -> None:
    made = stage({"selector": ["The analyst!", Selection("data-analyst")], "generator": [MADE]})
    built(made, TABLES)
    assert outcome(made) == "selected"
    assert len(made.prompts("selector")) == 2
    assert "could not be read" in made.prompts("selector")[1]


def test_where_nobody_is_near_nobody_is_asked(stage: Callable[..., Any]) -> None:
    made = stage({"selector": [Selection(None)], "generator": [MADE]})
    built(made, "pastry")
    assert outcome(made) == "nothing_near"
    assert made.prompts("selector") == []


def test_a_generated_agent_is_named_tooled_and_stored(
    stage: Callable[..., Any], toolbox: Toolbox, tmp_path: Path
) -> None:
    path = tmp_path / "agents.json"
    made = stage({"selector": [Selection(None)], "generator": [MADE]}, tools=toolbox, store=path)
    (member,) = built(made, TABLES).members
    assert member.name == "Dr_Smith"
    assert "fit_line" in member.tools
    assert "no_such_tool" not in member.tools
    stored = json.loads(path.read_text())[-1]
    assert stored["id"] == member.card.id
    assert stored["provenance"] == {
        "source": "generated", "role": TABLES, "model": "scripted", "condition": "captain", "problem": "sum", "seed": 0,
    }  # fmt: skip
    assert read_library(path).agents[-1].name == "Dr_Smith"


def test_a_generator_that_cannot_be_read_makes_the_role_itself(stage: Callable[..., Any]) -> None:
    made = stage({"selector": [Selection(None)], "generator": ["no idea"]})
    (member,) = built(made, " 1. pastry chef").members
    assert member.name == "pastry_chef"
    assert member.card.profile == "1. pastry chef"
    assert made.room.malformed == 1


def test_two_agents_of_one_name_are_two_members(stage: Callable[..., Any]) -> None:
    cards = [
        AgentCard("first", "Twin", "Knows apples.", "s", "i"),
        AgentCard("second", "Twin", "Knows pears.", "s", "i"),
        AgentCard("third", "Other", "Knows plums.", "s", "i"),
    ]
    made = stage({"selector": [Selection("first"), Selection("second")]}, cards=cards)
    team = built(made, "apples", "pears")
    assert [member.name for member in team.members] == ["Twin", "Twin_2"]
    assert [member.card.id for member in team.members] == ["first", "second"]


def test_more_roles_than_agents_selected(stage: Callable[..., Any]) -> None:
    """Two roles filled by one agent make one member with both; a role too many is left out and said so."""
    made = stage({"selector": [Selection("data-analyst")], "generator": [MADE]}, team_size=3)
    team = built(made, TABLES, "means of tables", "rows of tables", "columns of tables")
    assert len(team.members) == 1
    assert team.members[0].roles == (TABLES, "means of tables", "rows of tables")
    assert made.kinds("team")[0].details["left_out"] == ["columns of tables"]


def test_a_team_is_recalled_with_all_its_tools(stage: Callable[..., Any], toolbox: Toolbox) -> None:
    made = stage({"selector": [Selection("algebraist")], "generator": [MADE]}, tools=toolbox)
    team = built(made, "solves equations", TABLES)
    asked = len(made.engine.requests)
    again = built(made, TABLES, "  solves   equations ")
    assert again is team
    assert len(made.engine.requests) == asked
    assert "solve_equation" in again.members[0].tools
    assert [row.details["recalled"] for row in made.kinds("team")] == [False, True]
    assert made.kinds("team")[0].details["members"] == made.kinds("team")[1].details["members"]


def test_team_ids_follow_from_problem_and_roles() -> None:
    assert team_id("p", ["a b", "c"]) == team_id("p", ["C", "a_b", "a-b"])
    assert team_id("p", ["a"]) != team_id("q", ["a"])
    assert team_id("p", ["a"]) != team_id("p", ["a", "b"])


def test_tools_without_agents_and_agents_without_tools(stage: Callable[..., Any], toolbox: Toolbox) -> None:
    made = stage({"generator": [MADE]}, cards=None, tools=toolbox)
    (member,) = built(made, "fits a least-squares line to two columns").members
    assert outcome(made) == "nothing_near"
    assert "fit_line" in member.tools
    made = stage({"selector": [Selection("algebraist")]})
    (member,) = built(made, "solves equations").members
    assert member.tools == ()


def test_an_empty_library_generates(stage: Callable[..., Any]) -> None:
    made = stage({"generator": [MADE]}, cards=[])
    assert built(made, TABLES).members[0].source == "generated"


def test_a_build_that_failed_leaves_nothing_and_the_next_succeeds(
    stage: Callable[..., Any], broken: Any
) -> None:
    made = stage({"selector": [Selection("data-analyst")]}, scorer=broken)
    with pytest.raises(RetrievalFailure):
        built(made, TABLES)
    assert made.room.teams == {}
    assert made.kinds("team") == []
    assert built(made, TABLES).members[0].card.id == "data-analyst"


def test_every_call_stands_in_the_ledger_with_its_price(stage: Callable[..., Any], toolbox: Toolbox) -> None:
    made = stage({"selector": [Selection(None)], "generator": [MADE]}, tools=toolbox)
    built(made, TABLES)
    assert [call.component for call in made.calls] == ["retriever", "retriever", "selector", "generator"]
    for call in made.calls[2:]:
        expected = (call.prompt_tokens * 1.0 + call.completion_tokens * 2.0) / 1_000_000
        assert call.price == pytest.approx(expected)
    assert made.calls[0].price is None
    assert made.calls[0].model == "bm25"
    assert sum(c.prompt_tokens + c.completion_tokens for c in made.calls[2:]) == made.room.desk.spent


def test_the_task_is_passed_on_verbatim_to_everybody(stage: Callable[..., Any]) -> None:
    made = stage({"selector": [Selection(None)], "generator": [MADE]})
    built(made, TABLES)
    for component in ("selector", "generator"):
        assert made.room.problem.task in made.prompts(component)[0]
