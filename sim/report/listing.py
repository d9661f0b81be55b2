"""Which runs lie below a folder: their states, how far they are, and the settings that tell them apart.

Cells of a sweep that no job has started yet are listed too. Only small files are read, and nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sim.errors import UserError
from sim.records.run_dir import CONFIG, PROVENANCE, STATUS, read_json
from sim.records.sweep_dir import SWEEP, WAITING, Outcome, outcomes
from sim.report.source import Status, read_status

_NOT_SETTINGS = ("hydra.", "hydra/", "output=", "resume=", "progress=", "-")
_FOREIGN = "wandb"
"""A folder inside a run whose files have names like a run's."""


@dataclass(frozen=True)
class RunListing:
    """A run directory below some root: its state, how many discussions it has finished, and its settings: what the
    command line set, or, of a cell, what the cells of its sweep do not share."""

    directory: Path
    status: Status
    episodes: int
    settings: tuple[str, ...]


def list_runs(root: str | Path) -> list[RunListing]:
    """The run directories below a folder (or the folder itself, if it is one): by folder, then cells in
    their order and others by name."""
    top = Path(root)
    if not top.is_dir():
        raise UserError(f"{top}: is not a directory; give a folder of runs, such as runs/")
    cells = _cells(top)
    found = {path.parent for name in (CONFIG, STATUS) for path in top.rglob(name)}
    runs = {path for path in found if _FOREIGN not in path.relative_to(top).parts}
    own = {cell.directory: cell.overrides for cell in cells}
    listed = [
        RunListing(
            path, read_status(path), _count_episodes(path), own.get(path.absolute()) or _settings(path)
        )
        for path in runs
    ]
    waiting = [
        RunListing(cell.directory, Status(WAITING), 0, cell.overrides)
        for cell in cells
        if cell.state == WAITING
        and cell.directory.is_relative_to(top.absolute())
        and not cell.directory.exists()
    ]
    number = {cell.directory: cell.number for cell in cells}

    def place(listing: RunListing) -> tuple[str, int, str]:
        path = listing.directory.absolute()
        return str(path.parent), number.get(path, -1), path.name

    return sorted([*listed, *waiting], key=place)


def _cells(top: Path) -> list[Outcome]:
    """The cells of every sweep below a folder, and of the one that the folder is a cell of."""
    sweeps = {path.parent for path in [*top.rglob(SWEEP), *top.absolute().parent.glob(SWEEP)]}
    return [cell for sweep in sweeps for cell in outcomes(sweep.absolute())]


def _settings(run: Path) -> tuple[str, ...]:
    """What the command line of a run set; nothing where that is not recorded."""
    path = run / PROVENANCE
    words = read_json(path).get("command", []) if path.is_file() else []
    return tuple(word for word in words if "=" in word and not word.startswith(_NOT_SETTINGS))


def _count_episodes(directory: Path) -> int:
    path = directory / "episodes.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as lines:
        return sum(line.endswith(b"\n") for line in lines)
