"""Cognitive agents: pure branching, keyed randomness, METHOD 9's table, and nothing private in the record."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from conformal import OpenGate
from controllers.protocol import Controller
from controllers.references import Best, Fixed, Random
from controllers.rules import NoisyRules, Rules
from sim.arrays import Bools
from sim.discussion.actions import ACTIONS, Menu, free_messages, interventions
from sim.discussion.ending import Stop
from sim.discussion.objective import Objective
from sim.discussion.public import digest
from sim.discussion.routing import candidates, make_router
from sim.errors import UserError
from sim.studies.rollout import Policy, rollout
from sim.studies.trace import Trace
from sim.tasks import HiddenProfileTask, generate_method, generate_travel
from sim.worlds.cognitive import Cognition, CognitiveState, CognitiveWorld
from sim.worlds.protocol import Episodes

WORLD = CognitiveWorld(Cognition(), 8, measured_text=False)
ROUTER = make_router("action_conditional")
N_TASKS = 4000


def opened(tasks: tuple[HiddenProfileTask, ...], world: CognitiveWorld = WORLD) -> CognitiveState:
    """A batch before any message."""
    return asyncio.run(world.open(Episodes(tasks, np.zeros(len(tasks), np.int64))))


def one_round(state: CognitiveState, world: CognitiveWorld = WORLD) -> CognitiveState:
    """All interventions from a state."""
    return asyncio.run(world.branch(state, candidates(world.view(state), interventions(), ROUTER)))


def held(
    controller: Controller,
    menu: Menu,
    router: str = "action_conditional",
    discuss: bool = True,
    full: bool = False,
    exhaustive: bool = False,
    tasks: tuple[HiddenProfileTask, ...] | None = None,
) -> Trace:
    """METHOD 9's discussions under a controller."""
    chosen = generate_method(N_TASKS, seed=11) if tasks is None else tasks
    episodes = Episodes(chosen, np.zeros(len(chosen), np.int64))
    free = menu.actions == free_messages().actions
    policy = Policy(
        name="test", controller=controller, menu=menu, router=make_router(router), objective=Objective(),
        gate=OpenGate(), stop=Stop(quorum=None) if free else Stop(), exhaustive=exhaustive, discuss=discuss,
        full_information=full,
    )  # fmt: skip
    trace = Trace(episodes)
    asyncio.run(rollout(WORLD, episodes, policy, trace))
    return trace


def test_branching_leaves_the_state_as_it_was() -> None:
    state = opened(generate_method(50, seed=1))
    before = digest(state.view)
    memory = state.minds.memory.copy()
    one_round(state)
    np.testing.assert_array_equal(digest(state.view), before)
    np.testing.assert_array_equal(state.minds.memory, memory)


def test_a_branch_does_not_depend_on_its_batch() -> None:
    tasks = generate_method(64, seed=2)
    whole = one_round(one_round(opened(tasks)))
    rows = np.array([40, 3, 17])
    part = one_round(one_round(opened(tuple(tasks[i] for i in rows))))
    every = np.concatenate([np.arange(16) + 16 * row for row in rows])
    np.testing.assert_array_equal(whole.minds.latent[every], part.minds.latent)
    np.testing.assert_array_equal(digest(whole.view)[every], digest(part.view))


def test_branches_of_one_state_are_independent_draws() -> None:
    state = opened(generate_method(200, seed=3))
    menu = free_messages(4)
    branches = asyncio.run(WORLD.branch(state, candidates(state.view, menu, ROUTER)))
    novelty = branches.view.novelty.reshape(200, 4)
    assert abs(np.asarray(np.corrcoef(novelty.T))[0, 1]) < 0.25
    assert (novelty[:, 0] != novelty[:, 1]).mean() > 0.9


