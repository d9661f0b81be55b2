"""Group-conditional thresholds: calibrate within (round, group), for groups known before any branch is run.

A group is a public label (proposed action, number of agents, model). A group unseen or too small has
threshold +inf and a reason; backing off to the pooled threshold would forfeit what the group was promised
(METHOD 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from conformal.ranks import smallest_n
from conformal.scores import BoolArray, FloatArray
from conformal.thresholds import PolicyMismatch, Thresholds, check_use, read_json, write_json


@dataclass(frozen=True, eq=False)
class MondrianThresholds:
    """Thresholds by group label; `group` says what a label is."""

    group: str
    by_label: Mapping[str, Thresholds]

    def at(self, round: int, labels: Sequence[str]) -> FloatArray:  # noqa: A002
        """Acceptance thresholds (B,) at a round (1-based) for rows of the given labels; +inf for an unseen
        one.
        """
        for thresholds in self.by_label.values():
            if not 1 <= round <= thresholds.rounds:
                raise ValueError(
                    f"mondrian: round {round} was not calibrated; expected 1 to {thresholds.rounds}"
                )
        table = {label: float(t.acceptance[round - 1]) for label, t in self.by_label.items()}
        return np.array([table.get(str(label), np.inf) for label in labels])

    def reason(self, round: int, label: str) -> str | None:  # noqa: A002
        """Why a group has no finite threshold at a round; None if it has one."""
        if label not in self.by_label:
            return f"{self.group} {label!r} did not occur in calibration"
        thresholds = self.by_label[label]
        if bool(thresholds.certified[round - 1]):
            return None
        needed = smallest_n(thresholds.alpha)
        if thresholds.n[round - 1] < needed:
            count = int(thresholds.n[round - 1])
            return f"{self.group} {label!r}: {count} scores at round {round}, {needed} needed"
        return f"{self.group} {label!r}: too many failed episodes at round {round}"

    def save(self, path: Path | str) -> None:
        """Write JSON, atomically."""
        groups = {label: thresholds.to_dict() for label, thresholds in self.by_label.items()}
        write_json(path, {"group": self.group, "by_label": groups})

    @classmethod
    def load(cls, path: Path | str, *, policy_hash: str, test_units: Iterable[str]) -> MondrianThresholds:
        """Read for use; PolicyMismatch as `Thresholds.load`."""
        content = read_json(path)
        if set(content) != {"group", "by_label"}:
            raise PolicyMismatch(f"{path}: fields {sorted(content)}; expected group and by_label")
        groups = {k: Thresholds.from_dict(v, f"{path} {k}") for k, v in content["by_label"].items()}
        units = tuple(test_units)
        for label, thresholds in groups.items():
            check_use(thresholds, f"{path} {label}", policy_hash, units, {})
        return cls(content["group"], groups)


def mondrian(
    calibrate: Callable[[BoolArray], Thresholds],
    reached: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    group: str = "proposed action",
) -> MondrianThresholds:
    """Calibrate within each label of an (n, T) array of labels.

    `calibrate(mask)` is any calibrator with its scores bound, called with the entries of one group, e.g.
    `lambda mask: certify(scores, mask, acceptance, units=units)`.
    """
    mask, names = np.asarray(reached, dtype=np.bool_), np.asarray(labels)
    if names.shape != mask.shape:
        raise ValueError(
            f"labels: shape {names.shape} for reached of shape {mask.shape}; expected one per entry"
        )
    found = {}
    for label in np.unique(names[mask]).tolist():
        pooled = calibrate(mask & (names == label))
        words = f"given {group} {str(label)!r}: {pooled.guarantee}"
        found[str(label)] = replace(pooled, guarantee=words)
    return MondrianThresholds(group, found)
