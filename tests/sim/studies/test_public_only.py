"""Only the public record decides (METHOD 0): what is private changes no state, objective, route or proposal.

Precisely: give two discussions the same public record H_t, but other private clues, other minds and another
answer. Everything that is decided before a branch speaks must be the same bit for bit; the branches differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from conformal import OpenGate
from controllers.mlp import load
from controllers.protocol import Controller
from controllers.references import Random
from controllers.rules import NoisyRules, Rules, Stubborn
from sim.arrays import Ints
from sim.discussion.actions import ROUTE, Candidates, interventions
from sim.discussion.ending import Stop
from sim.discussion.inputs import state_vector
from sim.discussion.objective import Objective
from sim.discussion.public import PublicView, digest
from sim.discussion.routing import make_router
from sim.discussion.state import Features, observe
from sim.records.rows import DecisionRow, EpisodeRow
from sim.records.store import read_rows
from sim.studies.rollout import Policy, Step, decide_round
from sim.studies.stages import read_thresholds
from sim.studies.verbs import run_stages
from sim.tasks import HiddenProfileTask, generate_travel, load_tasks, write_tasks
from sim.worlds.cognitive import Cognition, CognitiveState, CognitiveWorld
from sim.worlds.protocol import Episodes

TASKS = generate_travel("medium", 40, seed=21)
ROUNDS = (0, 1, 3)
Config = Callable[..., dict[str, Any]]


def with_other_answer(task: HiddenProfileTask) -> HiddenProfileTask:
    """The same task with the next option as its answer."""
    options = task.possible_answers
    return msgspec.structs.replace(task, correct_answer=options[(task.answer_index + 1) % len(options)])


def with_other_secrets(task: HiddenProfileTask) -> HiddenProfileTask:
    """Another answer, and the private clues held by other agents and pointing elsewhere."""
    assert task.evidence is not None
    shared, private = task.evidence[: task.n_shared], task.evidence[task.n_shared :]
    moved = tuple(row[1:] + row[:1] for row in (*private[1:], private[0]))
    return msgspec.structs.replace(
        with_other_answer(task),
        hidden_information=(*task.hidden_information[1:], task.hidden_information[0]),
        evidence=(*shared, *moved),
    )


def policy(controller: Controller) -> Policy:
    """A policy over interventions, votes included."""
    return Policy(
        "test", controller, interventions(vote=True), make_router("action_conditional"), Objective(),
        OpenGate(), Stop(),
    )  # fmt: skip


def after(world: CognitiveWorld, tasks: tuple[HiddenProfileTask, ...], rounds: int) -> CognitiveState:
    """The discussions of some tasks after some messages."""
    state = asyncio.run(world.open(Episodes(tasks, np.zeros(len(tasks), np.int64))))
    for number in range(rounds):
        speaker = np.full((len(tasks), 1), number % 4)
        one = Candidates(
            np.full_like(speaker, ROUTE), speaker, np.zeros_like(speaker), np.ones_like(speaker, bool)
        )
        state = asyncio.run(world.branch(state, one))
    return state


def decided(world: CognitiveWorld, state: CognitiveState, chosen: Policy) -> Step:
    """One round from a state."""
    return asyncio.run(decide_round(world, state, chosen, np.arange(state.view.size)))[0]


def public_part(step: Step) -> dict[str, Any]:
    """What a round decides from the record alone."""
    parts: dict[str, Any] = {
        "view": digest(step.view),
        "objective": step.objective,
        "proposal": step.proposal,
    }
    parts["malformed"] = step.malformed
    parts["state"] = state_vector(step.view, step.features, step.candidates)
    for name in ("actions", "speakers", "draws", "admissible"):
        parts[name] = getattr(step.candidates, name)
    for field in fields(step.features):
        if field.name != "signals":
            parts[field.name] = getattr(step.features, field.name)
    for field in fields(step.features.signals):
        parts[f"signals.{field.name}"] = getattr(step.features.signals, field.name)
    return parts


def differences(world: CognitiveWorld, controller: Callable[[], Controller], rounds: int) -> set[str]:
    """Which public parts of a round depend on what is private; none must. The check the mutants fail."""
    first = after(world, TASKS, rounds)
    second = after(world, tuple(map(with_other_secrets, TASKS)), rounds)
    same_record = replace(second, view=first.view)
    ours, theirs = (
        decided(world, first, policy(controller())),
        decided(world, same_record, policy(controller())),
    )
    assert (ours.objectives != theirs.objectives).any(), "the secrets made no difference to any branch"
    mine, other = public_part(ours), public_part(theirs)
    return {name for name in mine if not np.array_equal(mine[name], other[name])}


PLAIN: dict[str, Callable[[], Controller]] = {
    "rules": Rules,
    "rules_vote": lambda: Rules(vote=True),
    "noisy_rules": NoisyRules,
    "random": Random,
}


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("name", PLAIN)
def test_secrets_change_nothing_that_is_decided(name: str, rounds: int) -> None:
    assert differences(CognitiveWorld(Cognition(), 8), PLAIN[name], rounds) == set()


def test_secrets_change_nothing_for_a_controller_with_a_memory_or_a_network(finished: Path) -> None:
    world = CognitiveWorld(Cognition(), 8)
    assert differences(world, Stubborn, 0) == set()
    trained = load(finished / "controller" / "mlp")
    for rounds in ROUNDS:
        assert differences(world, lambda: trained, rounds) == set()


class _LeakingWorld(CognitiveWorld):
    """Mutant: the record shows what agents think, not what they said when asked."""

    def view(self, state: CognitiveState) -> PublicView:
        raised = np.exp(state.minds.latent)
        return replace(state.view, beliefs=raised / raised.sum(-1, keepdims=True))


class _WordyWorld(CognitiveWorld):
    """Mutant: the record counts an agent's secret clue as contributed before it is said."""

    def view(self, state: CognitiveState) -> PublicView:
        held = np.abs(state.cohort.perceived[state.source]).max((2, 3))
        return replace(state.view, evidence=np.minimum(1.0, state.view.evidence + 0.01 * held))


