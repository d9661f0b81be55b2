"""Calibrators: from the scores of a fold to thresholds that say what they guarantee (METHOD 3, 4).

Scores are (n, T) with a mask of what was reached; units (n,) name the task family of each episode. `fit`
covers the modes that need one fold at once; `acceptance_thresholds` then `certify` is the pilot mode,
`SequentialCalibrator` takes a fresh fold per round, `LockstepGate` (in `gate`) calibrates while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from conformal.ranks import Level, exact_level
from conformal.rounds import EXCHANGEABLE, fit_rounds, promise
from conformal.scores import check_disjoint, check_units
from conformal.thresholds import PolicyMismatch, Thresholds
from conformal.trajectory import trajectory, trajectory_bonferroni


def _thresholds(
    mode: str,
    scores: npt.ArrayLike,
    reached: npt.ArrayLike,
    alpha: Level,
    units: Sequence[str],
    delta: Level | None,
    words: tuple[str, str],
    policy: tuple[str, Mapping[str, str]],
) -> Thresholds:
    fold = check_units(units, np.shape(scores)[0], "calibration")
    found = fit_rounds(scores, reached, alpha, units=fold, delta=delta)
    return Thresholds(
        mode=mode,
        alpha=float(exact_level(alpha)),
        values=found.values,
        acceptance=found.values,
        n=found.n,
        k=found.k,
        certified=np.isfinite(found.values),
        guarantee=words[0],
        assumptions=words[1],
        folds={"calibration": fold},
        policy_hash=policy[0],
        policy=policy[1],
    )


def roundwise(
    scores: npt.ArrayLike,
    reached: npt.ArrayLike,
    alpha: Level,
    *,
    units: Sequence[str],
    policy_hash: str = "",
    policy: Mapping[str, str] | None = None,
    delta: Level | None = None,
) -> Thresholds:
    """The paper's calibration: one fold run without a gate, deployed with replacement. Kept for comparison.

    Valid at the first round; at later rounds replacement has changed the states and nothing is guaranteed.
    """
    first = promise(
        alpha, delta, "S_t <= q_t", "at round 1; nothing is guaranteed from round 2 on, once a gate"
    )
    words = (
        f"{first} has replaced proposals",
        EXCHANGEABLE + "; later rounds would need replacement to be harmless",
    )
    return _thresholds("roundwise", scores, reached, alpha, units, delta, words, (policy_hash, policy or {}))


def audit(
    scores: npt.ArrayLike,
    reached: npt.ArrayLike,
    alpha: Level,
    *,
    units: Sequence[str],
    policy_hash: str = "",
    policy: Mapping[str, str] | None = None,
    delta: Level | None = None,
) -> Thresholds:
    """The same thresholds for a gate that flags and never replaces: exact at every round (METHOD 4)."""
    every = promise(alpha, delta, "S_t <= q_t", "at every round t of the policy that executes every proposal")
    words = (every, EXCHANGEABLE + "; flagged proposals are executed all the same")
    return _thresholds("audit", scores, reached, alpha, units, delta, words, (policy_hash, policy or {}))


def acceptance_thresholds(
    scores: npt.ArrayLike,
    reached: npt.ArrayLike,
    alpha: Level,
    *,
    units: Sequence[str],
    policy_hash: str = "",
    policy: Mapping[str, str] | None = None,
) -> Thresholds:
    """Pilot, first verb: acceptance thresholds from a pilot fold run without a gate. They certify nothing
    yet.

    A pilot fold run under a `LockstepGate` gives acceptance thresholds closer to what certification will
    find.
    """
    words = ("none: these thresholds decide acceptance; certify() calibrates what they achieve", "none")
    fitted = _thresholds(
        "acceptance", scores, reached, alpha, units, None, words, (policy_hash, policy or {})
    )
    return as_acceptance(fitted)


def as_acceptance(thresholds: Thresholds) -> Thresholds:
    """Any thresholds reduced to acceptance thresholds for the certification run, with their folds as pilot
    folds.
    """
    folds = {
        f"pilot {name}" if not name.startswith("pilot") else name: units
        for name, units in thresholds.folds.items()
    }
    return Thresholds(
        mode="acceptance",
        alpha=thresholds.alpha,
        values=thresholds.acceptance,
        acceptance=thresholds.acceptance,
        n=thresholds.n,
        k=thresholds.k,
        certified=np.zeros(thresholds.rounds, bool),
        guarantee="none: these thresholds decide acceptance; certify() calibrates what they achieve",
        assumptions="none",
        folds=folds,
        unit=thresholds.unit,
        policy_hash=thresholds.policy_hash,
        policy=thresholds.policy,
    )


def certify(
    scores: npt.ArrayLike,
    reached: npt.ArrayLike,
    acceptance: Thresholds,
    *,
    units: Sequence[str],
    alpha: Level | None = None,
    policy_hash: str | None = None,
    delta: Level | None = None,
) -> Thresholds:
    """Pilot, second verb: thresholds q_t from a fresh fold run once with acceptance at the pilot's
    thresholds.

    `alpha` defaults to the pilot's. `policy_hash`, if given, is that of the certification run and must be the
    pilot's. Raises ValueError if the folds share a unit or the rounds differ.
    """
    if policy_hash is not None and policy_hash != acceptance.policy_hash:
        raise PolicyMismatch(
            f"certify: the fold ran under policy {policy_hash!r}, the pilot under "
            f"{acceptance.policy_hash!r}; expected one policy"
        )
    level = acceptance.alpha if alpha is None else alpha
    pilot = as_acceptance(acceptance)
    fold = check_units(units, np.shape(scores)[0], "certification")
    folds = {**pilot.folds, "certification": fold}
    check_disjoint(folds)
    found = fit_rounds(scores, reached, level, units=fold, delta=delta)
    if len(found.values) != pilot.rounds:
        raise ValueError(
            f"certify: scores have {len(found.values)} rounds, the pilot {pilot.rounds}; expected equal"
        )
    every = promise(level, delta, "S_t <= q_t", "at every round t of the policy that accepts at eta_t")
    return Thresholds(
        mode="pilot",
        alpha=float(exact_level(level)),
        values=found.values,
        acceptance=pilot.acceptance,
        n=found.n,
        k=found.k,
        certified=np.isfinite(np.maximum(found.values, pilot.acceptance)),
        guarantee=every + "; so for the stated bound max(eta_t, q_t), which an executed regret never exceeds",
        assumptions=EXCHANGEABLE
        + "; eta_t was fixed on other units before this fold ran, and the gate keeps it",
        folds=folds,
        unit=pilot.unit,
        policy_hash=pilot.policy_hash,
        policy=pilot.policy,
    )


def fit(
    mode: str,
    scores: npt.ArrayLike,
    reached: npt.ArrayLike,
    alpha: Level,
    *,
    units: Sequence[str],
    policy_hash: str = "",
    policy: Mapping[str, str] | None = None,
) -> Thresholds:
    """Thresholds of a mode for which one fold is enough at once."""
    fitters = {
        "roundwise": roundwise,
        "audit": audit,
        "acceptance": acceptance_thresholds,
        "trajectory": trajectory,
        "bonferroni": trajectory_bonferroni,
    }
    if mode not in fitters:
        hint = {
            "pilot": "run acceptance_thresholds() on one fold and certify() on another",
            "sequential": "use SequentialCalibrator with a fold per round",
            "lockstep": "run the fold behind a LockstepGate",
        }.get(
            mode,
            "expected one of roundwise, audit, acceptance, trajectory, bonferroni, pilot, "
            "sequential, lockstep",
        )
        raise ValueError(f"mode: {mode!r} cannot be fitted from one fold at once; {hint}")
    return fitters[mode](scores, reached, alpha, units=units, policy_hash=policy_hash, policy=policy)
