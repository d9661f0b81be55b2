"""A model server as a Slurm job: found through its file, followed when it is requeued, gone when it is cancelled.

The server is a stand-in without a model; vLLM itself is in tests/vllm.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from sim.records.rows import CallRow
from sim.records.store import read_rows
from sim.records.sweep_dir import outcomes

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).parent / "stand_in_server.py"
PLACE = (
    "where=slurm", "where.cpus_per_task=1", "where.mem_gb=1", "where.gpus_per_node=null", "where.host=127.0.0.1",
)  # fmt: skip
STUDY = (
    "world=language", "engine=openai_server", "engine.patience_s=120", "engine.attempts=100", "engine.first_wait_s=1",
    "task=travel_few", "split=few", "split.train=0", "split.calibration=0", "split.test=3", "task.count=3",
    "world.horizon=6", "stop.quorum=null", "conditions=[rules,random]", "certified=[]", "reference=random",
)  # fmt: skip
LAUNCHER = (
    "hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1",
)  # fmt: skip


def until(found: Callable[[], bool], what: str, seconds: float = 180) -> None:
    """Wait for something to happen."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.1)


def script(name: str, *arguments: str) -> list[str]:
    """The command line of a script."""
    return [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *arguments]


def ask(environment: Mapping[str, str], *command: str) -> str:
    """What a command answers."""
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


class ServerJob:
    """A server that was submitted; `urls` is the file of its clients."""

    def __init__(self, environment: dict[str, str], root: Path) -> None:
        python = root / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
        python.chmod(0o755)
        (root / "weights").mkdir()
        model = f"model.id={root}/weights"
        self.environment = environment
        self.said = ask(
            environment, *script("serve", *PLACE, model, f"server.python={python}", f"output={root}/servers")
        )
        (folder,) = (root / "servers").iterdir()
        self.number = self.said.split()[1]
        self.directory = folder / "server"
        self.urls = self.directory / "urls.json"

    def url(self) -> str:
        """Where it serves now, once it does."""
        until(self.urls.exists, "the file of URLs")
        (url,) = json.loads(self.urls.read_text())
        return str(url)

    def state(self) -> str:
        """What Slurm says of the job."""
        listed = ("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={self.number}")
        return ask(self.environment, *listed).strip()


@pytest.fixture(name="server")
def _server(slurm_environment: dict[str, str], tmp_path: Path) -> Iterator[ServerJob]:
    started = ServerJob(slurm_environment, tmp_path)
    yield started
    subprocess.run(["scancel", started.number], env=slurm_environment, check=True)
    until(lambda: started.state() not in ("RUNNING", "PENDING", "COMPLETING"), "the server to be gone")


def test_a_server_publishes_its_url_when_healthy_and_withdraws_it_when_cancelled(server: ServerJob) -> None:
    assert f"engine.urls=[file:{server.urls}]" in server.said
    with urllib.request.urlopen(f"{server.url()}/models") as reply:
        assert json.load(reply)["data"][0]["id"] == "smollm2_135m"
    ask(server.environment, "scancel", server.number)
    until(lambda: not server.urls.exists(), "the file to be withdrawn", 60)
    status = json.loads((server.directory / "status.json").read_text())
    assert (status["state"], status["verb"]) == ("interrupted", "serve")


def test_a_sweep_finds_its_server_and_follows_it_when_it_is_requeued(
    server: ServerJob, tmp_path: Path
) -> None:
    """The sweep starts before the server is there, and the server moves to another port half-way."""
    urls = f"engine.urls=[file:{server.urls}]"
    sweep = subprocess.Popen(
        script("pipeline", *STUDY, urls, f"output={tmp_path}/runs", "-m", "seed=0,1", *LAUNCHER),
        env=server.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    before = server.url()
    until(lambda: any((tmp_path / "runs").glob("sweep-*/sweep.json")), "the sweep's directory")
    (folder,) = (tmp_path / "runs").glob("sweep-*")
    first = outcomes(folder)[0].directory
    until(lambda: (first / "calls.jsonl").exists(), "the first calls")
    ask(server.environment, "scontrol", "requeue", server.number)
    until(lambda: server.urls.exists() and server.url() != before, "the server to be back")
    said = sweep.communicate(timeout=300)[1]
    assert sweep.returncode == 0, said
    assert "2 of 2 cells finished" in said
    calls = read_rows(first, CallRow)
    assert any(call.retries for call in calls)
    assert not any(call.error for call in calls)


def test_a_server_at_its_time_limit_starts_again(server: ServerJob) -> None:
    """Slurm's warning signal, sent by hand."""
    server.url()
    first = server.urls.stat().st_mtime_ns
    ask(server.environment, "scancel", "--signal=USR2", server.number)
    until(lambda: server.urls.exists() and server.urls.stat().st_mtime_ns != first, "the server to be back")
    assert server.state() == "RUNNING"
