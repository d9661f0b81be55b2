"""Running one cell of a sweep, in whatever process or job it was given to.

The cell is read from its snapshot, never composed anew. It is run as a resume of its own directory: the first
attempt finds it empty, a requeued one finds the records of the last. How it ended stands in status.json.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sim.errors import UserError
from sim.records.run_dir import FAILED, FINISHED, read_status, record_end
from sim.records.store import InUse
from sim.sweeps.plan import claim_cell, read_cell

Verb = Callable[[Mapping[str, Any], Mapping[str, Any]], object]


def run_cell(verb: Verb, path: Path) -> int:
    """Run a cell to its end; exit status 0 if its run is finished, else 1, with the traceback on stderr.

    A cell that is already finished is left as it is. Signals go through.
    """
    cell = read_cell(path)
    directory = claim_cell(cell)
    if not cell.config.get("resume") and read_status(directory)["state"] == FINISHED:
        return 0
    try:
        verb({**cell.config, "resume": str(directory), "progress": False}, cell.explicit)
    except InUse as error:  # another process is at it: its status is not ours to write
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        if read_status(directory)["state"] != FAILED:
            record_end(directory, cell.script, error)
        traceback.print_exc()
        return 1
    return 0


def exit_status_of(verb: Verb, path: Path) -> int:
    """As `run_cell`; 2 with one line where the cell itself cannot be read or claimed."""
    try:
        return run_cell(verb, path)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
