"""Sweeps on a real Slurm: a killed and requeued cell, a failing one, time limits, and what jobs inherit."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sim.records.code_version import copy_code
from sim.records.rows import EpisodeRow
from sim.records.store import FILES, read_rows
from sim.records.sweep_dir import Outcome, outcomes

pytestmark = pytest.mark.slurm

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
LAUNCHER = (
    "hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1",
)  # fmt: skip
SIZES = (
    "task=file", "split.train=20", "split.pilot=40", "split.calibration=40", "split.test=100", "world.batch=1",
    "training.epochs=3", "test_seeds=[0,1,2,3]",
)  # fmt: skip
KILLED, BROKEN = 1, 5
STRAY = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "99", "SLURM_NTASKS": "3", "SBATCH_PARTITION": "nowhere"}
"""What a process inside another job, or a careless shell, hands down."""


def start(environment: Mapping[str, str], *arguments: str) -> subprocess.Popen[str]:
    """A script, started."""
    return subprocess.Popen(
        [sys.executable, str(SCRIPTS / "pipeline.py"), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ask(environment: Mapping[str, str], *command: str) -> str:
    """What a Slurm command answers."""
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def until(found: Callable[[], bool], what: str, seconds: float = 180) -> None:
    """Wait for something to happen."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.1)


def rows(directory: Path) -> int:
    """Finished discussions of a run."""
    path = directory / FILES[EpisodeRow]
    return path.read_bytes().count(b"\n") if path.exists() else 0


def job_of(environment: Mapping[str, str], cell: int) -> str:
    """The job number of a cell of the last sweep: the task of an array."""
    listed = ask(environment, "squeue", "--noheader", "--array", "--states=all", "--format=%i")
    tasks = [line for line in listed.split() if line.endswith(f"_{cell}")]
    return max(tasks, key=lambda line: int(line.partition("_")[0]))


def launched(root: Path) -> Path:
    """The sweep's directory, once it stands."""
    until(lambda: any(root.glob("sweep-*/sweep.json")), "the sweep's directory")
    return next(root.glob("sweep-*"))


def tables(directory: Path) -> dict[str, bytes]:
    """The tables of a run by name."""
    return {path.name: path.read_bytes() for path in sorted((directory / "tables").glob("*.csv"))}


