"""The list of runs: states that hold when nobody is left to tell them, settings that tell cells apart."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim.records.sweep_dir import Sweep
from sim.report.build import build_report
from sim.report.command import report_command
from sim.report.listing import list_runs
from sim.report.source import read_status
from sim.report.terminal import print_report


def running(pid: int) -> dict[str, Any]:
    """What status.json says while a process of this machine is at it."""
    return {"state": "running", "verb": "evaluate", "pid": pid, "host": socket.gethostname()}


@pytest.fixture(name="gone")
def _gone() -> int:
    """The number of a process that was killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process.kill()
    process.communicate()
    return process.pid


def test_a_killed_run_is_interrupted_and_its_report_says_so(
    worked_example: Any, gone: int, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = worked_example.write(status=running(gone), config="seed: 0\n")
    assert [listing.status.state for listing in list_runs(directory)] == ["interrupted"]
    build_report(directory)
    print_report(directory)
    assert "This run is interrupted: the numbers are of what was recorded so far." in capsys.readouterr().out
    packed = re.search(r'<script[^>]* id="index"[^>]*>([^<]+)<', (directory / "report.html").read_text())
    assert packed
    page = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    assert page["runs"][0]["unfinished"].startswith("This run is interrupted")


def test_a_run_at_work_is_running_for_others_and_done_for_its_own_report(worked_example: Any) -> None:
    other = worked_example.write(status=running(os.getppid()))
    assert read_status(other).state == "running"
    assert read_status(other).unfinished.startswith("This run is still running")
    own = worked_example.write(status=running(os.getpid()))
    assert read_status(own).state == "finished"
    assert read_status(own).unfinished == ""


def test_cells_are_listed_by_what_they_do_not_share_waiting_ones_too(run_writer: Any, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep-1"
    run_writer("sweep-1/a-000").write(status={"state": "finished", "verb": "evaluate"}, config="seed: 0\n")
    cells = tuple((str(sweep / f"a-00{seed}"), ("task.count=9", f"seed={seed}")) for seed in range(2))
    (sweep / "sweep.json").write_bytes(msgspec.json.encode(Sweep(("pipeline.py", "-m"), "serial", {}, cells)))
    expected = [("a-000", "finished", ("seed=0",)), ("a-001", "waiting", ("seed=1",))]
    for root in (tmp_path, sweep):
        assert [(x.directory.name, x.status.state, x.settings) for x in list_runs(root)] == expected
    (cell,) = list_runs(sweep / "a-000")
    assert cell.settings == ("seed=0",)
    sweep.rename(tmp_path / "moved")
    (moved, _) = list_runs(tmp_path)
    assert (moved.directory.parent.name, moved.settings) == ("moved", ("seed=0",))


def test_runs_are_listed_by_what_their_command_line_set(run_writer: Any, tmp_path: Path) -> None:
    run = run_writer("one").write(config="seed: 0\n")
    words = [
        "task=travel_hard",
        "conformal.alpha=0.05",
        "output=x",
        "progress=false",
        "hydra.job.name=pipeline",
    ]
    (run / "provenance.json").write_text(json.dumps({"command": words}))
    (run / "wandb" / "run-1" / "files").mkdir(parents=True)
    (run / "wandb" / "run-1" / "files" / "config.yaml").write_text("x: 1\n")
    (listing,) = list_runs(tmp_path)
    assert listing.settings == ("task=travel_hard", "conformal.alpha=0.05")


def test_without_arguments_the_runs_are_listed_and_nothing_is_written(
    worked_example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert report_command([]) == 2
    assert (
        capsys.readouterr().err == "error: runs: is not a directory; give a folder of runs, such as runs/\n"
    )
    worked_example.directory = tmp_path / "runs" / "one"
    worked_example.write(status={"state": "finished", "verb": "evaluate"}, config="seed: 0\n")
    before = sorted((tmp_path / "runs").rglob("*"))
    assert report_command([]) == 0
    assert "finished" in capsys.readouterr().out
    assert sorted((tmp_path / "runs").rglob("*")) == before
