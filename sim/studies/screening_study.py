"""The committed study behind METHOD 7: how many branches screened certification evaluates, and what it
still guarantees, with learned predictions of the branch objectives against a constant per action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from conformal import OpenGate, order_statistic
from conformal.screened import (
    Predictions,
    ScreenProblem,
    constant_predictions,
    problem,
    procedure_scores,
    screen,
    union_scores,
)
from controllers.card import Training
from controllers.dataset import BranchDataset
from controllers.rules import NoisyRules
from controllers.training import train
from sim.arrays import Bools, Floats, Ints
from sim.discussion.actions import ACTION_NAMES, SPOKEN, interventions
from sim.discussion.inputs import state_vector
from sim.discussion.objective import Objective
from sim.discussion.public import PublicView
from sim.discussion.routing import make_router
from sim.studies.blocking import wait_for
from sim.studies.rollout import Ending, Policy, Step, rollout
from sim.tasks import generate_method
from sim.worlds.cognitive import Cognition, CognitiveWorld
from sim.worlds.protocol import batches

ALPHA_S = (0.01, 0.02, 0.05)
_SCALE_FLOOR = 0.01
_REGRET_ROUNDING = 1e-12


@dataclass(frozen=True)
class Decisions:
    """One round of n discussions: states (n, D), branch objectives (n, 4), proposals (n,)."""

    states: Floats
    objectives: Floats
    proposal: Ints

    def part(self, start: int, stop: int) -> Decisions:
        """Some of the discussions."""
        return Decisions(self.states[start:stop], self.objectives[start:stop], self.proposal[start:stop])


@dataclass(frozen=True)
class _After:
    """Stops every discussion after a number of rounds."""

    rounds: int

    def __call__(self, view: PublicView) -> Bools:
        over: Bools = view.rounds >= self.rounds
        return over


@dataclass
class _Snapshot:
    """A recorder that keeps one round."""

    round: int
    kept: list[Decisions] = field(default_factory=list)

    def opened(self, view: PublicView) -> None:
        """Nothing to keep yet."""

    def stepped(self, step: Step) -> None:
        """Keep the round asked for."""
        if int(step.view.rounds[0]) + 1 == self.round:
            states = state_vector(step.view, step.features, step.candidates)
            self.kept.append(Decisions(states, step.objectives, step.proposal))

    def ended(self, ending: Ending) -> None:
        """Outcomes are not needed."""

    def failed(self, rows: Ints, view: PublicView | None, error: str) -> None:
        """Cognitive agents do not fail."""
        raise RuntimeError(error)


def collect(count: int, round_number: int, seed: int) -> Decisions:
    """Round `round_number` of `count` fresh discussions under noisy rules, nobody stopping early."""
    policy = Policy(
        name="screening",
        controller=NoisyRules(),
        menu=interventions(),
        router=make_router("action_conditional"),
        objective=Objective(),
        gate=OpenGate(),
        stop=_After(round_number),
    )
    world = CognitiveWorld(Cognition(), 8, measured_text=False)
    snapshot = _Snapshot(round_number)
    for episodes in batches(generate_method(count, seed=seed), (0,), 4096):
        wait_for(rollout(world, episodes, policy, snapshot))
    return Decisions(
        np.concatenate([part.states for part in snapshot.kept]),
        np.concatenate([part.objectives for part in snapshot.kept]),
        np.concatenate([part.proposal for part in snapshot.kept]),
    )


def learned_predictions(training: Decisions, held_out: Decisions) -> Callable[[Floats], Predictions]:
    """Networks for J of each branch and for the size of their own error, trained on separate discussions."""
    value = _regress(training.states, training.objectives)
    error = _regress(held_out.states, np.abs(value(held_out.states) - held_out.objectives))
    return lambda states: Predictions(value(states), np.maximum(error(states), _SCALE_FLOOR))


def _regress(states: Floats, targets: Floats) -> Callable[[Floats], Floats]:
    count = len(states)
    names = tuple(str(i) for i in range(count))
    data = BranchDataset(
        actions=tuple(ACTION_NAMES[action] for action in SPOKEN),
        tasks=names,
        families=names,
        x=states.astype(np.float32),
        mask=np.ones(targets.shape, bool),
        objective=np.zeros(count, np.float32),
        objectives=targets.astype(np.float32),
        task=np.arange(count, dtype=np.int32),
        seed=np.zeros(count, np.int64),
        round=np.ones(count, np.int16),
        executed=np.zeros(count, np.int8),
    )
    network = train(data, Training(target="objective", epochs=40)).network
    return lambda x: network(x).astype(np.float64)


def screening_table(
    rounds: tuple[int, ...], replicates: int, n: int, alpha: float, advance: Callable[[int], None]
) -> pd.DataFrame:
    """One row per round, prediction and band: branches evaluated, P(executed regret <= q), acceptance.

    Every replicate has a fold for q, one for the band and one to deploy on, of n discussions each.
    """
    rows: list[dict[str, object]] = []
    for round_number in rounds:
        training = collect(4500, round_number, seed=7_000 + round_number)
        held_out = collect(1500, round_number, seed=8_000 + round_number)
        fresh = collect(3 * n * replicates, round_number, seed=9_000 + round_number)
        constant = constant_predictions(training.objectives)
        forecasts = {
            "learned": learned_predictions(training, held_out)(fresh.states),
            "constant": Predictions(
                np.broadcast_to(constant.objective, fresh.objectives.shape),
                np.broadcast_to(constant.scale, fresh.objectives.shape),
            ),
        }
        for prediction, forecast in forecasts.items():
            found = [
                outcome
                for replicate in range(replicates)
                for outcome in _replicate(fresh, forecast, replicate * 3 * n, n, alpha)
            ]
            advance(1)
            rows += _summary(found, round_number, prediction)
    return pd.DataFrame(rows)


def _replicate(
    fresh: Decisions, forecast: Predictions, start: int, n: int, alpha: float
) -> Iterator[dict[str, object]]:
    """The three folds of one replicate under every band."""
    folds = [fresh.part(start + i * n, start + (i + 1) * n) for i in range(3)]
    ahead = [
        Predictions(forecast.objective[start + i * n : start + (i + 1) * n],
                    forecast.scale[start + i * n : start + (i + 1) * n])
        for i in range(3)
    ]  # fmt: skip
    q = order_statistic(_scores(folds[0]), alpha)
    given = problem(folds[1].proposal, ahead[1], q, 0.0)
    scores = {
        "procedure": procedure_scores(given, folds[1].objectives),
        "union": union_scores(given, folds[1].objectives),
    }
    deployed = problem(folds[2].proposal, ahead[2], q, np.inf)
    yield {"band": "full", "alpha_s": np.nan} | _deploy(deployed, folds[2], q)
    for band, values in scores.items():
        for alpha_s in ALPHA_S:
            width = order_statistic(values, alpha_s, signed=True)
            narrowed = deployed._replace(band=np.full(n, width))
            yield {"band": band, "alpha_s": alpha_s} | _deploy(narrowed, folds[2], q)


def _scores(fold: Decisions) -> Floats:
    rows = np.arange(len(fold.proposal))
    regret: Floats = fold.objectives[rows, fold.proposal] - fold.objectives.min(1)
    return regret


def _deploy(given: ScreenProblem, fold: Decisions, q: float) -> dict[str, object]:
    outcome = screen(given, fold.objectives)
    executed = replace(fold, proposal=outcome.executed)
    return {
        "branches": outcome.branches.mean(),
        "regret_within_threshold": (_scores(executed) <= q + _REGRET_ROUNDING).mean(),
        "acceptance_rate": outcome.accepted.mean(),
    }


def _summary(found: list[dict[str, object]], round_number: int, prediction: str) -> list[dict[str, object]]:
    frame = pd.DataFrame(found)
    rows = []
    for (band, alpha_s), part in frame.groupby(["band", "alpha_s"], sort=False, dropna=False):
        rows.append(
            {
                "round": round_number,
                "prediction": prediction,
                "band": band,
                "alpha_s": alpha_s,
                "branches": part["branches"].mean(),
                "saved": 1 - part["branches"].mean() / len(SPOKEN),
                "regret_within_threshold": part["regret_within_threshold"].mean(),
                "standard_error": part["regret_within_threshold"].std() / np.sqrt(len(part)),
                "acceptance_rate": part["acceptance_rate"].mean(),
            }
        )
    return rows
