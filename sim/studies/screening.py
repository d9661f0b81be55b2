"""Screened rounds: predictions of branch objectives and a calibrated band decide which branches are evaluated
(METHOD 7).

The candidate that is committed is always an evaluated branch. What must be evaluated next is decided by the
conformal package; here branches are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import numpy as np

from conformal import Decision, Thresholds
from conformal.screened import Predictions, ScreenProblem, audit_rows, problem, screen_step
from sim.arrays import Bools, Floats, Ints
from sim.discussion.actions import Candidates
from sim.discussion.public import PublicView
from sim.randomness import keys, uniform
from sim.worlds.protocol import World

S = TypeVar("S")

Forecast: TypeAlias = Callable[[Floats, Ints], Predictions]
"""(state vectors (n, D), actions (n, C)) -> predicted objectives and their scales (n, C)."""


@dataclass(frozen=True)
class ScreenedGate:
    """Accepts at calibrated thresholds, but evaluates only what the band cannot rule out.

    `band` (T,) is +inf where everything must be evaluated; a seeded share `audit_fraction` of the decisions is
    evaluated in full all the same, because coverage can be observed on those alone.
    """

    thresholds: Thresholds
    band: Floats
    forecast: Forecast
    audit_fraction: float

    def problem(self, t: int, proposal: Ints, states: Floats, options: Candidates) -> ScreenProblem:
        """What a round t (1-based) is given."""
        return problem(
            proposal,
            self.forecast(states, options.actions),
            self.thresholds.acceptance[t - 1],
            self.band[t - 1],
            options.admissible,
        )

    def audited(self, view: PublicView) -> Bools:
        """Which decisions are evaluated in full, by a key of the discussion and round (B,)."""
        return audit_rows(uniform(keys("audit", view.key, view.rounds), 1)[:, 0], self.audit_fraction)


async def evaluate_screened(
    world: World[S],
    state: S,
    objective: Callable[[PublicView], Floats],
    options: Candidates,
    given: ScreenProblem,
    audited: Bools,
) -> tuple[S, Floats, Bools]:
    """Branches, objectives (B, C; +inf where not evaluated) and which were evaluated (B, C).

    The world is asked again with more branches until none is in doubt; worlds that pay for a branch keep the
    ones they have, so none is paid for twice.
    """
    rows = np.arange(len(given.proposal))
    evaluated = options.admissible & audited[:, None]
    evaluated[rows, given.proposal] = True
    for _ in range(options.actions.shape[1]):
        branches = await world.branch(state, replace(options, admissible=evaluated))
        values = objective(world.view(branches)).reshape(evaluated.shape)
        objectives = np.where(evaluated, values, np.inf)
        following = screen_step(given, objectives, evaluated).branch
        wanted = (following >= 0) & ~audited
        if not wanted.any():
            break
        evaluated = evaluated.copy()
        evaluated[rows[wanted], following[wanted]] = True
    return branches, objectives, evaluated


def decide_screened(
    gate: ScreenedGate, t: int, given: ScreenProblem, objectives: Floats, evaluated: Bools
) -> Decision:
    """Commit the candidate: the proposal unless an evaluated branch beats it by more than the threshold."""
    executed = screen_step(given, objectives, evaluated).candidate
    regrets = objectives - objectives.min(1, keepdims=True)
    size = len(executed)
    certified = bool(gate.thresholds.certified[t - 1]) and bool(
        np.isfinite(gate.thresholds.acceptance[t - 1])
    )
    return Decision(
        executed=executed,
        admissible_set=evaluated & (regrets <= given.threshold[:, None]),
        threshold=np.asarray(given.threshold, dtype=np.float64),
        certified=np.full(size, certified),
        replaced=executed != given.proposal,
    )
