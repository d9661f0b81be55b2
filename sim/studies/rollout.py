"""The heart of the house: one loop that holds a batch of discussions under a policy.

Exploration, calibration and evaluation are this loop with another controller, gate or recorder, never another
loop. It sees the public record only; the worlds keep what is private.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from conformal import Decision, Gate
from controllers.protocol import BEST, Controller, ProposalFailure
from sim.arrays import Bools, Floats, Ints, take
from sim.discussion.actions import Candidates, Menu, settle
from sim.discussion.ending import DecisionRule, Votes
from sim.discussion.inputs import state_vector
from sim.discussion.objective import Objective, one_step_regret
from sim.discussion.public import PublicView, digest
from sim.discussion.routing import Router, candidates
from sim.discussion.state import Features, observe, signals
from sim.studies.gates import AnyGate, SetSampling, gate_at
from sim.studies.screening import ScreenedGate, decide_screened, evaluate_screened
from sim.worlds.protocol import Episodes, World, WorldFailure

S = TypeVar("S")


@dataclass(frozen=True)
class Policy:
    """Everything that decides how a discussion runs; `name` is the condition's row in every table.

    With `exhaustive` every admissible branch is evaluated and regret is known; without, only the proposal is.
    With `discuss` off the agents vote on their first beliefs (`hidden_pre`, `full_info`).
    """

    name: str
    controller: Controller
    menu: Menu
    router: Router
    objective: Objective
    gate: AnyGate
    stop: Callable[[PublicView], Bools]
    exhaustive: bool = True
    discuss: bool = True
    full_information: bool = False
    decision: DecisionRule = "plurality"


@dataclass(frozen=True)
class Step:
    """One round of the discussions still running (R of them, `running` indexes the batch).

    `branches` is the public record of all R·C branches, candidate c of row r at r·C + c; `objective` (R,) is
    J(s_t), `objectives` and `regrets` (R, C), +inf where not admissible; `proposal` (R,) are columns.
    """

    running: Ints
    view: PublicView
    features: Features
    candidates: Candidates
    branches: PublicView
    objective: Floats
    objectives: Floats
    regrets: Floats
    proposal: Ints
    malformed: Bools
    decision: Decision


@dataclass(frozen=True)
class Ending:
    """Discussions that are over: their rows in the batch, last public record, J there, and final votes."""

    rows: Ints
    view: PublicView
    objective: Floats
    votes: Votes


class Recorder(Protocol):
    """Takes what a rollout produces, in order, for one batch."""

    def opened(self, view: PublicView) -> None:
        """The opening records of the whole batch."""
        ...

    def stepped(self, step: Step) -> None:
        """One decided round."""
        ...

    def ended(self, ending: Ending) -> None:
        """Some discussions are over."""
        ...

    def failed(self, rows: Ints, view: PublicView | None, error: str) -> None:
        """The world gave up on these discussions; `view` is their last record, if they were opened."""
        ...


class CommitMismatch(AssertionError):
    """The branch committed is not, by content, the one whose regret was accepted (METHOD 3)."""


async def rollout(world: World[S], episodes: Episodes, policy: Policy, recorder: Recorder) -> None:
    """Hold every discussion of the batch to its end, telling the recorder of each round.

    A world or controller that gives up ends the discussions still running as failed.
    """
    running = np.arange(episodes.size)
    view: PublicView | None = None
    try:
        state = await world.open(episodes, policy.full_information)
        recorder.opened(view := world.view(state))
        while running.size:
            over = policy.stop(view) if policy.discuss else np.ones(view.size, bool)
            if over.any():
                votes = await world.final_votes(world.select(state, over))
                recorder.ended(close(policy, running[over], take(view, over), votes))
                state, running, view = world.select(state, ~over), running[~over], take(view, ~over)
            if running.size:
                step, branches = await decide_round(world, state, policy, running)
                recorder.stepped(step)
                state = commit(world, branches, step)
                view = world.view(state)
    except (WorldFailure, ProposalFailure) as failure:
        recorder.failed(running, view, str(failure))


def close(policy: Policy, rows: Ints, view: PublicView, votes: Votes) -> Ending:
    """The ending of discussions that are over."""
    return Ending(rows, view, policy.objective(signals(view)), votes)


async def decide_round(world: World[S], state: S, policy: Policy, running: Ints) -> tuple[Step, S]:
    """Propose, evaluate the branches from the frozen state, and let the gate decide; commits nothing."""
    view = world.view(state)
    features = observe(view)
    options = candidates(view, policy.menu, policy.router)
    proposed = await policy.controller.propose(view, features, options)
    proposal, malformed = settle(np.where(proposed == BEST, options.actions[:, 0], proposed), options)
    if not policy.exhaustive:
        options, proposal = only(options, proposal), np.zeros_like(proposal)
    if isinstance(policy.gate, ScreenedGate):
        branches, judged = await _judge_screened(
            world, state, policy, policy.gate, features, options, proposal
        )
    else:
        best = proposed == BEST
        branches, judged = await _judge_all(world, state, policy, policy.gate, options, proposal, best)
    step = Step(
        running=running,
        view=view,
        features=features,
        candidates=judged.options,
        branches=world.view(branches),
        objective=policy.objective(features.signals),
        objectives=judged.objectives,
        regrets=one_step_regret(judged.objectives, judged.options.admissible),
        proposal=judged.proposal,
        malformed=malformed,
        decision=judged.decision,
    )
    return step, branches


@dataclass(frozen=True)
class _Judged:
    """What became of the candidates: those evaluated, their objectives (R, C; +inf for others), the proposal
    and the decision (R,)."""

    options: Candidates
    objectives: Floats
    proposal: Ints
    decision: Decision


async def _judge_all(
    world: World[S],
    state: S,
    policy: Policy,
    gate: Gate | SetSampling,
    options: Candidates,
    proposal: Ints,
    best: Bools,
) -> tuple[S, _Judged]:
    """Evaluate every admissible candidate; where `best` (R,), the proposal is the one of lowest objective."""
    view = world.view(state)
    branches = await world.branch(state, options)
    values = policy.objective(signals(world.view(branches))).reshape(options.actions.shape)
    regrets = one_step_regret(values, options.admissible)
    proposal = np.where(best, regrets.argmin(1), proposal)
    decision = gate_at(gate, view).accept(round_of(view), proposal, regrets, options.admissible)
    return branches, _Judged(options, np.where(options.admissible, values, np.inf), proposal, decision)


async def _judge_screened(
    world: World[S],
    state: S,
    policy: Policy,
    gate: ScreenedGate,
    features: Features,
    options: Candidates,
    proposal: Ints,
) -> tuple[S, _Judged]:
    """Evaluate only what the gate's band cannot rule out; the candidates not evaluated count as not offered."""
    view = world.view(state)
    t = round_of(view)
    given = gate.problem(t, proposal, state_vector(view, features, options), options)
    branches, objectives, evaluated = await evaluate_screened(
        world, state, lambda seen: policy.objective(signals(seen)), options, given, gate.audited(view)
    )
    decision = decide_screened(gate, t, given, objectives, evaluated)
    return branches, _Judged(replace(options, admissible=evaluated), objectives, proposal, decision)


