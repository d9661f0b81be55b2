"""Turns as a chat template wants them: templates differ in what they accept."""

from __future__ import annotations

from collections.abc import Sequence

from sim.engines.protocol import Turn


def folded(turns: Sequence[Turn]) -> list[Turn]:
    """The same turns with the system text in front of the first user turn."""
    if not turns or turns[0].role != "system":
        return list(turns)
    first = Turn("user", f"{turns[0].content}\n\n{turns[1].content}")
    return [first, *turns[2:]]
