"""What was swept, and how each cell of it stands: sweep.json and the status of every cell's run directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sim.errors import UserError
from sim.records.run_dir import FAILED, FINISHED, read_status, state_of

SWEEP = "sweep.json"
WAITING = "waiting"


class Sweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was launched."""

    command: tuple[str, ...]
    launcher: str
    code: dict[str, Any]
    cells: tuple[tuple[str, tuple[str, ...]], ...]
    """Run directory and overrides of each cell, in order."""


@dataclass(frozen=True)
class Outcome:
    """How a cell stands: `waiting`, or what its status.json says. `overrides` are those not all cells share."""

    number: int
    overrides: tuple[str, ...]
    directory: Path
    state: str
    error: str

    @property
    def over(self) -> bool:
        """Whether its job is done, well or not."""
        return self.state in (FINISHED, FAILED)


def read_sweep(directory: Path) -> Sweep:
    """What was launched in a directory; UserError where it is no sweep."""
    try:
        return msgspec.json.decode((directory / SWEEP).read_bytes(), type=Sweep)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{directory / SWEEP}: {error}; give the directory of a sweep") from error


def outcomes(directory: Path) -> list[Outcome]:
    """How every cell stands, by its status.json alone."""
    cells = read_sweep(directory).cells
    shared = set.intersection(*(set(overrides) for _, overrides in cells))
    found = []
    for number, (place, overrides) in enumerate(cells):
        run = _found(directory, Path(place))
        status = read_status(run)
        state = state_of(status) if "verb" in status else WAITING
        own = tuple(override for override in overrides if override not in shared)
        found.append(Outcome(number, own, run, state, str(status.get("error", ""))))
    return found


def _found(sweep: Path, run: Path) -> Path:
    """A cell's run directory, also where the whole sweep was moved since."""
    moved = sweep / run.name
    return moved if moved.is_dir() and not run.is_dir() else run