def only(options: Candidates, column: Ints) -> Candidates:
    """The candidates narrowed to one column each."""
    rows = np.arange(len(column))
    return replace(
        options,
        **{
            name: getattr(options, name)[rows, column][:, None]
            for name in ("actions", "speakers", "draws", "admissible")
        },
    )


def round_of(view: PublicView) -> int:
    """The 1-based round about to be decided; the running discussions of a batch are all at the same one."""
    rounds = np.unique(view.rounds)
    if len(rounds) != 1:
        raise AssertionError(f"running discussions are at different rounds: {rounds.tolist()}")
    return int(rounds[0]) + 1


def chosen_rows(step: Step) -> Ints:
    """Row of each executed branch among the step's branches."""
    width = step.candidates.actions.shape[1]
    rows: Ints = np.arange(len(step.running)) * width + step.decision.executed
    return rows


def commit(world: World[S], branches: S, step: Step) -> S:
    """The state after the executed branches: the evaluated ones themselves, never generated anew.

    Raises CommitMismatch if the committed content is not what was accepted.
    """
    rows = chosen_rows(step)
    committed = world.select(branches, rows)
    if not np.array_equal(digest(world.view(committed)), digest(step.branches)[rows]):
        raise CommitMismatch("the committed branch differs from the accepted one; nothing was committed")
    return committed