@pytest.mark.parametrize("mutant", [_LeakingWorld, _WordyWorld])
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_record_that_leaks_is_caught(mutant: type[CognitiveWorld], rounds: int) -> None:
    assert "view" in differences(mutant(Cognition(), 8), Rules, rounds)


class _Spy(CognitiveWorld):
    """A world that lets a controller look at the state it is asked about."""

    seen: CognitiveState

    def view(self, state: CognitiveState) -> PublicView:
        self.seen = state
        return super().view(state)


class _Cheat(NoisyRules):
    """Mutant: a controller that looks into the minds."""

    def __init__(self, world: _Spy) -> None:
        super().__init__()
        object.__setattr__(self, "world", world)

    async def propose(self, view: PublicView, features: Features, candidates: Candidates) -> Ints:
        minds: Any = self.world.seen.minds  # type: ignore[attr-defined]
        proposal: Ints = minds.latent[:, 0].argmax(-1)
        return proposal


def test_a_controller_that_looks_into_the_minds_is_caught() -> None:
    world = _Spy(Cognition(), 8)
    assert "proposal" in differences(world, lambda: _Cheat(world), 1)


def test_features_that_see_a_secret_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the state builder reads the state of the world instead of the record."""
    from sim.studies import rollout

    world = _Spy(Cognition(), 8)

    def leaking(view: PublicView) -> Features:
        return replace(observe(view), confidence=world.seen.minds.latent.max((1, 2)))

    monkeypatch.setattr(rollout, "observe", leaking)
    assert differences(world, Rules, 1) == {"confidence", "state"}


def test_a_route_that_knows_a_secret_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the router asks the agent whose clue is worth most."""
    world = _Spy(Cognition(), 8)

    def knowing(view: PublicView, action: int) -> Ints:
        worth = np.abs(world.seen.cohort.perceived[world.seen.source]).max((2, 3))
        chosen: Ints = worth.argmax(1)
        return chosen

    monkeypatch.setattr(f"{__name__}.make_router", lambda name: knowing)
    assert {"speakers"} <= differences(world, Rules, 1)


def test_the_words_of_clues_that_nobody_mentioned_change_nothing() -> None:
    """Really built, not substituted: two private clues exchange their words. Beliefs rest on evidence, so the
    records agree by themselves, bit for bit, until one of the two is mentioned; and so does what is decided."""
    world = CognitiveWorld(Cognition(), 8)
    silent = tuple(_with_texts_swapped(task) for task in TASKS)
    first, second = after(world, TASKS, 0), after(world, silent, 0)
    np.testing.assert_array_equal(digest(first.view), digest(second.view))
    for _ in range(3):
        one, two = (decided(world, state, policy(Rules())) for state in (first, second))
        mine, other = public_part(one), public_part(two)
        unmentioned = ~((first.minds.mentions[:, 6] > 0) | (first.minds.mentions[:, 7] > 0))
        assert unmentioned.any()
        for name, values in mine.items():
            np.testing.assert_array_equal(values[unmentioned], other[name][unmentioned], err_msg=name)
        first, second = (
            world.select(asyncio.run(world.branch(state, step.candidates)), _executed(step))
            for state, step in ((first, one), (second, two))
        )


def _executed(step: Step) -> Ints:
    width = step.candidates.actions.shape[1]
    rows: Ints = np.arange(len(step.running)) * width + step.decision.executed
    return rows


def _with_texts_swapped(task: HiddenProfileTask) -> HiddenProfileTask:
    hidden = task.hidden_information
    return msgspec.structs.replace(task, hidden_information=(*hidden[:2], hidden[3], hidden[2], *hidden[4:]))


def test_another_answer_changes_no_decision_no_weight_and_no_threshold(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    """A whole study twice, the second time with every answer wrong: exploration, training, calibration and
    every discussion are the same bit for bit. Only who was right differs."""
    tasks = load_tasks(finished / "tasks.json")
    write_tasks(tmp_path / "wrong.json", [with_other_answer(task) for task in tasks])
    data = config(tmp_path / "runs", "task=file", f"task.path={tmp_path / 'wrong.json'}")
    again = run_stages(data, {}, ("explore", "train", "calibrate", "evaluate"))
    assert _rows(again, DecisionRow) == _rows(finished, DecisionRow)
    theirs, ours = _rows(again, EpisodeRow), _rows(finished, EpisodeRow)
    assert [{**row, "answer": 0} for row in theirs] == [{**row, "answer": 0} for row in ours]
    assert all(a["answer"] != b["answer"] for a, b in zip(theirs, ours, strict=True))
    assert read_thresholds(again) == read_thresholds(finished)
    weights = "controller/mlp/mlp.safetensors"
    assert (again / weights).read_bytes() == (finished / weights).read_bytes()


def _rows(run: Path, kind: type[DecisionRow] | type[EpisodeRow]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [msgspec.to_builtins(row) for row in read_rows(run, kind)]
    return sorted(
        rows,
        key=lambda row: str([row[k] for k in ("stage", "condition", "task", "seed")]) + str(row.get("round")),
    )
