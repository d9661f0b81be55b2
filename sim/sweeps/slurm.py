"""Cells as Slurm jobs (submitit): one array task per cell, requeued on preemption and on its time limit.

submitit submits, starts Python in the job, and resubmits at the time limit. Whether a cell succeeded is read from
its status.json, and whether its job is still there from squeue: neither needs Slurm's accounting.
"""

from __future__ import annotations

import os
import runpy
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from sim.errors import UserError
from sim.parsing import typed
from sim.records.sweep_dir import outcomes
from sim.sweeps.local import cell_command, cell_environment
from sim.sweeps.plan import LOGS

_LOOK_S = (0.5, 30.0)
_LOOKS_FAILED = 20
_GONE = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
_KEPT = ("SLURM_CONF",)
_FOREIGN = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SUBMITIT_")


class Resources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a job asks of Slurm; null leaves it to the cluster. See conf/hydra/launcher/."""

    cluster: str
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    timeout_min: int
    nodes: int
    cpus_per_task: int | None
    mem_gb: float | None
    gpus_per_node: int | None
    array_parallelism: int
    signal_delay_s: int
    requeues: int
    setup: tuple[str, ...]
    sbatch: dict[str, Any]


def parse_resources(settings: Mapping[str, Any], where: str) -> Resources:
    """The typed resources; UserError naming the first wrong key or value of the settings at `where`."""
    return typed(settings, Resources, where)


class CellJob:
    """What a job runs: the cell's script, in this process, so that Slurm's signals reach submitit's handlers."""

    def __call__(self, command: Sequence[str]) -> str:
        """Run it; raises RuntimeError if the cell did not finish, so that Slurm sees a failed job."""
        sys.argv = list(command[1:])
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"the cell did not finish (exit status {end.code})") from None
        return "finished"

    def checkpoint(self, command: Sequence[str]) -> Any:
        """What is submitted again when the time is up: the same cell, which continues from its records."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, command)


def submit(sweep: Path, cells: Sequence[Path], name: str, resources: Resources, hide_gpus: bool) -> list[Any]:
    """Submit every cell; returns submitit's jobs. UserError with Slurm's own words where it refuses."""
    import submitit

    environment = cell_environment(sweep, resources.cpus_per_task or 1, hide_gpus)
    with outside_jobs(environment):
        try:
            executor = submitit.AutoExecutor(
                folder=sweep.absolute() / LOGS, cluster=resources.cluster, **_timeouts(resources)
            )
            executor.update_parameters(**_parameters(name, resources, environment))
            jobs: list[Any] = executor.map_array(CellJob(), [cell_command(sweep, cell) for cell in cells])
        except (RuntimeError, ValueError, OSError, subprocess.CalledProcessError) as error:
            said = " ".join(str(error).split())
            raise UserError(f"Slurm took no job: {said}") from error
    return jobs


def _timeouts(resources: Resources) -> dict[str, int]:
    return {"slurm_max_num_timeout": resources.requeues} if resources.cluster == "slurm" else {}


def _parameters(name: str, resources: Resources, environment: Mapping[str, str]) -> dict[str, Any]:
    """What submitit's executors call these things."""
    common = {
        "name": name,
        "timeout_min": resources.timeout_min,
        "nodes": resources.nodes,
        "cpus_per_task": resources.cpus_per_task,
        "mem_gb": resources.mem_gb,
        "gpus_per_node": resources.gpus_per_node,
    }
    slurm = {
        "slurm_partition": resources.partition,
        "slurm_account": resources.account,
        "slurm_qos": resources.qos,
        "slurm_constraint": resources.constraint,
        "slurm_array_parallelism": resources.array_parallelism,
        "slurm_signal_delay_s": resources.signal_delay_s,
        "slurm_setup": [*resources.setup, *(f"export {k}={shlex.quote(v)}" for k, v in environment.items())],
        "slurm_additional_parameters": {"requeue": True, **resources.sbatch},
        "slurm_srun_args": [f"--cpus-per-task={resources.cpus_per_task or 1}"],
    }
    asked = {**common, **(slurm if resources.cluster == "slurm" else {})}
    return {key: value for key, value in asked.items() if value is not None}


@contextmanager
def outside_jobs(ours: Mapping[str, str]) -> Iterator[None]:
    """With our variables, and without those of a job that this process may itself run in: sbatch would take them
    for options."""
    before = dict(os.environ)
    for name in [name for name in before if name.startswith(_FOREIGN) and name not in _KEPT]:
        del os.environ[name]
    os.environ.update(ours)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def wait(sweep: Path, jobs: Sequence[Any], resources: Resources, advance: Callable[[int], None]) -> None:
    """Until no job is left in the queue; `advance(n)` is told of n more cells that are over."""
    pause, seen, unanswered = _LOOK_S[0], 0, 0
    alive = True
    while alive:
        time.sleep(pause)
        pause = min(pause * 1.2, _LOOK_S[1])
        answer = _alive(jobs, resources.cluster)
        unanswered = unanswered + 1 if answer is None else 0
        if unanswered >= _LOOKS_FAILED:
            raise UserError(
                f"squeue has not answered {_LOOKS_FAILED} times; the jobs go on without this process: look "
                f"again with scripts/report.py --list {sweep}"
            )
        alive = answer is not False
        over = sum(outcome.over for outcome in outcomes(sweep))
        advance(over - seen)
        seen = over


def _alive(jobs: Sequence[Any], cluster: str) -> bool | None:
    """Whether some job waits or runs; None where the cluster does not answer."""
    if cluster != "slurm":
        return not all(job.done() for job in jobs)
    numbers = sorted({job.job_id.split("_")[0] for job in jobs})
    return queued(_squeue(numbers))


def _squeue(numbers: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [
        "squeue",
        "--noheader",
        "--array",
        "--states=all",
        "--format=%T",
        f"--jobs={','.join(numbers)}",
    ]
    return subprocess.run(command, capture_output=True, text=True, env=_environment())


def _environment() -> Mapping[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("SQUEUE_")}


def queued(answer: subprocess.CompletedProcess[str]) -> bool | None:
    """Whether squeue lists a job that waits or runs; jobs it has forgotten are over. None without an answer."""
    if answer.returncode:
        return False if "Invalid job id" in answer.stderr else None
    return any(state not in _GONE for state in answer.stdout.split())