def test_hidden_clues_and_the_answer_reach_nothing_public() -> None:
    """With beliefs, words and messages fixed, other private clues and another answer change no public field:
    the record is a function of what was said and elicited alone."""
    tasks = generate_travel("medium", 20, seed=4)
    state = opened(tasks, CognitiveWorld(Cognition(), 8))
    other = tuple(
        msgspec.structs.replace(
            task,
            hidden_information=task.hidden_information[::-1],
            evidence=(*task.evidence[: task.n_shared], *task.evidence[: task.n_shared - 1 : -1]),
            correct_answer=next(o for o in task.possible_answers if o != task.correct_answer),
        )
        for task in tasks
        if task.evidence is not None
    )
    changed = opened(other, CognitiveWorld(Cognition(), 8))
    elicited = state.view.beliefs
    same_record = replace(changed.view, beliefs=elicited, previous=elicited)
    np.testing.assert_array_equal(digest(same_record), digest(state.view))
    for task, twin in zip(tasks, other, strict=True):
        assert task.public() == twin.public()


METHOD_9 = {
    "hidden_pre": 0.216,
    "hidden_post": 0.290,
    "full_info": 0.782,
    "rules": 0.795,
    "noisy_rules": 0.800,
    "random": 0.758,
    "greedy": 0.810,
}


@pytest.mark.parametrize(("name", "expected"), METHOD_9.items())
def test_method_9_accuracy_within_monte_carlo_error(name: str, expected: float) -> None:
    runs = {
        "hidden_pre": lambda: held(Rules(), interventions(), discuss=False),
        "hidden_post": lambda: held(Fixed("free"), free_messages()),
        "full_info": lambda: held(Rules(), interventions(), discuss=False, full=True),
        "rules": lambda: held(Rules(), interventions()),
        "noisy_rules": lambda: held(NoisyRules(), interventions()),
        "random": lambda: held(Random(), interventions()),
        "greedy": lambda: held(Best("greedy"), interventions(), exhaustive=True),
    }
    assert within_error(runs[name]().correct, expected)


def within_error(correct: Bools, expected: float) -> bool:
    """Whether a share agrees with METHOD's (20,000 tasks) at level 1e-3, both with their own error."""
    variance = expected * (1 - expected)
    error = np.sqrt(variance / len(correct) + variance / 20_000)
    return bool(abs(correct.mean() - expected) < 3.29 * error)


def test_routers_and_removed_actions_order_as_in_method_9() -> None:
    full = held(NoisyRules(), interventions()).correct.mean()
    loss = {a: full - held(NoisyRules(), interventions(without=(a,))).correct.mean() for a in ACTIONS[:4]}
    assert loss["route"] > loss["seek_evidence"] > max(loss["clarify"], loss["challenge"])
    assert within_error(held(Rules(), interventions(), "random").correct, 0.720)
    assert within_error(held(Rules(), interventions(), "round_robin").correct, 0.793)


def test_control_beats_free_discussion_by_three_tenths() -> None:
    gain = held(Rules(), interventions()).correct.mean() - held(Fixed("free"), free_messages()).correct.mean()
    assert gain >= 0.3


def test_parameters_act_as_named() -> None:
    tasks = generate_method(2000, seed=5)
    episodes = Episodes(tasks, np.zeros(2000, np.int64))
    state = asyncio.run(WORLD.open(episodes, full_information=True))
    foreign = state.minds.memory[:, 0, state.cohort.n_shared + 1 :]
    assert abs(foreign.mean() - 0.8) < 3.29 * np.sqrt(0.16 / foreign.size)
    attentive = CognitiveWorld(Cognition(miss=0.0), 8, measured_text=False)
    everything = asyncio.run(attentive.open(episodes, full_information=True))
    assert everything.minds.memory.all()


def test_a_task_without_evidence_is_refused() -> None:
    task = msgspec.structs.replace(generate_method(1, seed=1)[0], evidence=None)
    with pytest.raises(UserError, match="evidence is missing"):
        opened((task,))
    with pytest.raises(UserError, match=r"world\.cognition\.miss is 2"):
        Cognition(miss=2.0)
