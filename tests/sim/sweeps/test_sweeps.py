"""Sweeps on this machine, and the known faults of launchers that ours must not have."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from sim.errors import UserError
from sim.launch import CONF
from sim.records import run_dir
from sim.records.code_version import ROOT, code_version, copy_code
from sim.records.sweep_dir import outcomes, read_sweep
from sim.sweeps.cell import run_cell
from sim.sweeps.local import cell_environment, run_here
from sim.sweeps.plan import Cell, cell_directory, read_cell, write_sweep
from sim.sweeps.slurm import outside_jobs, queued
from sim.tasks import HiddenProfileTask, generate_travel, write_tasks

SMALL = (
    "task.count=12", "split.train=0", "split.pilot=0", "split.calibration=0", "split.test=12",
    "conditions=[hidden_pre]", "certified=[]", "world.horizon=2",
)  # fmt: skip


def pipeline(*arguments: str, tree: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """`scripts/evaluate.py` of a source tree, run to its end."""
    return subprocess.run(
        [sys.executable, str(tree / "scripts" / "evaluate.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(tree), **environment},
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=120,
    )


def sweep_of(root: Path) -> Path:
    """The only sweep below a folder."""
    (found,) = root.glob("sweep-*")
    return found


def states(root: Path) -> list[str]:
    """The states of the only sweep's cells."""
    return [outcome.state for outcome in outcomes(sweep_of(root))]


def test_cells_have_directories_logs_and_configurations_of_their_own(tmp_path: Path) -> None:
    done = pipeline(
        "-m", *SMALL, f"output={tmp_path}", "seed=0,1", "notice='a/b, c=[d]'", "hydra/launcher=joblib"
    )
    assert done.returncode == 0, done.stderr
    assert "2 of 2 cells finished" in done.stderr
    sweep = sweep_of(tmp_path)
    for outcome, seed in zip(outcomes(sweep), (0, 1), strict=True):
        config = yaml.safe_load((outcome.directory / "config.yaml").read_text())
        assert (config["seed"], config["task"]["seed"], config["notice"]) == (seed, seed, "a/b, c=[d]")
        assert outcome.overrides == (f"seed={seed}",)
        assert outcome.directory.parent == sweep
        assert (
            json.loads((outcome.directory / "provenance.json").read_text())["source_hash"]
            == (read_sweep(sweep).code["source_hash"])
        )
    assert sorted(path.name for path in (sweep / "logs").iterdir()) == ["000.log", "001.log"]


def without_evidence() -> list[HiddenProfileTask]:
    """Sound tasks that cognitive agents cannot play, which shows once they are opened."""
    return [msgspec.structs.replace(task, evidence=None) for task in generate_travel("easy", 12, 0)]


def test_a_failing_cell_stops_no_other_and_keeps_its_traceback(tmp_path: Path) -> None:
    write_tasks(tmp_path / "0.json", without_evidence())
    write_tasks(tmp_path / "1.json", generate_travel("easy", 12, 0))
    done = pipeline(
        *SMALL,
        "task=file",
        f"task.path={tmp_path}/${{seed}}.json",
        f"output={tmp_path}/runs",
        "-m",
        "seed=0,1",
    )
    assert done.returncode == 1
    assert states(tmp_path / "runs") == ["failed", "finished"]
    assert "cell 0 (seed=0) failed: UserError" in done.stderr
    failed = outcomes(sweep_of(tmp_path / "runs"))[0].directory
    assert "evidence_array" in json.loads((failed / "status.json").read_text())["traceback"]
    assert (
        "Traceback (most recent call last)" in (sweep_of(tmp_path / "runs") / "logs" / "000.log").read_text()
    )


def test_a_failing_submitit_job_is_no_success_in_its_log(tmp_path: Path) -> None:
    """Known fault: the job's log says "completed successfully" and the traceback is nowhere."""
    write_tasks(tmp_path / "tasks.json", without_evidence())
    slurm = ("hydra/launcher=submitit_slurm", "hydra.launcher.cluster=local")
    done = pipeline(
        *SMALL, "task=file", f"task.path={tmp_path}/tasks.json", f"output={tmp_path}/runs", "-m", *slurm
    )
    assert done.returncode == 1
    assert states(tmp_path / "runs") == ["failed"]
    logs = "".join(path.read_text() for path in sweep_of(tmp_path / "runs").glob("logs/*.err"))
    assert "cognitive agents need log-odds" in logs
    assert "Traceback (most recent call last)" in logs
    assert "the cell did not finish" in logs
    assert "completed successfully" not in logs


