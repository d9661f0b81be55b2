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
    environment = cell_environment(sweep, workers, hide_gpus)
    done = Parallel(n_jobs=workers, backend="threading", return_as="generator_unordered")(
        delayed(_process)(sweep, path, environment) for path in cells
    )
    for _ in done:
        advance(1)


def cell_command(sweep: Path, cell: Path) -> list[str]:
    """The command line of a cell's process."""
    script = sweep.absolute() / CODE / "scripts" / f"{read_cell(cell).script}.py"
    return [sys.executable, str(script), "--cell", str(cell.absolute())]


def cell_environment(sweep: Path, workers: int, hide_gpus: bool) -> dict[str, str]:
    """The environment of a cell: the launch's code first, its share of the cores, GPUs only if it may."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    environment = {**os.environ, "PYTHONPATH": code_path(sweep, os.environ)}
    if workers > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // workers)))
    if hide_gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment


def code_path(sweep: Path, environment: Mapping[str, str]) -> str:
    """PYTHONPATH with the code of the launch in front."""
    return os.pathsep.join(filter(None, [str(sweep.absolute() / CODE), environment.get("PYTHONPATH", "")]))


def _process(sweep: Path, cell: Path, environment: Mapping[str, str]) -> int:
    with (sweep / LOGS / f"{cell.stem}.log").open("ab") as log:
        done = subprocess.run(
            cell_command(sweep, cell), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    return done.returncode
