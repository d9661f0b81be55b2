"""Cells as processes of this machine, several at a time (joblib).

Each cell has a process of its own, so one that is killed or runs out of memory takes no other with it; and it
runs the code that was copied at launch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sim.sweeps.plan import CODE, LOGS, read_cell


def run_here(
    sweep: Path, cells: Sequence[Path], n_jobs: int, hide_gpus: bool, advance: Callable[[int], None]
) -> None:
    """Run cells to their ends, `n_jobs` at a time (-1: as many as cores); their output goes to logs/."""
    from joblib import Parallel, delayed, effective_n_jobs

    workers = min(effective_n_jobs(n_jobs), len(cells))
    environment = {**os.environ, **cell_environment(sweep, _threads(workers), hide_gpus)}
    done = Parallel(n_jobs=workers, backend="threading", return_as="generator_unordered")(
        delayed(_process)(sweep, path, environment) for path in cells
    )
    for _ in done:
        advance(1)


def cell_command(sweep: Path, cell: Path) -> list[str]:
    """The command line of a cell's process."""
    script = sweep.absolute() / CODE / "scripts" / f"{read_cell(cell).script}.py"
    return [sys.executable, str(script), "--cell", str(cell.absolute())]


def cell_environment(sweep: Path, threads: int | None, hide_gpus: bool) -> dict[str, str]:
    """What a cell's environment adds to this one's: the code of the launch before any other, its share of the
    cores, no GPU if it may have none."""
    ours = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(sweep.absolute() / CODE)}
    if threads is not None:
        ours["OMP_NUM_THREADS"] = str(threads)
    return {**ours, "CUDA_VISIBLE_DEVICES": ""} if hide_gpus else ours


def _threads(workers: int) -> int | None:
    """Cores for each of several workers; null leaves a single one alone."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // workers) if workers > 1 else None


def _process(sweep: Path, cell: Path, environment: Mapping[str, str]) -> int:
    with (sweep / LOGS / f"{cell.stem}.log").open("ab") as log:
        done = subprocess.run(
            cell_command(sweep, cell), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    return done.returncode
