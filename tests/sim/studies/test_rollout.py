"""The one loop: committed branches, gates, references, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformal import Gate, OpenGate, ThresholdGate, Thresholds, fit
from controllers.protocol import Controller
from controllers.references import Best, Fixed, Random
from controllers.rules import NoisyRules
from sim.arrays import Bools, Ints
from sim.discussion.actions import Candidates, free_messages, interventions
from sim.discussion.ending import Stop
from sim.discussion.objective import Objective
from sim.discussion.public import PublicView, digest
from sim.discussion.routing import make_router
from sim.studies import rollout as study_rollout
from sim.studies.rollout import CommitMismatch, Ending, Policy, Step, commit, decide_round, rollout
from sim.studies.trace import Trace
from sim.tasks import generate_method
from sim.worlds.cognitive import Cognition, CognitiveState, CognitiveWorld
from sim.worlds.protocol import Episodes, World

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


THRESHOLDS = thresholds()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("name", ["noisy", "random", "fixed", "greedy"])
def test_no_gate_ever_executes_a_regret_above_its_threshold(name: str, alpha: float, seed: int) -> None:
    """METHOD 3: r_t(a^e) <= q_t surely, whatever the controller, the level and the tasks."""
    proposing: dict[str, Controller] = {
        "noisy": NoisyRules(), "random": Random(), "fixed": Fixed("challenge"), "greedy": Best("greedy")
    }  # fmt: skip
    found = thresholds(alpha)
    trace = held(policy(proposing[name], ThresholdGate(found), vote=seed == 1), 60, seed + 50)
    assert (trace.executed <= found.acceptance)[trace.reached].all()


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
    """A world that breaks the contract: committing a branch says something else than what was evaluated.

    `spoil` changes the committed record; by default one novelty in its last bits.
    """

    spoil: Callable[[PublicView], PublicView] = staticmethod(
        lambda view: replace(view, novelty=np.nextafter(view.novelty, 2.0))
    )
    committing = False

    def select(self, state: CognitiveState, rows: Ints | Bools) -> CognitiveState:
        chosen = super().select(state, rows)
        return replace(chosen, view=self.spoil(chosen.view)) if self.committing else chosen

    async def branch(self, state: CognitiveState, candidates: Candidates) -> CognitiveState:
        self.committing = True
        return await super().branch(state, candidates)


def catches_regeneration(world: CognitiveWorld) -> bool:
    """Whether a rollout refuses what this world commits. The check that a removed assertion fails."""
    try:
        held(policy(NoisyRules()), 20, world=world)
    except CommitMismatch as error:
        return "nothing was committed" in str(error)
    return False


def test_a_world_that_regenerates_on_commit_is_caught() -> None:
    assert catches_regeneration(_Regenerating(Cognition(), 6, measured_text=False))
    assert not catches_regeneration(WORLD)


@pytest.mark.parametrize(
    "field",
    ["beliefs", "previous", "stale", "words", "evidence", "overlap", "shift", "last_words", "voted", "path"],
)
def test_a_commit_that_changes_any_part_of_the_record_is_caught(field: str) -> None:
    def spoil(view: PublicView) -> PublicView:
        value = getattr(view, field).copy()
        flat = value.reshape(len(value), -1)
        flat[0, 0] = ~flat[0, 0] if value.dtype == np.bool_ else flat[0, 0] + 1
        changed: dict[str, Any] = {field: value}
        return replace(view, **changed)

    world = _Regenerating(Cognition(), 6, measured_text=False)
    world.spoil = spoil
    assert catches_regeneration(world)


def test_without_its_assertion_a_regenerated_branch_would_slip_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutants: the assertion compares nothing, or only what does not change."""
    monkeypatch.setattr(study_rollout, "digest", lambda view: np.zeros(view.size, np.uint64))
    assert not catches_regeneration(_Regenerating(Cognition(), 6, measured_text=False))
    monkeypatch.setattr(study_rollout, "digest", lambda view: view.key)
    assert not catches_regeneration(_Regenerating(Cognition(), 6, measured_text=False))


