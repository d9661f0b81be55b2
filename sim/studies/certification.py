"""Does a certificate hold? Replicated calibrations and deployments of METHOD 4 with the cognitive agents.

Every replicate draws its own task folds, calibrates as a user would, deploys on fresh tasks and counts what
was covered at each round. The folds of one replicate share no task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from conformal import (
    AuditGate,
    Gate,
    LockstepGate,
    OpenGate,
    SequentialCalibrator,
    ThresholdGate,
    Thresholds,
    as_acceptance,
    certify,
    fit,
    rank,
    scale,
    trajectory,
)
from controllers.protocol import Controller
from controllers.registry import make_controller
from sim.arrays import Bools, Floats, Ints
from sim.discussion.actions import interventions
from sim.discussion.ending import Stop
from sim.discussion.objective import Objective
from sim.discussion.routing import make_router
from sim.studies.blocking import wait_for
from sim.studies.rollout import Policy, rollout
from sim.studies.trace import Trace
from sim.tasks import generate_method
from sim.worlds.cognitive import Cognition, CognitiveWorld
from sim.worlds.protocol import Episodes

_FOLDS_PER_REPLICATE = 64


@dataclass(frozen=True)
class Setting:
    """One replicated experiment: fold size n, test size, rounds T, level alpha."""

    n: int = 99
    n_test: int = 100
    rounds: int = 8
    alpha: float = 0.1


@dataclass(frozen=True)
class Coverage:
    """Test episodes by round, over replicates: how many reached it, how many were covered, how many executed
    regrets exceeded what the gate accepted at; and episodes with any proposal above its threshold."""

    reached: Ints
    covered: Ints
    exceeded: Ints
    any_violation: int
    episodes: int

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(
            self.reached + other.reached,
            self.covered + other.covered,
            self.exceeded + other.exceeded,
            self.any_violation + other.any_violation,
            self.episodes + other.episodes,
        )


@dataclass
class Bench:
    """Fresh folds of one replicate, run under any gate. Fold numbers make the folds disjoint by construction:
    each is generated under a seed of its own."""

    controller: Controller
    replicate: int
    setting: Setting
    _next: int = 0

    def run(self, size: int, gate: Gate) -> Trace:
        """A fresh fold of `size` tasks held under the gate."""
        seed = self.replicate * _FOLDS_PER_REPLICATE + self._next
        self._next += 1
        tasks = generate_method(size, seed=seed)
        episodes = Episodes(tasks, np.zeros(size, np.int64))
        policy = Policy(
            name="certification",
            controller=self.controller,
            menu=interventions(),
            router=make_router("action_conditional"),
            objective=Objective(),
            gate=gate,
            stop=Stop(),
        )
        trace = Trace(episodes)
        world = CognitiveWorld(Cognition(), self.setting.rounds, measured_text=False)
        wait_for(rollout(world, episodes, policy, trace))
        return trace

    def fold(self, gate: Gate) -> tuple[Floats, Bools, list[str]]:
        """Scores, reached rounds and units of a fresh calibration fold."""
        trace = self.run(self.setting.n, gate)
        return trace.scores, trace.reached, [task.family for task in trace.episodes.tasks]


def _naive(bench: Bench) -> Thresholds:
    scores, reached, units = bench.fold(OpenGate())
    return fit("roundwise", scores, reached, bench.setting.alpha, units=units)


def _audit(bench: Bench) -> Thresholds:
    scores, reached, units = bench.fold(OpenGate())
    return fit("audit", scores, reached, bench.setting.alpha, units=units)


def _sequential(bench: Bench) -> Thresholds:
    calibrator = SequentialCalibrator(bench.setting.alpha)
    for t in range(1, bench.setting.rounds + 1):
        scores, reached, units = bench.fold(ThresholdGate(calibrator.thresholds(bench.setting.rounds)))
        calibrator.fit_round(t, scores[:, t - 1], units=units, reached=reached[:, t - 1])
    return calibrator.thresholds(bench.setting.rounds)


def _lockstep(bench: Bench) -> Thresholds:
    gate = LockstepGate(bench.setting.alpha)
    _, _, units = bench.fold(gate)
    return gate.thresholds(units=units, rounds=bench.setting.rounds)


def _pilot(bench: Bench) -> Thresholds:
    accepted = as_acceptance(_lockstep(bench))
    scores, reached, units = bench.fold(ThresholdGate(accepted))
    return certify(scores, reached, accepted, units=units)


def _trajectory(bench: Bench) -> Thresholds:
    trained = bench.run(4 * bench.setting.n, OpenGate())
    sigma = scale(trained.scores, trained.reached)
    scores, reached, units = bench.fold(OpenGate())
    return trajectory(scores, reached, bench.setting.alpha, units=units, sigma=sigma)


CALIBRATIONS: Mapping[str, Callable[[Bench], Thresholds]] = {
    "roundwise": _naive,
    "audit": _audit,
    "sequential": _sequential,
    "lockstep": _lockstep,
    "pilot": _pilot,
    "trajectory": _trajectory,
}


def deploy(bench: Bench, thresholds: Thresholds, bound: Floats) -> Coverage:
    """Coverage of `bound` (T,) on fresh tasks, behind the gate that goes with the thresholds."""
    gate = AuditGate(thresholds) if thresholds.mode == "audit" else ThresholdGate(thresholds)
    trace = bench.run(bench.setting.n_test, gate)
    reached = trace.reached
    covered = reached & (trace.scores <= bound)
    above = reached & (trace.executed > thresholds.acceptance) & (thresholds.mode != "audit")
    return Coverage(
        reached.sum(0),
        covered.sum(0),
        above.sum(0),
        int((reached & ~covered).any(1).sum()),
        bench.setting.n_test,
    )


def exact_target(thresholds: Thresholds) -> Floats:
    """k_t / (n_t + 1) by round (T,), 1 where the threshold is infinite: the exact coverage without ties."""
    counts = [min(rank(int(n), thresholds.alpha), int(n) + 1) / (int(n) + 1) for n in thresholds.n]
    return np.array(counts)


def replicate_modes(
    controller: str, replicate: int, setting: Setting, modes: tuple[str, ...]
) -> dict[str, tuple[Coverage, Floats]]:
    """One replicate of every mode under a named controller: coverage on fresh tasks, exact target."""
    results: dict[str, tuple[Coverage, Floats]] = {}
    for number, mode in enumerate(modes):
        bench = Bench(make_controller(controller), replicate * len(modes) + number, setting)
        thresholds = CALIBRATIONS[mode](bench)
        results[mode] = (deploy(bench, thresholds, thresholds.values), exact_target(thresholds))
        if mode == "pilot":
            results["pilot, stated bound"] = (
                deploy(bench, thresholds, thresholds.reported),
                exact_target(thresholds),
            )
    return results
