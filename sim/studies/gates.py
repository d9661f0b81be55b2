"""From thresholds to the gate that goes with a mode, and the gate that needs a discussion's own dice.

The conformal package draws from the set by numbers it is given; here they are keyed by discussion and round,
so that a draw does not depend on who else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from conformal import AuditGate, Gate, SamplingGate, ThresholdGate, Thresholds
from sim.arrays import Floats
from sim.config import GateKind
from sim.discussion.public import PublicView
from sim.randomness import keys, uniform
from sim.studies.screening import ScreenedGate


@dataclass(frozen=True)
class SetSampling:
    """Conformal-set sampling: the executed branch is a uniform draw from the set of admissible ones."""

    thresholds: Thresholds

    def at(self, view: PublicView) -> Gate:
        """The gate for one round of some discussions."""

        def dice(_: int, rows: int) -> Floats:
            drawn: Floats = uniform(keys("conformal set", view.key, view.rounds), 1)[:, 0]
            return drawn

        return SamplingGate(self.thresholds, dice)


AnyGate: TypeAlias = Gate | SetSampling | ScreenedGate


def gate_at(gate: Gate | SetSampling, view: PublicView) -> Gate:
    """The gate to ask about the decisions of these discussions."""
    return gate.at(view) if isinstance(gate, SetSampling) else gate


def make_gate(thresholds: Thresholds, kind: GateKind = "replace") -> AnyGate:
    """The gate of some thresholds: auditing never replaces; else by kind."""
    if thresholds.mode == "audit":
        return AuditGate(thresholds)
    return SetSampling(thresholds) if kind == "sample" else ThresholdGate(thresholds)