def test_a_message_drawn_again_at_commit_is_caught() -> None:
    """With fresh dice the second message is another one: what was certified is not what would be said."""
    state = asyncio.run(WORLD.open(Episodes(generate_method(20, seed=1), np.zeros(20, np.int64))))
    step, branches = asyncio.run(decide_round(WORLD, state, policy(NoisyRules()), np.arange(20)))
    options = replace(step.candidates, draws=step.candidates.draws + 1)
    redrawn = asyncio.run(WORLD.branch(state, options))
    redrawn = replace(redrawn, view=replace(redrawn.view, path=branches.view.path))
    assert commit(WORLD, branches, step)
    with pytest.raises(CommitMismatch):
        commit(WORLD, redrawn, step)


@dataclass
class _Chain:
    """A recorder that holds each round against the one before: the check that wrong commits fail."""

    broken: int = 0
    checked: int = 0
    last: Step | None = None

    def opened(self, view: PublicView) -> None:
        """Nothing to hold against."""

    def stepped(self, step: Step) -> None:
        """The record of every discussion is the branch that was executed in the round before."""
        if self.last is not None:
            width = self.last.candidates.actions.shape[1]
            executed = np.arange(len(self.last.running)) * width + self.last.decision.executed
            accepted = digest(self.last.branches)[executed].tolist()
            before = dict(zip(self.last.running.tolist(), accepted, strict=True))
            for row, found in zip(step.running.tolist(), digest(step.view).tolist(), strict=True):
                self.checked += 1
                self.broken += before[row] != found
        self.last = step

    def ended(self, ending: Ending) -> None:
        """Nothing more."""

    def failed(self, rows: Ints, view: PublicView | None, error: str) -> None:
        """Not expected."""
        raise AssertionError(error)


def chain(chosen: Policy) -> _Chain:
    """A rollout held against itself."""
    episodes = Episodes(generate_method(60, seed=1), np.zeros(60, np.int64))
    kept = _Chain()
    asyncio.run(rollout(WORLD, episodes, chosen, kept))
    return kept


def test_what_is_committed_is_the_branch_that_was_accepted() -> None:
    for gate in (OpenGate(), ThresholdGate(THRESHOLDS)):
        kept = chain(policy(NoisyRules(), gate))
        assert kept.checked > 200
        assert kept.broken == 0


def test_committing_a_proposal_that_was_refused_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the gate decides, and the proposal is committed all the same."""

    def proposals(step: Step) -> Ints:
        rows: Ints = np.arange(len(step.running)) * step.candidates.actions.shape[1] + step.proposal
        return rows

    monkeypatch.setattr(study_rollout, "chosen_rows", proposals)
    assert chain(policy(NoisyRules())).broken == 0
    assert chain(policy(NoisyRules(), ThresholdGate(THRESHOLDS))).broken > 0


class _Spy(NoisyRules):
    """A controller that keeps what it was shown."""

    async def propose(self, view: PublicView, features: object, candidates: Candidates) -> Ints:
        from sim.discussion.state import Features

        assert isinstance(view, PublicView)
        assert isinstance(features, Features)
        return await super().propose(view, features, candidates)


def test_a_controller_is_given_the_public_record_only() -> None:
    assert held(policy(_Spy()), 20).reached.any()


@settings(max_examples=8)
@given(
    st.permutations(range(40)), st.lists(st.integers(1, 39), max_size=5), st.sampled_from(["open", "gate"])
)
def test_results_do_not_depend_on_batches_or_their_order(
    order: list[int], cuts: list[int], gate: str
) -> None:
    """Any order, cut anywhere: every score, decision, vote and word of every discussion is the same."""
    tasks, seeds = generate_method(40, seed=9), np.arange(40) % 2
    chosen = policy(NoisyRules(), OpenGate() if gate == "open" else ThresholdGate(THRESHOLDS))
    whole = Trace(Episodes(tasks, seeds))
    asyncio.run(rollout(WORLD, whole.episodes, chosen, whole))
    for rows in np.split(np.array(order), sorted(set(cuts))):
        part = Trace(Episodes(tuple(tasks[i] for i in rows), seeds[rows]))
        asyncio.run(rollout(WORLD, part.episodes, chosen, part))
        for name in ("scores", "executed", "spread", "replaced", "decision", "votes", "rounds", "words"):
            mine, other = getattr(whole, name)[rows], getattr(part, name)
            np.testing.assert_array_equal(mine, other, err_msg=name)
        np.testing.assert_array_equal(whole.final_objective[rows], part.final_objective)
