"""Every calibration mode on replicates of the stress world: the rows of METHOD 4's table, with exact targets.

Each replicate calibrates on its own fold and is tested on fresh episodes, so counts of different replicates
are independent and their sum has an exact mean and variance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from conformal.bands import CoverageCount, Side, hit_probability, replicate_count
from conformal.ranks import Level, OrderStatistics, exact_level, order_statistics
from conformal.scores import BoolArray, FloatArray, IntArray
from conformal.toy import ToyRun, ToyWorld
from conformal.trajectory import max_scores, scale, scaled_back


@dataclass(frozen=True)
class Design:
    """A stress experiment: R replicates, n calibration episodes per fold, m test episodes, level alpha."""

    world: ToyWorld
    replicates: int = 2000
    n: int = 99
    n_test: int = 50
    alpha: Level = "0.1"


@dataclass(frozen=True, eq=False)
class StressRow:
    """One mode: hits, test episodes reaching, calibration n and rank, (R, T) each, and the world's
    violations.

    exceeded: executed regrets above what the gate accepted at. kept: share of test episodes without any score
    above the thresholds.
    """

    mode: str
    hits: IntArray
    tests: IntArray
    n: IntArray
    k: IntArray
    exceeded: int
    kept: float

    @property
    def coverage(self) -> FloatArray:
        """Pooled coverage by round (T,)."""
        return np.asarray(self.hits.sum(0) / self.tests.sum(0), dtype=np.float64)

    @property
    def target(self) -> FloatArray:
        """Exact coverage by round (T,), averaged over the replicates' n_t."""
        return np.asarray(hit_probability(self.k, self.n).mean(0), dtype=np.float64)

    def count(self, t: int, side: Side = "two-sided") -> CoverageCount:
        """The hits of round t (1-based) against their exact law under exchangeability."""
        return replicate_count(
            self.hits[:, t - 1], self.tests[:, t - 1], self.k[:, t - 1], self.n[:, t - 1], side
        )


Fitted: TypeAlias = tuple[OrderStatistics, FloatArray | None]
"""Thresholds (R, T), and the acceptance thresholds to deploy behind: None for no gate."""


def roundwise(design: Design, rng: np.random.Generator) -> Fitted:
    """The paper's calibration, deployed with replacement."""
    fitted = _fit(design.world.run(design.replicates, design.n, rng), design.alpha)
    return fitted, fitted.values


def audit(design: Design, rng: np.random.Generator) -> Fitted:
    """The same, deployed without replacement."""
    return _fit(design.world.run(design.replicates, design.n, rng), design.alpha), None


def sequential(design: Design, rng: np.random.Generator) -> Fitted:
    """A fresh fold per round."""
    shape = (design.replicates, design.world.rounds)
    values, n, k = np.full(shape, np.inf), np.zeros(shape, np.int64), np.ones(shape, np.int64)
    for t in range(design.world.rounds):
        run = design.world.run(design.replicates, design.n, rng, acceptance=values, upto=t + 1)
        found = order_statistics(run.scores[..., t], run.reached[..., t], design.alpha, axis=1)
        values[:, t], n[:, t], k[:, t] = found
    return OrderStatistics(values, n, k), values


def lockstep(design: Design, rng: np.random.Generator) -> Fitted:
    """One fold sets and obeys its own thresholds."""
    run = design.world.run(design.replicates, design.n, rng, lockstep=design.alpha)
    return _fit(run, design.alpha), run.acceptance


def pilot(design: Design, rng: np.random.Generator) -> Fitted:
    """Acceptance from a lockstep fold, certification from a second fold."""
    _, acceptance = lockstep(design, rng)
    run = design.world.run(design.replicates, design.n, rng, acceptance=acceptance)
    return _fit(run, design.alpha), acceptance


Calibration: TypeAlias = Callable[[Design, np.random.Generator], Fitted]

MODES: Mapping[str, Calibration] = {
    "roundwise": roundwise,
    "audit": audit,
    "sequential": sequential,
    "lockstep": lockstep,
    "pilot": pilot,
}


def stress(mode: str, design: Design, rng: np.random.Generator) -> tuple[StressRow, ...]:
    """Calibrate and deploy one mode; `pilot` also yields the row of its stated bound max(eta, q)."""
    fitted, acceptance = MODES[mode](design, rng)
    run = design.world.run(design.replicates, design.n_test, rng, acceptance=acceptance)
    rows = [_row(mode, run, fitted, fitted.values)]
    if mode == "pilot" and acceptance is not None:
        rows.append(_row("pilot, stated bound", run, fitted, np.maximum(fitted.values, acceptance)))
    return tuple(rows)


def simultaneous(design: Design, rng: np.random.Generator, training: int = 4000) -> CoverageCount:
    """Test episodes of the *gated* policy without a refusal, calibrated on an ungated fold (max score)."""
    base = design.world.run(1, training, rng)
    sigma = scale(base.scores[0], base.reached[0])
    run = design.world.run(design.replicates, design.n, rng)
    rows = (-1, design.world.rounds)
    largest = max_scores(run.scores.reshape(rows), run.reached.reshape(rows), sigma)
    found = order_statistics(largest.reshape(design.replicates, design.n), None, design.alpha, axis=1)
    bound = scaled_back(found.values[:, None], sigma)
    kept = _kept(design.world.run(design.replicates, design.n_test, rng, acceptance=bound), bound)
    return replicate_count(kept.sum(1), np.full(design.replicates, design.n_test), found.k, found.n)


def bonferroni(design: Design, rng: np.random.Generator) -> float:
    """Share of gated test episodes without a refusal under the Bonferroni form."""
    run = design.world.run(design.replicates, design.n, rng)
    bound = order_statistics(
        run.scores, run.reached, exact_level(design.alpha) / design.world.rounds, axis=1
    ).values
    deployed = design.world.run(design.replicates, design.n_test, rng, acceptance=bound)
    return float(_kept(deployed, bound).mean())


def _fit(run: ToyRun, alpha: Level) -> OrderStatistics:
    return order_statistics(run.scores, run.reached, alpha, axis=1)


def _row(mode: str, run: ToyRun, fitted: OrderStatistics, bound: FloatArray) -> StressRow:
    hits = run.reached & (run.scores <= bound[:, None, :])
    return StressRow(
        mode=mode,
        hits=np.asarray(hits.sum(1), dtype=np.int64),
        tests=np.asarray(run.reached.sum(1), dtype=np.int64),
        n=fitted.n,
        k=fitted.k,
        exceeded=int((run.reached & (run.executed > run.acceptance[:, None, :])).sum()),
        kept=float(_kept(run, bound).mean()),
    )


def _kept(run: ToyRun, bound: FloatArray) -> BoolArray:
    return np.asarray((~run.reached | (run.scores <= bound[:, None, :])).all(2), dtype=np.bool_)
