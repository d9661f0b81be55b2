"""Several seeds of one task, weighted so that a task counts once (METHOD 3).

Seed s of task j weighs 1 / ((M + 1) m_j), with 1 / (M + 1) at +inf. Valid at the first round, which every
seed reaches, and for whole-trajectory scores; at later rounds tasks would weigh by their chance of reaching.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from conformal.ranks import Level, exact_level, rank
from conformal.rounds import EXCHANGEABLE
from conformal.scores import BoolArray, FloatArray, check_disjoint, check_scores
from conformal.thresholds import Thresholds
from conformal.trajectory import check_sigma, max_scores, scaled_back
from conformal.weighted import threshold_from_integers

Statistic: TypeAlias = Literal["first round", "trajectory"]


def hierarchical_threshold(scores: FloatArray, families: Sequence[str], alpha: Level) -> float:
    """The threshold of scores (n,) whose rows are seeds of the named families (n,)."""
    seeds = Counter(families)
    common = math.lcm(*seeds.values())
    weights = [common // seeds[family] for family in families]
    return float(threshold_from_integers(scores, weights, [common], alpha)[0])


def hierarchical(
    scores: npt.ArrayLike,
    reached: npt.ArrayLike,
    alpha: Level,
    *,
    families: Sequence[str],
    statistic: Statistic,
    sigma: npt.ArrayLike | None = None,
    scale_families: Sequence[str] = (),
    policy_hash: str = "",
    policy: Mapping[str, str] | None = None,
) -> Thresholds:
    """Thresholds from several seeds per family; a family counts as one unit whatever its number of seeds.

    statistic `first round`: scores (n, 1), every row reached. `trajectory`: scores (n, T), thresholds q *
    sigma_t on the largest scaled score. Raises ValueError on rounds after the first taken one by one.
    """
    names = tuple(str(family) for family in families)
    values, mask = check_scores(scores, reached, episodes=names)
    if values.ndim != 2 or len(names) != len(values):
        raise ValueError(
            f"families: {len(names)} names for scores {values.shape}; expected one per row of (n, T)"
        )
    if statistic == "first round":
        _check_first_round(values, mask)
    width = check_sigma(sigma, values.shape[1])
    q = scaled_back(hierarchical_threshold(max_scores(values, mask, width), names, alpha), width)
    units = tuple(dict.fromkeys(names))
    folds = {"calibration": units} | ({"scale": tuple(scale_families)} if len(scale_families) else {})
    check_disjoint(folds)
    subject = "S_1 <= q_1" if statistic == "first round" else "S_t <= q_t at all rounds t reached"
    return Thresholds(
        mode="hierarchical",
        alpha=float(exact_level(alpha)),
        values=q,
        acceptance=q,
        n=np.full(len(width), len(units)),
        k=np.full(len(width), rank(len(units), alpha)),
        certified=np.isfinite(q),
        guarantee=f"P({subject}) >= {float(1 - exact_level(alpha)):g} for a random seed of a new family",
        assumptions=EXCHANGEABLE.replace("one episode per unit", "seeds exchangeable within a unit"),
        folds=folds,
        policy_hash=policy_hash,
        policy=policy or {},
    )


def _check_first_round(scores: FloatArray, reached: BoolArray) -> None:
    if scores.shape[1] != 1 or not reached.all():
        raise ValueError(
            f"hierarchical: scores of {scores.shape[1]} rounds; expected the first round alone, reached "
            "by every row (after it families weigh by their chance of reaching; use "
            "statistic='trajectory' or one seed per family)"
        )
