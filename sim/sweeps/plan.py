"""A sweep on disk: every cell's resolved configuration and the code, as they were when it was launched.

    sweep.json     what was asked for: command line, launcher, code version, cells with their run directories
    cells/007.json one cell, complete: what a job reads, and all it reads
    code/          the sources of the launch, which its jobs run

Nothing here starts a job or knows of Hydra, joblib or Slurm.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sim.errors import UserError
from sim.records.code_version import code_version, copy_code
from sim.records.run_dir import CONFIG, write_config
from sim.records.sweep_dir import SWEEP, Sweep

CELLS, CODE, LOGS = "cells", "code", "logs"


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cell: its number, what makes it differ, and everything its job needs."""

    number: int
    overrides: tuple[str, ...]
    script: str
    """Name of the script that runs it, without `.py`."""
    config: dict[str, Any]
    """Resolved."""
    explicit: dict[str, Any]
    """What the command line set, key -> value; compared with a resumed run's configuration."""
    directory: str
    """Its run directory: absolute, made by the first job that starts."""


def cell_directory(sweep: Path, number: int, config: Mapping[str, Any], identity: str) -> Path:
    """The run directory of a cell: the same for every attempt at it, and no other's. A cell that resumes a run
    has that run's."""
    if config.get("resume"):
        return Path(str(config["resume"])).absolute()
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", str(config.get("name", "run")))
    return sweep.absolute() / f"{name}-{identity}-{number:03d}"


def write_sweep(directory: Path, command: Sequence[str], launcher: str, cells: Sequence[Cell]) -> list[Path]:
    """Claim a sweep directory and write what its jobs need; returns the cells' files.

    Raises UserError where another sweep has it, or it cannot be written.
    """
    listed = tuple((cell.directory, cell.overrides) for cell in cells)
    content = Sweep(tuple(command), launcher, code_version(), listed)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / SWEEP).open("xb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
        (directory / CELLS).mkdir()
        (directory / LOGS).mkdir()
        copy_code(directory / CODE)
        files = [directory / CELLS / f"{cell.number:03d}.json" for cell in cells]
        for file_path, cell in zip(files, cells, strict=True):
            file_path.write_bytes(msgspec.json.encode(cell))
    except (OSError, shutil.Error) as error:
        raise UserError(f"{directory}: {error}; choose a writable folder with output=<folder>") from error
    return files


def read_cell(path: Path) -> Cell:
    """One cell; UserError where the file is no cell."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Cell)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{path}: {error}; give a file of a sweep's folder {CELLS}/") from error


def claim_cell(cell: Cell) -> Path:
    """The run directory of a cell, made and given its configuration by the first attempt, found by the next."""
    directory = Path(cell.directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory}: {error.strerror}; make its folder writable") from error
    if not (directory / CONFIG).exists():
        write_config(directory, cell.config)
    return directory
