"""Sequential folds: a fresh fold for every round, run under the thresholds of the rounds before (METHOD 4).

Exact at every round, and dear: a fold per round. Nothing here runs anything; the caller runs each fold and
brings its scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from conformal.ranks import Level, OrderStatistics, exact_level
from conformal.rounds import EXCHANGEABLE, RoundRule, fit_rounds, promise
from conformal.scores import check_disjoint, check_units
from conformal.thresholds import Thresholds


@dataclass
class SequentialCalibrator:
    """Accumulates one round after another.

    For t = 1, 2, ...: run a fresh fold up to round t behind a gate holding `thresholds(T)`, then call
    `fit_round(t, scores of round t)`. `rule` replaces the order statistic (risk control uses it).
    """

    alpha: Level
    policy_hash: str = ""
    policy: Mapping[str, str] = field(default_factory=dict)
    delta: Level | None = None
    rule: RoundRule | None = None
    guarantee: str | None = None
    mode: str = "sequential"
    _found: list[OrderStatistics] = field(default_factory=list, init=False)
    _folds: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)

    def fit_round(
        self, t: int, scores: npt.ArrayLike, *, units: Sequence[str], reached: npt.ArrayLike | None = None
    ) -> float:
        """The threshold of round t (1-based) from its own fold's scores (n,); rounds come in order.

        `units` (n,) names the whole fold, reached or not. Raises ValueError on a round out of order or a unit
        used by an earlier fold.
        """
        if t != len(self._found) + 1:
            raise ValueError(
                f"fit_round: round {t} after {len(self._found)} rounds; expected {len(self._found) + 1}"
            )
        name = f"round {t}"
        fold = check_units(units, np.shape(scores)[0], name)
        check_disjoint({**self._folds, name: fold})
        if self.rule is not None:
            found = self.rule(scores, reached, fold)
        else:
            found = fit_rounds(scores, reached, self.alpha, units=fold, delta=self.delta)
        self._found.append(found)
        self._folds[name] = fold
        return float(found.values)

    def thresholds(self, rounds: int | None = None) -> Thresholds:
        """Thresholds so far, padded with +inf (accept everything, uncertified) up to `rounds` if given."""
        missing = 0 if rounds is None else rounds - len(self._found)
        if missing < 0:
            raise ValueError(
                f"rounds: {rounds} asked for, {len(self._found)} fitted; expected at least as many"
            )
        values = np.array([float(f.values) for f in self._found] + [np.inf] * missing)
        every = promise(
            self.alpha, self.delta, "S_t <= q_t", "at every round t of the policy accepting at q_u, u < t"
        )
        return Thresholds(
            mode=self.mode,
            alpha=float(exact_level(self.alpha)),
            values=values,
            acceptance=values,
            n=np.array([int(f.n) for f in self._found] + [0] * missing),
            k=np.array([int(f.k) for f in self._found] + [1] * missing),
            certified=np.isfinite(values),
            guarantee=self.guarantee or every,
            assumptions=EXCHANGEABLE
            + "; each round has a fresh fold run under the thresholds of the rounds before",
            folds=self._folds,
            policy_hash=self.policy_hash,
            policy=self.policy,
        )
