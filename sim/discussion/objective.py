"""The objective J of a state and the one-step regret of a branch (METHOD 1, 2)."""

from __future__ import annotations

import msgspec
import numpy as np

from sim.arrays import Bools, Floats
from sim.discussion.state import Signals
from sim.errors import UserError

SPREAD_FLOOR = 1e-9


class Objective(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weights of the loss J; each is at least 0 and they sum to 1, so 0 <= J <= 1 and lower is better."""

    uncertainty: float = 0.20
    disagreement: float = 0.10
    redundancy: float = 0.15
    evidence_gain: float = 0.25
    premature_consensus: float = 0.25
    cost: float = 0.05

    def __post_init__(self) -> None:
        weights = msgspec.structs.asdict(self)
        for name, weight in weights.items():
            if not weight >= 0:
                raise UserError(f"objective.{name} is {weight}; a weight must be at least 0")
        if abs(sum(weights.values()) - 1) > 1e-9:
            raise UserError(f"objective weights sum to {sum(weights.values()):g}; they must sum to 1")

    def __call__(self, state: Signals) -> Floats:
        """J (B,) in [0, 1]; lower is better (METHOD 1)."""
        return (
            self.uncertainty * state.uncertainty
            + self.disagreement * state.disagreement
            + self.redundancy * state.redundancy
            + self.evidence_gain * (1 - state.evidence_gain)
            + self.premature_consensus * state.premature_consensus
            + self.cost * state.cost
        )


def one_step_regret(objectives: Floats, admissible: Bools) -> Floats:
    """r (B, C) = J minus the smallest admissible J; +inf where inadmissible (METHOD 2)."""
    offered = np.where(admissible, objectives, np.inf)
    regret: Floats = offered - offered.min(1, keepdims=True)
    return regret


def normalised_regret(regrets: Floats) -> Floats:
    """r̃ (B, C): regret over the spread of the admissible branches, 0 where the spread is under 10⁻⁹."""
    finite = np.where(np.isfinite(regrets), regrets, 0.0)
    spread = finite.max(1, keepdims=True)
    scaled: Floats = finite / np.where(spread > SPREAD_FLOOR, spread, np.inf)
    return np.where(np.isinf(regrets), np.inf, scaled)