def test_what_is_edited_while_a_sweep_runs_reaches_no_waiting_cell(tmp_path: Path) -> None:
    """Known fault: jobs compose YAML, and import code, as they lie there when the job starts."""
    tree = tmp_path / "tree"
    copy_code(tree)
    edits: list[bool] = []

    def edit() -> None:
        while not list((tmp_path / "runs").glob("sweep-*/*-000/config.yaml")):
            time.sleep(0.02)
        (tree / "conf" / "split" / "generated.yaml").write_text("test: [\n")
        (tree / "sim" / "studies" / "verbs.py").write_text("raise SystemExit('edited')\n")
        edits.append(not list((tmp_path / "runs").glob("sweep-*/*-001")))

    editor = threading.Thread(target=edit, daemon=True)
    editor.start()
    done = pipeline(*SMALL, f"output={tmp_path}/runs", "-m", "seed=0,1", tree=tree)
    assert edits == [True], "the edit came too late to test anything"
    assert done.returncode == 0, done.stderr
    assert states(tmp_path / "runs") == ["finished", "finished"]
    assert pipeline(*SMALL, f"output={tmp_path}/runs", tree=tree).returncode != 0


def test_sweeps_of_one_second_share_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known fault: the folder is named by the second."""
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-000000")
    assert len({run_dir.launch_id() for _ in range(20)}) == 20
    write_sweep(tmp_path / "sweep", ["x"], "serial", [])
    with pytest.raises(UserError, match="File exists"):
        write_sweep(tmp_path / "sweep", ["x"], "serial", [])


def test_a_launcher_in_an_experiment_is_refused_not_ignored(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    copy_code(tree)
    for name in ("a", "b"):
        (tree / "conf" / "experiment" / f"{name}.yaml").write_text(
            f"# @package _global_\ndefaults:\n  - override /hydra/launcher: joblib\nname: {name}\n"
        )
    done = pipeline(*SMALL, f"output={tmp_path}/runs", "-m", "experiment=a,b", tree=tree)
    assert done.returncode == 2
    assert "a.yaml: chooses a launcher, which a sweep does not see" in done.stderr
    assert not list((tmp_path / "runs").glob("sweep-*/sweep.json"))
    for path in (CONF / "experiment").glob("*.yaml"):
        assert "launcher" not in path.read_text(), path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("hydra/launcher=joblib",), "hydra/launcher=joblib is for sweeps and would not be used; add -m"),
        (("-m", "hydra/launcher=basic"), "hydra/launcher=basic is not ours; choose serial, joblib"),
        (
            ("-m", "conformal.alpha=0.1,2"),
            "cell 1 (conformal.alpha=2): config: conformal: conformal.alpha is 2",
        ),
        (("-m", "seed=-1,0"), "cell 0 (seed=-1): seed is -1; a seed is a whole number from 0"),
        (("-m", "task.count=12,2"), "cell 1 (task.count=2): "),
        (("-m", "hydra.sweeper.max_batch_size=1", "seed=0,1"), "max_batch_size is set"),
        (("-m", "hydra.launcher.n_jobs=0"), "n_jobs is 0"),
    ],
)
def test_what_a_sweep_would_misunderstand_is_refused(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    done = pipeline(*SMALL, f"output={tmp_path}/runs", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert len([line for line in done.stderr.splitlines() if "cells" not in line]) == 1
    if words.startswith(("cell", "max_batch")):
        assert list(tmp_path.iterdir()) == []


def test_cells_see_no_gpu_and_their_share_of_the_cores(tmp_path: Path) -> None:
    """Known fault: jobs side by side all take the first GPU. Servers own GPUs; cells are their clients."""
    assert cell_environment(tmp_path, 2, hide_gpus=True)["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in cell_environment(tmp_path, None, hide_gpus=False)
    for name in ("joblib", "submitit_slurm"):
        settings = yaml.safe_load((CONF / "hydra" / "launcher" / f"{name}.yaml").read_text())
        assert settings["hide_gpus"] is True
        assert settings.get("gpus_per_node") is None


def test_submission_hides_the_job_it_may_run_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known fault: sbatch takes SLURM_* of the job around it for options."""
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("SBATCH_PARTITION", "other")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    with outside_jobs({"OURS": "1"}):
        assert "SLURM_ARRAY_TASK_ID" not in os.environ
        assert "SBATCH_PARTITION" not in os.environ
        assert os.environ["SLURM_CONF"] == "/etc/slurm.conf"
        assert os.environ["OURS"] == "1"
    assert os.environ["SLURM_ARRAY_TASK_ID"] == "3"
    assert "OURS" not in os.environ


@pytest.mark.parametrize(
    ("status", "out", "err", "alive"),
    [
        (0, "COMPLETED\nRUNNING\n", "", True),
        (0, "PENDING\n", "", True),
        (0, "COMPLETED\nCANCELLED\nFAILED\nTIMEOUT\n", "", False),
        (0, "", "", False),
        (1, "", "slurm_load_jobs error: Invalid job id specified", False),
        (1, "", "slurm_load_jobs error: Unable to contact slurm controller", None),
    ],
)
def test_waiting_ends_when_no_job_is_left_and_knows_silence_from_an_end(
    status: int, out: str, err: str, alive: bool | None
) -> None:
    assert queued(subprocess.CompletedProcess([], status, out, err)) is alive


