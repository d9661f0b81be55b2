"""Worlds that give up: at any round, at the opening, at the vote. Nobody is dropped from a denominator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformal import OpenGate
from controllers.rules import NoisyRules
from sim.discussion.actions import Candidates, interventions
from sim.discussion.ending import Stop, Votes
from sim.discussion.objective import Objective
from sim.discussion.routing import make_router
from sim.records.rows import DecisionRow, EpisodeRow
from sim.records.store import RunStore, read_rows
from sim.studies import opening
from sim.studies.calibration import lay_out
from sim.studies.recorder import RowRecorder
from sim.studies.rollout import Policy, rollout
from sim.studies.stages import read_thresholds
from sim.studies.trace import Trace
from sim.studies.verbs import run_stages
from sim.tasks import generate_method
from sim.worlds.cognitive import Cognition, CognitiveState, CognitiveWorld
from sim.worlds.protocol import Episodes, WorldFailure

Config = Callable[..., dict[str, Any]]
ROUNDS = 5
GONE = "engine gave up: connection refused"
POLICY = Policy(
    "noisy_rules", NoisyRules(), interventions(), make_router("action_conditional"), Objective(), OpenGate(),
    Stop(quorum=None),
)  # fmt: skip


class _Failing(CognitiveWorld):
    """Gives up where `at` says: `open`, `vote`, or after so many rounds."""

    at: str | int = "open"

    async def open(self, episodes: Episodes, full_information: bool = False) -> CognitiveState:
        if self.at == "open":
            raise WorldFailure(GONE)
        return await super().open(episodes, full_information)

    async def branch(self, state: CognitiveState, candidates: Candidates) -> CognitiveState:
        if state.view.rounds[0] == self.at:
            raise WorldFailure(GONE)
        return await super().branch(state, candidates)

    async def final_votes(self, state: CognitiveState) -> Votes:
        if self.at == "vote":
            raise WorldFailure(GONE)
        return await super().final_votes(state)


def failing(at: str | int) -> _Failing:
    """A world that gives up there."""
    world = _Failing(Cognition(), ROUNDS, measured_text=False)
    world.at = at
    return world


@pytest.mark.parametrize("at", ["open", 0, 1, 3, 4, "vote"])
def test_failed_discussions_are_recorded_with_their_error_and_score_infinity_from_there(
    at: str | int, tmp_path: Path
) -> None:
    episodes = Episodes(generate_method(7, seed=1), np.zeros(7, np.int64))
    with RunStore(tmp_path) as store:
        asyncio.run(rollout(failing(at), episodes, POLICY, RowRecorder(store, "calibrate", POLICY, episodes)))
        assert all(store.finished("calibrate", "noisy_rules", task.id, 0) for task in episodes.tasks)
    rows = read_rows(tmp_path, EpisodeRow)
    decided = {"open": 0, "vote": ROUNDS}.get(str(at), at)
    assert [row.task for row in rows] == [task.id for task in episodes.tasks]
    for row in rows:
        assert (row.ending, row.error, row.decision) == ("failed", GONE, -1)
        assert row.votes == [-1] * 4
        assert row.rounds == decided
        assert row.final_objective is None
    scores = lay_out(rows, read_rows(tmp_path, DecisionRow), ROUNDS)
    assert np.isfinite(scores.values[:, :decided]).all()
    assert np.isinf(scores.values[:, decided:]).all()
    assert scores.reached.all()
    assert len(scores.units) == 7


@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_trace_lists_failures_as_uncovered_and_wrong(at: int) -> None:
    episodes = Episodes(generate_method(9, seed=2), np.zeros(9, np.int64))
    trace = Trace(episodes)
    asyncio.run(rollout(failing(at), episodes, POLICY, trace))
    assert trace.errors == dict.fromkeys(range(9), GONE)
    assert np.isinf(trace.scores[:, at:]).all()
    assert np.isfinite(trace.scores[:, :at]).all()
    assert not trace.correct.any()


class _Sometimes(CognitiveWorld):
    """Gives up in the second round of every discussion whose key is even."""

    async def branch(self, state: CognitiveState, candidates: Candidates) -> CognitiveState:
        if state.view.rounds[0] == 1 and state.view.key[0] % np.uint64(2) == 0:
            raise WorldFailure(GONE)
        return await super().branch(state, candidates)


def test_a_study_with_failures_ends_counts_them_and_calibrates_with_infinite_scores(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "CognitiveWorld", _Sometimes)
    overrides = ("conditions=[hidden_post,rules]", "certified=[rules]", "world.batch=1")
    data = config(tmp_path, *overrides)
    run = run_stages(data, {}, ("calibrate", "evaluate", "report"))
    rows = read_rows(run, EpisodeRow)
    for stage in ("pilot", "calibrate"):
        assert len([row for row in rows if row.stage == stage]) == 20
    for condition in ("hidden_post", "rules", "rules+gate"):
        held = [row for row in rows if row.stage == "evaluate" and row.condition == condition]
        assert len(held) == 20
        assert 0 < sum(row.ending == "failed" for row in held) < 20
        assert all(row.error == GONE for row in held if row.ending == "failed")
    found = read_thresholds(run)["rules"]
    lost = sum(row.ending == "failed" for row in rows if row.stage == "calibrate")
    assert found.n[0] == 20
    assert found.n[1] == 20  # nobody stops before round two, so failures are what is counted here
    assert lost > 2
    assert np.isinf(found.values[1])  # more than one in ten scores infinity, and rank 19 of 20 is among them
    accuracy = (run / "tables" / "accuracy.csv").read_text()
    assert "hidden_post" in accuracy
    before = (run / "episodes.jsonl").read_bytes()
    run_stages({**data, "resume": str(run)}, {}, ("calibrate", "evaluate"))
    assert (run / "episodes.jsonl").read_bytes() == before
