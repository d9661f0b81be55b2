"""Screened rounds in the rollout: what is pruned, what is committed, and that the certificate still holds."""

from __future__ import annotations

import asyncio

import numpy as np
from scipy import stats

from conformal import OpenGate, ThresholdGate, Thresholds, acceptance_thresholds, order_statistic
from conformal.screened import Predictions, problem, procedure_scores
from controllers.rules import NoisyRules
from sim.arrays import Bools, Floats, Ints
from sim.discussion.actions import interventions
from sim.discussion.objective import Objective
from sim.discussion.public import PublicView
from sim.discussion.routing import make_router
from sim.studies.gates import AnyGate
from sim.studies.rollout import Ending, Policy, Step, rollout
from sim.studies.screening import ScreenedGate
from sim.tasks import generate_method
from sim.worlds.cognitive import Cognition, CognitiveWorld
from sim.worlds.protocol import Episodes

WORLD = CognitiveWorld(Cognition(), 8, measured_text=False)
MEANS, SCALES = np.array([0.48, 0.48, 0.40, 0.40]), np.array([0.08, 0.08, 0.08, 0.08])


class _One:
    """Stops after the first round and keeps it."""

    step: Step

    def opened(self, view: PublicView) -> None:
        """Nothing yet."""

    def stepped(self, step: Step) -> None:
        """Keep the round."""
        self.step = step

    def ended(self, ending: Ending) -> None:
        """Not needed."""

    def failed(self, rows: Ints, view: PublicView | None, error: str) -> None:
        """Not expected."""
        raise AssertionError(error)


def after_one(view: PublicView) -> Bools:
    """Stop once a round was decided."""
    over: Bools = view.rounds >= 1
    return over


def first_round(gate: AnyGate, n: int = 400, seed: int = 1) -> Step:
    """The first round of fresh discussions under noisy rules and a gate."""
    policy = Policy(
        "test", NoisyRules(), interventions(), make_router("action_conditional"), Objective(), gate, after_one
    )
    kept = _One()
    episodes = Episodes(generate_method(n, seed=seed), np.zeros(n, np.int64))
    asyncio.run(rollout(WORLD, episodes, policy, kept))
    return kept.step


def constant(states: Floats, actions: Ints) -> Predictions:
    """A constant per action."""
    return Predictions(MEANS[actions], SCALES[actions])


def thresholds(step: Step) -> Thresholds:
    """Thresholds of round one from a fully evaluated round."""
    scores = step.regrets[np.arange(len(step.proposal)), step.proposal][:, None]
    units = [str(i) for i in range(len(scores))]
    return acceptance_thresholds(scores, np.ones_like(scores, bool), 0.1, units=units)


def band(step: Step, q: float) -> float:
    """The procedure-calibrated band at alpha_s = 0.01 from a fully evaluated round."""
    forecast = constant(np.empty((len(step.proposal), 0)), step.candidates.actions)
    given = problem(step.proposal, forecast, q, 0.0, step.candidates.admissible)
    return order_statistic(procedure_scores(given, step.objectives), 0.01, signed=True)


FOUND = thresholds(first_round(OpenGate(), seed=2))


def test_an_infinite_band_decides_as_full_evaluation_does() -> None:
    full = first_round(ThresholdGate(FOUND))
    screened = first_round(ScreenedGate(FOUND, np.array([np.inf]), constant, 0.0))
    np.testing.assert_array_equal(full.decision.executed, screened.decision.executed)
    np.testing.assert_array_equal(full.decision.replaced, screened.decision.replaced)


def test_auditing_everything_evaluates_everything() -> None:
    audited = first_round(ScreenedGate(FOUND, np.array([0.0]), constant, 1.0))
    assert audited.candidates.admissible.all()
    none = first_round(ScreenedGate(FOUND, np.array([0.0]), constant, 0.0))
    some = first_round(ScreenedGate(FOUND, np.array([0.0]), constant, 0.25))
    extra = some.candidates.admissible.all(1).mean() - none.candidates.admissible.all(1).mean()
    assert abs(extra - 0.25) < 0.12


def test_the_committed_branch_is_always_an_evaluated_one() -> None:
    step = first_round(ScreenedGate(FOUND, np.array([0.5]), constant, 0.0))
    rows = np.arange(len(step.proposal))
    assert step.candidates.admissible[rows, step.decision.executed].all()
    assert step.candidates.admissible[rows, step.proposal].all()
    assert step.candidates.admissible.sum(1).min() >= 1


def test_a_calibrated_band_saves_branches_and_keeps_its_promise() -> None:
    width = band(first_round(OpenGate(), 600, seed=3), float(FOUND.acceptance[0]))
    n = 4000
    truth = first_round(OpenGate(), n, seed=4)
    screened = first_round(ScreenedGate(FOUND, np.array([width]), constant, 0.0), n, seed=4)
    rows = np.arange(n)
    executed = truth.regrets[rows, screened.decision.executed]
    within = int((executed <= FOUND.acceptance[0] + 1e-12).sum())
    assert stats.betabinom(n, 595, 6).cdf(within) > 1e-3
    assert screened.candidates.admissible.sum(1).mean() < 0.45 * 4
    proposals = truth.regrets[rows, truth.proposal] <= FOUND.acceptance[0]
    assert (screened.decision.executed[proposals] == screened.proposal[proposals]).all()


def test_a_band_of_minus_everything_breaks_the_promise() -> None:
    """The mutant that never doubts a prune: it accepts blindly, and the test above would see it."""
    n = 4000
    truth = first_round(OpenGate(), n, seed=4)
    blind = first_round(ScreenedGate(FOUND, np.array([-1e6]), constant, 0.0), n, seed=4)
    within = int((truth.regrets[np.arange(n), blind.decision.executed] <= FOUND.acceptance[0] + 1e-12).sum())
    assert stats.betabinom(n, 595, 6).cdf(within) < 1e-3
    assert blind.candidates.admissible.sum(1).max() == 1
