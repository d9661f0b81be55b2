"""What a certificate did on held-out units: coverage by round with exact bands, and what it was worth.

One test episode per unit, off the calibration folds. A failed (+inf) test episode is not covered. Arrays
only; no knowledge of where they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformal.bands import beta_binomial_band, beta_binomial_p_value, hit_probability, lower_band
from conformal.gate import Decision
from conformal.scores import BoolArray, FloatArray, IntArray, check_disjoint, check_scores, check_units
from conformal.thresholds import Thresholds

_EVERY_ROUND = frozenset({"pilot", "sequential", "audit"})


@dataclass(frozen=True)
class RoundCoverage:
    """Coverage at one round against the exact law of its count.

    claimed: whether the mode promises this round at all; where it does not, the band is a yardstick. band:
    counts the central band holds; floor: the fewest a test from below allows. p_value: from below, since the
    closed inequality over-covers where scores tie. `expected` is min(1, k / (n + 1)).
    """

    round: int
    threshold: float
    n_cal: int
    k: int
    n_test: int
    covered: int
    failed: int
    expected: float
    band: tuple[int, int]
    floor: int
    p_value: float
    claimed: bool

    @property
    def coverage(self) -> float:
        """Share of test episodes covered; NaN if none reached the round."""
        return self.covered / self.n_test if self.n_test else float("nan")


def covered(scores: FloatArray, bound: FloatArray) -> BoolArray:
    """Whether a score is finite and within its bound: a failed episode is covered by nothing."""
    return np.asarray((scores <= bound) & np.isfinite(scores), dtype=np.bool_)


def coverage_by_round(
    thresholds: Thresholds,
    scores: npt.ArrayLike,
    reached: npt.ArrayLike,
    *,
    units: Sequence[str],
    level: float = 0.999,
) -> tuple[RoundCoverage, ...]:
    """Coverage of `thresholds.values` by round on test scores (n, T), one episode per unit.

    Raises ValueError if a unit occurs twice or was calibrated on, if the rounds differ, or for thresholds
    that promise no coverage by round (risk, hierarchical).
    """
    values, mask = _test_fold(thresholds, scores, reached, units)
    if thresholds.mode in {"risk", "hierarchical"}:
        raise ValueError(f"coverage_by_round: mode {thresholds.mode!r} has no exact law of coverage by round")
    hits = covered(values, thresholds.values) & mask
    rows = []
    for t in range(thresholds.rounds):
        n_test, count = int(mask[:, t].sum()), int(hits[:, t].sum())
        k, n_cal = int(thresholds.k[t]), int(thresholds.n[t])
        rows.append(
            RoundCoverage(
                round=t + 1,
                threshold=float(thresholds.values[t]),
                n_cal=n_cal,
                k=k,
                n_test=n_test,
                covered=count,
                failed=int((mask[:, t] & np.isinf(values[:, t])).sum()),
                expected=float(hit_probability(k, n_cal)),
                band=beta_binomial_band(n_test, k, n_cal, level),
                floor=lower_band(n_test, k, n_cal, level),
                p_value=beta_binomial_p_value(count, n_test, k, n_cal, "below"),
                claimed=thresholds.mode in _EVERY_ROUND or (thresholds.mode == "roundwise" and t == 0),
            )
        )
    return tuple(rows)


@dataclass(frozen=True)
class WholeCoverage:
    """Episodes none of whose proposals exceeded their threshold: what mode `trajectory` promises, with one
    band.
    """

    n_test: int
    kept: int
    expected: float
    floor: int
    p_value: float


def no_proposal_refused(
    thresholds: Thresholds,
    scores: npt.ArrayLike,
    reached: npt.ArrayLike,
    *,
    units: Sequence[str],
    level: float = 0.999,
) -> WholeCoverage:
    """P(no proposal refused) on test scores (n, T), from below; for modes `trajectory` and `bonferroni`.

    The Bonferroni form has no exact law: its expected share is the promise, its floor 0, its p-value NaN.
    """
    values, mask = _test_fold(thresholds, scores, reached, units)
    if thresholds.mode not in {"trajectory", "bonferroni"}:
        raise ValueError(f"no_proposal_refused: mode {thresholds.mode!r} does not promise whole episodes")
    n_test, kept = len(values), int((covered(values, thresholds.values) | ~mask).all(1).sum())
    if thresholds.mode == "bonferroni":
        return WholeCoverage(n_test, kept, 1 - thresholds.alpha, 0, float("nan"))
    k, n_cal = int(thresholds.k[0]), int(thresholds.n[0])
    expected = float(hit_probability(k, n_cal))
    p_value = beta_binomial_p_value(kept, n_test, k, n_cal, "below")
    return WholeCoverage(n_test, kept, expected, lower_band(n_test, k, n_cal, level), p_value)


def _test_fold(
    thresholds: Thresholds, scores: npt.ArrayLike, reached: npt.ArrayLike, units: Sequence[str]
) -> tuple[FloatArray, BoolArray]:
    names = check_units(units, np.shape(scores)[0], "test")
    check_disjoint({**thresholds.folds, "test": names})
    values, mask = check_scores(scores, reached, episodes=names)
    if values.shape[1:] != (thresholds.rounds,):
        raise ValueError(
            f"scores: shape {values.shape}; expected {thresholds.rounds} rounds, as the thresholds"
        )
    return values, mask


def vacuous(bound: npt.ArrayLike, regrets: npt.ArrayLike, admissible: npt.ArrayLike) -> BoolArray:
    """Rows (B,) whose bound says nothing: infinite, or no smaller than the spread of the branches.

    bound (B,); regrets and admissible (B, C). The spread is the largest admissible regret.
    """
    q, mask = np.asarray(bound, dtype=np.float64), np.asarray(admissible, dtype=np.bool_)
    spread = np.where(mask, np.asarray(regrets, dtype=np.float64), 0.0).max(1)
    return np.asarray(np.isinf(q) | (q >= spread), dtype=np.bool_)


@dataclass(frozen=True)
class GateRates:
    """What a gate did in one batch, over the rows still running."""

    rows: int
    acceptance_rate: float
    replacement_rate: float
    set_size: float
    vacuous_share: float


def gate_rates(
    decision: Decision, proposal: IntArray, regrets: FloatArray, admissible: BoolArray
) -> GateRates:
    """Shares of proposals within Γ and of proposals replaced, mean size of Γ, share of vacuous thresholds."""
    running = admissible.any(1)
    rows = int(running.sum())
    if not rows:
        return GateRates(0, float("nan"), float("nan"), float("nan"), float("nan"))
    within = decision.admissible_set[np.arange(len(proposal)), np.where(running, proposal, 0)]
    return GateRates(
        rows=rows,
        acceptance_rate=float(within[running].mean()),
        replacement_rate=float(decision.replaced[running].mean()),
        set_size=float(decision.set_size[running].mean()),
        vacuous_share=float(vacuous(decision.threshold, regrets, admissible)[running].mean()),
    )
