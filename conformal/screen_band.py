"""The calibrated band of screened mode, stored and refused like thresholds (METHOD 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from conformal.ranks import Level, exact_level, order_statistics
from conformal.rounds import EXCHANGEABLE
from conformal.scores import BoolArray, FloatArray, IntArray, check_disjoint, check_units
from conformal.screened import BandKind
from conformal.thresholds import (
    Thresholds,
    check_fields,
    check_use,
    parse_counts,
    parse_numbers,
    read_json,
    spell,
    write_json,
)

_KINDS: Mapping[str, type] = {
    "kind": str,
    "alpha_s": float,
    "values": list,
    "n": list,
    "k": list,
    "folds": dict,
    "policy_hash": str,
    "policy": dict,
    "unit": str,
}


@dataclass(frozen=True, eq=False)
class ScreenBand:
    """lambda_t (T,): how many scales below its prediction an unevaluated branch is taken to reach.

    +inf (evaluate everything) where fewer than ceil(1/alpha_s) - 1 families reach the round. The policy hash
    is that of the policy deployed with the threshold; folds hold the threshold's units too.
    """

    kind: BandKind
    alpha_s: float
    values: FloatArray
    n: IntArray
    k: IntArray
    folds: Mapping[str, tuple[str, ...]]
    policy_hash: str = ""
    policy: Mapping[str, str] = field(default_factory=dict)
    unit: str = "task family"

    @property
    def certified(self) -> BoolArray:
        """Whether anything may be left unevaluated (T,)."""
        return np.isfinite(self.values)

    @property
    def guarantee(self) -> str:
        """In words."""
        level = f"{1 - self.alpha_s:g} ({self.kind} band), marginally"
        return f"P(executed regret <= q_t | round t reached) >= {level}"

    @property
    def assumptions(self) -> str:
        """In words."""
        return f"{EXCHANGEABLE}; predictions and q_t were fixed on other units, the band being part of it"

    def let_through(self, alpha: float) -> float:
        """alpha_s / alpha, about the share of inadmissible proposals let through (blindly: 1)."""
        return self.alpha_s / alpha

    def save(self, path: Path | str) -> None:
        """Write JSON, atomically."""
        arrays = {"values": spell(self.values), "n": self.n.tolist(), "k": self.k.tolist()}
        content = {
            "kind": self.kind,
            "alpha_s": self.alpha_s,
            "unit": self.unit,
            "policy_hash": self.policy_hash,
        }
        folds = {name: list(units) for name, units in self.folds.items()}
        write_json(path, content | arrays | {"folds": folds, "policy": dict(self.policy)})

    @classmethod
    def load(cls, path: Path | str, *, policy_hash: str, test_units: Iterable[str]) -> ScreenBand:
        """Read for use; PolicyMismatch as `Thresholds.load`."""
        content: dict[str, Any] = read_json(path)
        check_fields(content, _KINDS, str(path))
        content["values"] = np.array(parse_numbers(content["values"], str(path), "values"))
        for name in ("n", "k"):
            content[name] = np.array(parse_counts(content[name], str(path), name), dtype=np.int64)
        content["folds"] = {name: tuple(units) for name, units in content["folds"].items()}
        band = cls(**content)
        check_use(band, str(path), policy_hash, test_units, {})
        return band


def fit_band(
    scores: npt.ArrayLike,
    reached: npt.ArrayLike,
    alpha_s: Level = 0.01,
    *,
    kind: BandKind = "procedure",
    units: Sequence[str],
    thresholds: Thresholds,
) -> ScreenBand:
    """The band from `procedure_scores` or `union_scores` (n, T) of a fold evaluated in full.

    The fold shares no unit with those behind the thresholds. alpha_s must be below their alpha: blind
    acceptance already reaches 1 - alpha.
    """
    if kind not in get_args(BandKind):
        raise ValueError(f"kind: {kind!r}; expected one of {get_args(BandKind)}")
    if not exact_level(alpha_s) < exact_level(thresholds.alpha):
        raise ValueError(
            f"alpha_s: {alpha_s} is not below alpha {thresholds.alpha}; expected well below, such as 0.01"
        )
    fold = check_units(units, np.shape(scores)[0], "screening")
    folds = {**thresholds.folds, "screening": fold}
    check_disjoint(folds)
    found = order_statistics(scores, reached, alpha_s, episodes=fold, signed=True)
    return ScreenBand(
        kind=kind,
        alpha_s=float(exact_level(alpha_s)),
        values=found.values,
        n=found.n,
        k=found.k,
        folds=folds,
        policy_hash=thresholds.policy_hash,
        policy=thresholds.policy,
        unit=thresholds.unit,
    )