@pytest.fixture(name="task_files", scope="module")
def _task_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task file per controller and seed."""
    from sim.tasks import generate_travel, write_tasks

    folder = tmp_path_factory.mktemp("tasks")
    for controller in ("rules", "mlp"):
        for seed in range(3):
            write_tasks(folder / f"{controller}-{seed}.json", generate_travel("medium", 200, seed))
    return folder


class Swept:
    """A sweep of two controllers and three seeds, one cell killed half-way and requeued, one failing."""

    def __init__(self, environment: dict[str, str], root: Path, task_files: Path) -> None:
        path = f"task.path={task_files}/${{conditions.3}}-${{seed}}.json"
        self.overrides = (*SIZES, path, f"output={root}")
        started = start(
            {**environment, **STRAY}, *self.overrides, "-m", "controller=rules,mlp", "seed=0,1,2", *LAUNCHER
        )
        self.sweep = launched(root)
        # Every cell was checked at launch; what breaks the last one comes between that and its start.
        (task_files / "mlp-2.json").write_text('[{"id": 1, "name": "x"}]')
        killed = outcomes(self.sweep)[KILLED].directory
        until(lambda: rows(killed) >= 10, "the cell to be half-way")
        self.job = job_of(environment, KILLED)
        ask(environment, "scancel", self.job)
        until(lambda: self._state(environment) == "CANCELLED", "the job to be gone")
        self.rows_at_kill = rows(killed)
        ask(environment, "scontrol", "requeue", self.job)
        self.said = started.communicate(timeout=600)[1]
        self.status = started.returncode
        self.cells: list[Outcome] = outcomes(self.sweep)

    def _state(self, environment: Mapping[str, str]) -> str:
        return ask(
            environment, "squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={self.job}"
        ).strip()


@pytest.fixture(name="swept", scope="module")
def _swept(
    slurm_environment: dict[str, str], task_files: Path, tmp_path_factory: pytest.TempPathFactory
) -> Swept:
    return Swept(slurm_environment, tmp_path_factory.mktemp("runs"), task_files)


def test_five_cells_finish_and_the_broken_one_says_why(swept: Swept) -> None:
    assert [cell.state for cell in swept.cells] == ["finished"] * 5 + ["failed"], swept.said
    assert swept.status == 1
    assert "5 of 6 cells finished" in swept.said
    assert "cell 5 (controller=mlp seed=2) failed: UserError" in swept.said
    assert "field 'description' is missing" in swept.said


def test_the_killed_cell_was_half_way_and_went_on_from_its_records(swept: Swept) -> None:
    total = rows(swept.cells[KILLED].directory)
    assert 10 <= swept.rows_at_kill < total - 20
    log = "".join(path.read_text() for path in swept.sweep.glob(f"logs/*_{KILLED}_0_log.out"))
    assert log.count("Starting with JobEnvironment") == 2
    written = read_rows(swept.cells[KILLED].directory, EpisodeRow)
    keys = {(row.stage, row.condition, row.task, row.seed) for row in written}
    assert len(keys) == len(written), "a finished discussion was held again"


def test_the_requeued_cell_equals_an_undisturbed_run(
    swept: Swept, slurm_environment: dict[str, str], tmp_path: Path
) -> None:
    own = ["controller=rules", f"seed={KILLED}"]
    alone = start(slurm_environment, *swept.overrides[:-1], *own, f"output={tmp_path}", "progress=false")
    assert alone.communicate(timeout=300)[1] == ""
    (undisturbed,) = tmp_path.iterdir()
    assert tables(swept.cells[KILLED].directory) == tables(undisturbed)
    assert (swept.cells[KILLED].directory / "thresholds.json").read_bytes() == (
        undisturbed / "thresholds.json"
    ).read_bytes()


def test_the_collector_shows_good_cells_and_the_traceback_of_the_failed_one(swept: Swept) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "report.py"), str(swept.sweep)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished") >= 5
    assert "Traceback (most recent call last)" in done.stdout
    assert "field 'description' is missing" in done.stdout
    with (swept.sweep / "comparison" / "tables" / "cells.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert sorted(cell["state"] for cell in cells) == ["failed"] + ["finished"] * 5
    (failed,) = [cell for cell in cells if cell["state"] == "failed"]
    assert "load_tasks" in failed["traceback"]


def test_a_failed_cell_is_a_failed_job_with_its_traceback_in_the_log(
    swept: Swept, slurm_environment: dict[str, str]
) -> None:
    job = job_of(slurm_environment, BROKEN)
    state = ask(slurm_environment, "squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")
    assert state.strip() == "FAILED"
    (log,) = swept.sweep.glob(f"logs/*_{BROKEN}_0_log.err")
    assert "field 'description' is missing" in log.read_text()
    assert "completed successfully" not in log.read_text()


def test_jobs_inherit_nothing_of_the_job_they_were_launched_from(swept: Swept) -> None:
    """The launching process had a partition that does not exist and a task number of its own."""
    assert "nowhere" not in swept.said
    assert [cell.number for cell in swept.cells] == list(range(6))


def test_waiting_asks_no_accounting(
    slurm_environment: dict[str, str], task_files: Path, tmp_path: Path
) -> None:
    """There is none, and submitit would warn of it on every look."""
    spy = tmp_path / "bin" / "sacct"
    spy.parent.mkdir()
    spy.write_text(f"#!/bin/sh\necho called >> {tmp_path}/sacct.log\nexit 1\n")
    spy.chmod(0o755)
    path = f"{spy.parent}{os.pathsep}{slurm_environment['PATH']}"
    few = ("split.train=0", "conditions=[hidden_pre]", "certified=[]", f"task.path={task_files}/rules-0.json")
    started = start(
        {**slurm_environment, "PATH": path},
        *SIZES,
        *few,
        f"output={tmp_path}/runs",
        "-m",
        "seed=0,1",
        *LAUNCHER,
    )
    said = started.communicate(timeout=300)[1]
    assert started.returncode == 0, said
    assert "sacct" not in said
    assert not (tmp_path / "sacct.log").exists()


def test_a_job_at_its_time_limit_is_submitted_again_and_goes_on(
    slurm_environment: dict[str, str], task_files: Path, tmp_path: Path
) -> None:
    """Slurm's warning signal, sent by hand."""
    path = f"task.path={task_files}/rules-0.json"
    started = start(
        slurm_environment, *SIZES, path, f"output={tmp_path}", "-m", "controller=rules", "seed=0,1", *LAUNCHER
    )
    sweep = launched(tmp_path)
    directory = outcomes(sweep)[0].directory
    until(lambda: rows(directory) >= 10, "the cell to be half-way")
    ask(slurm_environment, "scancel", "--signal=USR2", job_of(slurm_environment, 0))
    until(lambda: json.loads((directory / "status.json").read_text())["state"] == "interrupted", "the signal")
    half = rows(directory)
    said = started.communicate(timeout=300)[1]
    assert started.returncode == 0, said
    assert half < rows(directory)
    assert [cell.state for cell in outcomes(sweep)] == ["finished"] * 2


def test_waiting_jobs_run_the_code_and_configuration_of_their_launch(
    slurm_environment: dict[str, str], task_files: Path, tmp_path: Path
) -> None:
    """One job at a time; what the second reads is spoilt while the first runs."""
    copy_code(tmp_path / "tree")
    environment = {**slurm_environment, "PYTHONPATH": str(tmp_path / "tree")}
    command = [sys.executable, str(tmp_path / "tree" / "scripts" / "pipeline.py")]
    few = ("split.train=0", "conditions=[hidden_pre]", "certified=[]", f"task.path={task_files}/rules-0.json")
    asked = (
        *SIZES,
        *few,
        f"output={tmp_path}/runs",
        "-m",
        "seed=0,1",
        *LAUNCHER,
        "hydra.launcher.array_parallelism=1",
    )
    started = subprocess.Popen(
        [*command, *asked], env=environment, cwd=tmp_path / "tree", stderr=subprocess.PIPE, text=True
    )
    first = outcomes(launched(tmp_path / "runs"))[0].directory
    until(lambda: (first / "config.yaml").exists(), "the first job")
    (tmp_path / "tree" / "sim" / "studies" / "verbs.py").write_text("raise SystemExit('edited')\n")
    (tmp_path / "tree" / "conf" / "split" / "generated.yaml").write_text("test: [\n")
    said = started.communicate(timeout=300)[1]
    assert "2 of 2 cells finished" in said


def test_a_refused_submission_is_told_in_slurms_words(
    slurm_environment: dict[str, str], task_files: Path, tmp_path: Path
) -> None:
    path = f"task.path={task_files}/rules-0.json"
    started = start(
        slurm_environment, *SIZES, path, f"output={tmp_path}", "-m", "seed=0,1", *LAUNCHER,
        "hydra.launcher.partition=nowhere",
    )  # fmt: skip
    said = started.communicate(timeout=120)[1]
    assert started.returncode == 2
    assert "invalid partition specified: nowhere" in said
    assert said.strip().splitlines()[-1].startswith("error: Slurm took no job")
    assert "Traceback" not in said
