"""Names of the participants, by seat: shared by whoever writes a transcript or shows one."""

from __future__ import annotations

from sim.tasks.task import HiddenProfileTask, PublicTask

NAMES = ("Noor", "Lena", "Tomás", "Kemi", "Jonas", "Priya", "Mateo", "Sanne")
"""Words, not letters: a letter would collide with the label of an option."""


def names_of(task: HiddenProfileTask | PublicTask) -> tuple[str, ...]:
    """The participants' names, by seat."""
    return tuple(NAMES[seat] if seat < len(NAMES) else f"Guest{seat + 1}" for seat in range(task.n_agents))
