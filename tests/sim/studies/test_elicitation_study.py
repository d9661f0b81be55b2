"""The study of elicitation modes: exact for a scripted model, and verbal votes beside beliefs by choice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from sim.engines.protocol import ChatRequest, ChooseRequest
from sim.engines.scripted import SCRIPTED, ScriptedEngine
from sim.errors import UserError
from sim.launch import composed
from sim.records.rows import CallRow
from sim.records.run_dir import read_status
from sim.records.store import read_rows
from sim.studies.elicitation_study import run_elicitation
from sim.tasks import demo_task
from sim.worlds.branch_store import BranchStore
from sim.worlds.language import LanguageSettings, LanguageWorld
from sim.worlds.protocol import Episodes

MODES = ["choice", "choice_cyclic", "verbal"]


def likes_second(request: ChooseRequest) -> tuple[float, ...]:
    """By choice: the second of the list, wherever which option stands."""
    return (0.2, 0.7, 0.1)


def says_third(request: ChatRequest) -> str:
    """In words: the third of the list; no JSON about discussions that have begun."""
    if request.schema is None:
        return "Let us see."
    if "The discussion so far" in request.turns[-1].content:
        return "I cannot say."
    return json.dumps({"answer": "C", "confidence": 0.6})


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    engine = ScriptedEngine(says_third, likes_second, msgspec.structs.replace(SCRIPTED, alternation=False))
    root = tmp_path_factory.mktemp("runs")
    data = composed(
        "task.count=6", "messages=1", "progress=false", f"output={root}", config_name="elicitation"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.studies.elicitation_study.make_engine", lambda *_: engine)
        return run_elicitation(data, {})


def table(run: Path, name: str) -> dict[Any, Any]:
    """A table of the study by its first column."""
    frame = pd.read_csv(run / "tables" / f"{name}.csv")
    return frame.set_index(frame.columns[0]).to_dict("index")


def test_modes_are_asked_about_the_same_discussions_and_their_costs_add_up(run: Path) -> None:
    modes = table(run, "modes")
    assert list(modes) == MODES
    assert [modes[mode]["n"] for mode in MODES] == [6 * 2 * 4] * 3
    assert [modes[mode]["calls"] for mode in MODES] == [1, 3, 1]
    assert [modes[mode]["unreadable"] for mode in MODES] == [0, 0, 6 * 4]
    assert modes["choice_cyclic"]["accuracy"] == pytest.approx(1 / 3)
    assert modes["choice_cyclic"]["prompt_tokens"] == pytest.approx(
        3 * modes["choice"]["prompt_tokens"], rel=1e-6
    )
    calls = [call for call in read_rows(run, CallRow) if call.path.startswith("verbal")]
    assert modes["verbal"]["prompt_tokens"] * 48 == pytest.approx(sum(call.prompt_tokens for call in calls))
    assert all(modes[mode]["seconds"] > 0 for mode in MODES)
    assert read_status(run)["state"] == "finished"


def test_agreement_by_hand(run: Path) -> None:
    """By choice (.2, .7, .1) as displayed, averaged (1/3, 1/3, 1/3), in words (.2, .2, .6)."""
    pairs = table(run, "agreement")
    assert pairs["choice, verbal"]["n"] == pairs["choice, verbal"]["unreadable"] == 24
    assert pairs["choice, verbal"]["same_option"] == 0
    assert pairs["choice, verbal"]["total_variation"] == pytest.approx(0.5)
    assert pairs["choice, choice_cyclic"]["same_option"] == pytest.approx(1 / 3)
    assert pairs["choice, choice_cyclic"]["total_variation"] == pytest.approx(0.7 - 1 / 3)
    assert pairs["choice_cyclic, verbal"]["total_variation"] == pytest.approx(0.6 - 1 / 3)


def test_a_liking_for_a_position_shows_by_displayed_position(run: Path) -> None:
    shown = table(run, "positions")
    assert [[shown[mode][f"displayed_{i}"] for i in (1, 2, 3)] for mode in MODES] == [
        [0, 1, 0], pytest.approx([1 / 3] * 3), [0, 0, 1],
    ]  # fmt: skip
    (bias,) = table(run, "position_bias").values()
    assert [bias[f"picks_{i}"] for i in (1, 2, 3)] == [0, 1, 0]
    assert bias["accuracy_over_orders"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("override", "words"),
    [("modes=[]", "name at least one"), ("modes=[choice,aloud]", "aloud"), ("messages=-1", "messages is -1"),
     ("+surprise=1", "surprise")],
)  # fmt: skip
def test_a_wrong_study_is_refused(override: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        run_elicitation(composed(override, f"output={tmp_path}", config_name="elicitation"), {})
    assert not list(tmp_path.iterdir())


def test_votes_may_be_verbal_while_beliefs_are_choices() -> None:
    """The model reasons before it votes: a schema with its reason first, and more tokens than a belief has."""
    engine = ScriptedEngine(
        lambda request: json.dumps({"reason": "r", "answer": "C", "confidence": 0.9}), likes_second
    )
    settings = LanguageSettings(elicitation="choice", final_vote="verbal")
    world = LanguageWorld(engine, settings, BranchStore(), 2)
    task = demo_task()

    async def held() -> tuple[list[int], list[int]]:
        state = await world.open(Episodes((task,), np.zeros(1, np.int64)))
        votes = await world.final_votes(state)
        return state.view.beliefs[0].argmax(1).tolist(), votes.choice[0].tolist()

    beliefs, votes = asyncio.run(held())
    orders = [world.order(task, 0, agent) for agent in range(task.n_agents)]
    assert beliefs == [order[1] for order in orders]
    assert votes == [order[2] for order in orders]
    kinds = [type(request) for request in engine.requests]
    assert kinds == [ChooseRequest] * task.n_agents + [ChatRequest] * task.n_agents
    for request in engine.requests[task.n_agents :]:
        assert isinstance(request, ChatRequest)
        assert request.max_tokens == settings.vote_tokens
        assert request.schema is not None
        properties = request.schema["properties"]
        assert isinstance(properties, dict)
        assert list(properties) == ["reason", "answer", "confidence"]