@pytest.fixture(name="planned")
def _planned(tmp_path: Path) -> Callable[..., list[Path]]:
    """A sweep of cells whose script runs some Python."""

    def plan(*sources: str) -> list[Path]:
        sweep = tmp_path / "sweep"
        cells = [
            Cell(i, (f"i={i}",), f"cell{i}", {"name": "x", "resume": None}, {}, str(sweep / f"x-{i}"))
            for i in range(len(sources))
        ]
        files = write_sweep(sweep, ["x"], "joblib", cells)
        for cell, source in zip(cells, sources, strict=True):
            (sweep / "code" / "scripts" / f"{cell.script}.py").write_text(
                "import sys, os, signal\nfrom pathlib import Path\nfrom sim.launch import launch\n"
                "from sim.records.run_dir import tracked\n\ndef verb(data, overridden):\n"
                f"    with tracked(Path(data['resume']), 'verb'):\n        {source}\n\nlaunch(verb)\n"
            )
        return files

    return plan


def test_a_cell_that_is_killed_takes_no_other_with_it(planned: Callable[..., list[Path]]) -> None:
    """Known fault: a worker that dies breaks the pool, and with it every job that waits."""
    files = planned("os.kill(os.getpid(), signal.SIGKILL)", "pass", "raise KeyError('no')")
    done: list[int] = []
    run_here(files[0].parent.parent, files, 2, True, done.append)
    assert [o.state for o in outcomes(files[0].parent.parent)] == ["interrupted", "finished", "failed"]
    assert done == [1, 1, 1]


def test_a_second_attempt_finds_the_first_ones_directory(planned: Callable[..., list[Path]]) -> None:
    (file,) = planned("pass")
    seen: list[Any] = []

    def stopped(data: Any, overridden: Any) -> None:
        seen.append(data["resume"])
        raise SystemExit(255)

    with pytest.raises(SystemExit):
        run_cell(stopped, file)
    assert run_cell(lambda data, overridden: seen.append(data["resume"]), file) == 0
    assert seen == [read_cell(file).directory] * 2


def test_a_finished_cell_is_left_alone(planned: Callable[..., list[Path]]) -> None:
    (file,) = planned("pass")
    with run_dir.tracked(Path(read_cell(file).directory).parent, "x"):
        pass
    directory = Path(read_cell(file).directory)
    directory.mkdir()
    with run_dir.tracked(directory, "x"):
        pass
    called: list[int] = []
    assert run_cell(lambda data, overridden: called.append(1), file) == 0
    assert called == []


def test_two_processes_on_a_cell_leave_the_first_ones_status_alone(
    planned: Callable[..., list[Path]],
) -> None:
    from sim.records.store import RunStore

    (file,) = planned("pass")
    directory = Path(read_cell(file).directory)
    directory.mkdir()

    def verb(data: Any, overridden: Any) -> None:
        with RunStore(Path(data["resume"])), run_dir.tracked(Path(data["resume"]), "verb"):
            pass

    with RunStore(directory), run_dir.tracked(directory, "first"):
        assert run_cell(verb, file) == 1
        assert run_dir.read_status(directory)["state"] == "running"
        assert run_dir.read_status(directory)["verb"] == "first"


def test_a_cell_that_resumes_a_run_works_there(tmp_path: Path) -> None:
    assert cell_directory(tmp_path, 3, {"resume": str(tmp_path / "r")}, "abc") == tmp_path / "r"
    assert cell_directory(tmp_path, 3, {"name": "a b/c"}, "abc") == tmp_path / "a_b_c-abc-003"


def test_a_copy_of_the_code_names_the_version_it_was_made_from(tmp_path: Path) -> None:
    copy_code(tmp_path / "code")
    assert code_version(tmp_path / "code") == code_version()
    changed = tmp_path / "code" / "sim" / "errors.py"
    changed.write_text(changed.read_text() + "# changed\n")
    from sim.records.code_version import source_hash

    assert source_hash(tmp_path / "code") != source_hash()


def test_ctrl_c_and_signals_are_interruptions_not_failures(tmp_path: Path) -> None:
    for error, state in (
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(1), "interrupted"),
        (OSError(), "failed"),
    ):
        with pytest.raises(type(error)), run_dir.tracked(tmp_path, "x"):
            raise error
        assert run_dir.read_status(tmp_path)["state"] == state


def test_a_run_whose_process_is_gone_is_interrupted(tmp_path: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from sim.records.run_dir import tracked\n"
        f"with tracked(Path({str(tmp_path)!r}), 'x'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    status = run_dir.read_status(tmp_path)
    assert status["state"] == "running"
    assert run_dir.state_of(status) == "interrupted"
    assert run_dir.state_of({**status, "host": "another"}) == "running"
