"""Do certificates hold with the cognitive agents? METHOD 6 and 10's exact tests, and mutants they reject."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pytest

from conformal import (
    OpenGate,
    SequentialCalibrator,
    Thresholds,
    acceptance_thresholds,
    beta_binomial_band,
    certify,
    fit,
    rank,
    replicate_count,
)
from conformal.ranks import Level, exact_level
from controllers.rules import NoisyRules
from sim.arrays import Floats, Ints
from sim.studies.certification import CALIBRATIONS, Bench, Coverage, Setting, deploy, replicate_modes

LEVEL = 1e-3
SETTING = Setting(n=99, n_test=100, rounds=4)
REPLICATES = 6


@lru_cache(maxsize=8)
def replicates(mode: str) -> tuple[tuple[Thresholds, Coverage], ...]:
    """Independent calibrations of a mode, each deployed on fresh tasks; coverage of the calibrated threshold."""
    found = []
    for number in range(REPLICATES):
        bench = Bench(NoisyRules(), number, SETTING)
        thresholds = CALIBRATIONS[mode](bench)
        found.append((thresholds, deploy(bench, thresholds, thresholds.values)))
    return tuple(found)


@pytest.mark.parametrize("mode", ["pilot", "sequential", "audit"])
def test_coverage_at_every_round_lies_in_the_exact_band(mode: str) -> None:
    """Hits of the test points against one threshold are beta-binomial; over replicates their sum has an exact
    mean and variance. Regrets at the threshold are continuous, so the test is two-sided."""
    for t in range(SETTING.rounds):
        hits, sizes, ranks, ns = ([] for _ in range(4))
        for thresholds, coverage in replicates(mode):
            hits.append(int(coverage.covered[t]))
            sizes.append(int(coverage.reached[t]))
            ranks.append(int(thresholds.k[t]))
            ns.append(int(thresholds.n[t]))
            low, high = beta_binomial_band(sizes[-1], ranks[-1], ns[-1])
            assert low <= hits[-1] <= high
        assert replicate_count(hits, sizes, ranks, ns, side="two-sided").p_value > LEVEL, (mode, t + 1)


def test_a_trajectory_is_covered_as_a_whole() -> None:
    """P(no proposal refused) >= 1 - alpha: the rank of 99 trajectories, not of any round."""
    hits = [coverage.episodes - coverage.any_violation for _, coverage in replicates("trajectory")]
    size = [SETTING.n_test] * REPLICATES
    k, n = [rank(SETTING.n, SETTING.alpha)] * REPLICATES, [SETTING.n] * REPLICATES
    assert replicate_count(hits, size, k, n, side="below").p_value > LEVEL


@pytest.mark.parametrize("mode", ["pilot", "sequential", "roundwise", "lockstep", "trajectory"])
def test_executed_regrets_never_exceed_what_the_gate_accepts_at(mode: str) -> None:
    for _, coverage in replicates(mode):
        assert (coverage.exceeded == 0).all()


def test_the_bound_stated_by_a_pilot_covers_at_least_as_much_as_its_threshold() -> None:
    """max(eta, q) costs a little over-coverage; it can never cost coverage."""
    bench = Bench(NoisyRules(), 3, SETTING)
    thresholds = CALIBRATIONS["pilot"](bench)
    assert (thresholds.reported >= thresholds.values).all()
    assert (thresholds.reported >= thresholds.acceptance).all()
    results = replicate_modes("noisy_rules", 3, SETTING, ("pilot",))
    stated, certified = results["pilot, stated bound"][0], results["pilot"][0]
    assert stated.covered.sum() / stated.reached.sum() > 0.85
    assert certified.covered.sum() / certified.reached.sum() > 0.8


Calibration = Callable[[Floats, tuple[str, ...]], Thresholds]


def _sequential(scores: Floats, units: tuple[str, ...]) -> Thresholds:
    calibrator = SequentialCalibrator(0.1)
    calibrator.fit_round(1, scores, units=units, reached=np.ones(len(scores), bool))
    return calibrator.thresholds(1)


def _pilot(scores: Floats, units: tuple[str, ...]) -> Thresholds:
    accepted = acceptance_thresholds(
        np.zeros((20, 1)), np.ones((20, 1), bool), 0.1, units=[f"pilot-{i}" for i in range(20)]
    )
    return certify(scores[:, None], np.ones((len(scores), 1), bool), accepted, units=units)


def _one_fold(mode: str) -> Calibration:
    def calibrate(scores: Floats, units: tuple[str, ...]) -> Thresholds:
        return fit(mode, scores[:, None], np.ones((len(scores), 1), bool), 0.1, units=units)

    return calibrate


RANKED: dict[str, Calibration] = {
    "roundwise": _one_fold("roundwise"),
    "audit": _one_fold("audit"),
    "pilot": _pilot,
    "sequential": _sequential,
}


@lru_cache(maxsize=1)
def first_round() -> Floats:
    """First-round regrets of forty discussions under noisy rules, with their few ties taken apart."""
    trace = Bench(NoisyRules(), 0, Setting(n=40, rounds=1)).run(40, OpenGate())
    scores: Floats = trace.scores[:, 0] + 1e-9 * np.arange(40)
    return scores


def covered_of_all(calibrate: Calibration) -> int:
    """Every discussion held out in turn: how many are covered by thresholds from the others. No randomness."""
    scores = first_round()
    units = tuple(str(i) for i in range(len(scores)))
    covered = 0
    for out in range(len(scores)):
        rest = np.delete(np.arange(len(scores)), out)
        threshold = calibrate(scores[rest], tuple(units[i] for i in rest)).values[0]
        covered += int(scores[out] <= threshold)
    return covered


@pytest.mark.parametrize("mode", RANKED)
def test_every_held_out_discussion_counts(mode: str) -> None:
    """Exactly k of n + 1 (METHOD 6.1): 36 of 40 at alpha = 0.1."""
    assert covered_of_all(RANKED[mode]) == rank(39, 0.1) == 36


RANKS = importlib.import_module("conformal.ranks")
"""The module: the package gives its name to a function."""
_RIGHT: Callable[..., Ints] = RANKS.ranks


def _one_below(n: npt.ArrayLike, alpha: Level) -> Ints:
    return np.asarray(_RIGHT(n, alpha) - 1)


def _one_above(n: npt.ArrayLike, alpha: Level) -> Ints:
    return np.asarray(_RIGHT(n, alpha) + 1)


def _without_the_test_point(n: npt.ArrayLike, alpha: Level) -> Ints:
    """The plain empirical quantile of n scores: ceil(0.9 · 39) is 36 too, so it takes another n to show."""
    size = np.asarray(n, dtype=np.int64)
    level = exact_level(alpha)
    return np.asarray(size - size * level.numerator // level.denominator - 1)


@pytest.mark.parametrize("mode", RANKED)
@pytest.mark.parametrize("mutant", [_one_below, _one_above, _without_the_test_point])
def test_another_rank_rule_is_caught(
    mode: str, mutant: Callable[..., Ints], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutants of the rank rule, under every mode: the count above is then another one."""
    monkeypatch.setattr(RANKS, "ranks", mutant)
    assert covered_of_all(RANKED[mode]) != 36
