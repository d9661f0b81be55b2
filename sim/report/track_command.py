"""`scripts/track.py`: wandb runs from finished runs, from a folder of them or from a sweep, after the fact."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sim.config import LoggerConfig
from sim.errors import UserError
from sim.records.run_dir import CONFIG, FINISHED
from sim.report.listing import list_runs
from sim.report.tracking import track

_HELP = """\
examples:
  track.py runs/quickstart-3f2a...           one run, offline: then `wandb sync <run>/wandb/offline-run-*`
  track.py runs --mode online                every finished run below runs/, sent now
  track.py runs/sweep-2026... --project mine one wandb run per cell, grouped by the sweep
"""


def track_command(arguments: Sequence[str]) -> int:
    """Exit status: 0 done, 1 if some run could not be sent, 2 with one line where the user can mend it."""
    parser = argparse.ArgumentParser(
        "track.py",
        description="Track finished runs with wandb.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, help="run directories, or a folder of runs")
    parser.add_argument("--mode", choices=("offline", "online"), default="offline")
    parser.add_argument("--project", default="consilience")
    parser.add_argument("--entity")
    chosen = parser.parse_args(arguments)
    settings = LoggerConfig("wandb", chosen.mode, chosen.project, chosen.entity)
    try:
        directories = [run for path in chosen.runs for run in _runs(path)]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    failed = [directory for directory in directories if not _tracked(directory, settings)]
    return 1 if failed else 0


def _runs(path: Path) -> list[Path]:
    """The run itself, or the finished runs below a folder."""
    if (path / CONFIG).exists():
        return [path]
    found = [listing.directory for listing in list_runs(path) if listing.status.state == FINISHED]
    if not found:
        raise UserError(f"{path}: holds no finished run; give a run directory, or a folder of finished runs")
    return found


def _tracked(directory: Path, settings: LoggerConfig) -> bool:
    """Whether it worked; one run that cannot be sent does not keep the others."""
    try:
        print(f"{track(directory, settings)}  {directory}")
    except Exception as error:
        print(f"error: {directory}: {' '.join(str(error).split())}", file=sys.stderr)
        return False
    return True
