"""A group of several models: the engine of each member, and who plays which seat of a discussion.

It knows names and engines; what is shown and asked, the language world decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from sim.discussion.seating import Rotation, seated
from sim.engines.protocol import Engine
from sim.tasks.task import HiddenProfileTask


@dataclass(frozen=True)
class Group:
    """Open engines by member, the members in the order of the seats, and how that order is rotated."""

    engines: Mapping[str, Engine]
    order: tuple[str, ...]
    rotate: Rotation

    def engine(self, task: HiddenProfileTask, seed: int, agent: int) -> Engine:
        """What answers for one agent of one discussion."""
        return self.engines[seated(self.order, self.rotate, task.id, seed, task.n_agents)[agent]]

    def identity(self) -> dict[str, object]:
        """What must agree between calibration and deployment: every member's model, and the seating."""
        members = {
            name: msgspec.to_builtins(self.engines[name].capabilities) for name in sorted(set(self.order))
        }
        return {"members": members, "order": list(self.order), "rotate": self.rotate}
