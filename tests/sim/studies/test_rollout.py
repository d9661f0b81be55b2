"""The one loop: committed branches, gates, references, failures."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from conformal import Gate, OpenGate, ThresholdGate, Thresholds, fit
from controllers.protocol import Controller
from controllers.references import Best, Fixed, Random
from controllers.rules import NoisyRules
from sim.arrays import Bools, Ints
from sim.discussion.actions import VOTE, Candidates, free_messages, interventions
from sim.discussion.ending import ABSTAIN, Stop, Votes
from sim.discussion.objective import Objective
from sim.discussion.public import PublicView
from sim.discussion.routing import make_router
from sim.studies.rollout import CommitMismatch, Policy, rollout
from sim.studies.trace import Trace
from sim.tasks import generate_method
from sim.worlds.cognitive import Cognition, CognitiveState, CognitiveWorld
from sim.worlds.protocol import Episodes, World, WorldFailure

WORLD = CognitiveWorld(Cognition(), 6, measured_text=False)


def policy(controller: Controller, gate: Gate | None = None, vote: bool = False, **changes: object) -> Policy:
    """A policy over interventions."""
    base = Policy(
        "test", controller, interventions(vote), make_router("action_conditional"), Objective(),
        gate or OpenGate(), Stop(),
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def held(chosen: Policy, n: int = 300, seed: int = 1, world: World[CognitiveState] = WORLD) -> Trace:
    """Discussions under a policy."""
    episodes = Episodes(generate_method(n, seed=seed), np.zeros(n, np.int64))
    trace = Trace(episodes)
    asyncio.run(rollout(world, episodes, chosen, trace))
    return trace


def thresholds(alpha: float = 0.1, seed: int = 2) -> Thresholds:
    """Thresholds calibrated on other tasks."""
    base = held(policy(NoisyRules()), 200, seed)
    units = [task.family for task in base.episodes.tasks]
    return fit("roundwise", base.scores, base.reached, alpha, units=units)


def test_executed_regret_never_exceeds_the_threshold() -> None:
    found = thresholds()
    trace = held(policy(NoisyRules(), ThresholdGate(found)))
    within = trace.executed <= found.acceptance
    assert within[trace.reached].all()
    refused = trace.scores > found.acceptance
    np.testing.assert_array_equal(trace.replaced[trace.reached], refused[trace.reached])
    assert (trace.executed[trace.replaced] == 0).all()
    assert trace.replaced.any()


def test_greedy_executes_the_best_branch_and_an_open_gate_the_proposal() -> None:
    greedy = held(policy(Best("greedy")))
    assert (greedy.executed[greedy.reached] == 0).all()
    assert (greedy.scores[greedy.reached] == 0).all()
    free = held(policy(Random()))
    np.testing.assert_array_equal(free.executed, free.scores)


def test_proposals_alone_are_evaluated_where_asked() -> None:
    alone = held(policy(NoisyRules(), exhaustive=False))
    every = held(policy(NoisyRules()))
    assert (alone.branches[alone.reached] == 1).all()
    assert (every.branches[every.reached] == 4).all()
    np.testing.assert_array_equal(alone.decision, every.decision)


def test_paired_conditions_share_their_first_beliefs_and_branches() -> None:
    first, second = held(policy(Fixed("route"))), held(policy(Fixed("route"), ThresholdGate(thresholds())))
    np.testing.assert_array_equal(first.scores[:, 0], second.scores[:, 0])


def test_votes_are_refused_in_the_first_round_and_end_the_discussion_later() -> None:
    trace = held(policy(Fixed("vote"), vote=True))
    assert (trace.rounds == 2).all()
    assert (trace.branches[:, 0] == 4).all()
    assert (trace.branches[:, 1] == 5).all()


def test_best_of_four_free_messages_is_selection_without_intervention() -> None:
    chosen = replace(policy(Best("best_of_4_free")), menu=free_messages(4))
    trace = held(chosen)
    assert (trace.executed[trace.reached] == 0).all()
    assert (trace.branches[trace.reached] == 4).all()


class _Regenerating(CognitiveWorld):
    """A world that breaks the contract: committing a branch says something else than what was evaluated."""

    committing = False

    def select(self, state: CognitiveState, rows: Ints | Bools) -> CognitiveState:
        chosen = super().select(state, rows)
        if not self.committing:
            return chosen
        return replace(chosen, view=replace(chosen.view, novelty=chosen.view.novelty + 1e-12))

    async def branch(self, state: CognitiveState, candidates: Candidates) -> CognitiveState:
        self.committing = True
        return await super().branch(state, candidates)


def test_a_world_that_regenerates_on_commit_is_caught() -> None:
    with pytest.raises(CommitMismatch, match="nothing was committed"):
        held(policy(NoisyRules()), 20, world=_Regenerating(Cognition(), 6, measured_text=False))


class _Failing(CognitiveWorld):
    """A world whose engine gives up in the third round."""

    async def branch(self, state: CognitiveState, candidates: Candidates) -> CognitiveState:
        if state.view.rounds[0] == 2:
            raise WorldFailure("engine gave up: connection refused")
        return await super().branch(state, candidates)


def test_a_failed_discussion_scores_infinity_from_its_failure_on_and_is_listed() -> None:
    trace = held(policy(NoisyRules()), 10, world=_Failing(Cognition(), 6, measured_text=False))
    failed = sorted(trace.errors)
    assert failed
    assert set(trace.errors.values()) == {"engine gave up: connection refused"}
    assert np.isfinite(trace.scores[failed, :2]).all()
    assert np.isinf(trace.scores[failed, 2:]).all()
    assert (trace.decision[failed] == ABSTAIN).all()
    assert not trace.correct[failed].any()


class _Spy(NoisyRules):
    """A controller that keeps what it was shown."""

    async def propose(self, view: PublicView, features: object, candidates: Candidates) -> Ints:
        from sim.discussion.state import Features

        assert isinstance(view, PublicView)
        assert isinstance(features, Features)
        return await super().propose(view, features, candidates)


def test_a_controller_is_given_the_public_record_only() -> None:
    assert held(policy(_Spy()), 20).reached.any()


def test_results_do_not_depend_on_the_batch() -> None:
    tasks = generate_method(60, seed=9)
    seeds = np.zeros(60, np.int64)
    whole = Trace(Episodes(tasks, seeds))
    asyncio.run(rollout(WORLD, whole.episodes, policy(NoisyRules()), whole))
    half = Trace(Episodes(tasks[30:], seeds[30:]))
    asyncio.run(rollout(WORLD, half.episodes, policy(NoisyRules()), half))
    np.testing.assert_array_equal(whole.scores[30:], half.scores)
    np.testing.assert_array_equal(whole.decision[30:], half.decision)


def test_final_votes_are_fresh_reads() -> None:
    episodes = Episodes(generate_method(50, seed=3), np.zeros(50, np.int64))
    state = asyncio.run(WORLD.open(episodes))
    votes: Votes = asyncio.run(WORLD.final_votes(state))
    assert (votes.beliefs != state.view.beliefs).all()
    np.testing.assert_allclose(votes.beliefs, state.view.beliefs, atol=0.2)
    assert VOTE not in interventions().actions
