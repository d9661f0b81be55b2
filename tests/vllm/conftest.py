"""A real vLLM server with a real small model on this machine's CPU, started once for all tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sim.engines.checkpoints import Checkpoint, local_checkpoint
from sim.engines.models import ModelConfig
from sim.engines.openai_server import OpenAIServerEngine, ServerEngineConfig
from sim.engines.placement import CpuServer, free_ports, places
from sim.engines.serving import Server, start, wait_until_healthy
from sim.tasks import generate_travel, write_tasks

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
MODEL = ModelConfig("smollm2_135m", "smollm2_135m", context=4096)
# Without graphs compiled: ready in a third of the time, and about as fast on two cores.
CONFIG = CpuServer(
    python=str(PYTHON), block_size=32, max_num_seqs=64, arguments=("--enforce-eager",), start_timeout_s=300
)


ANY_PORT = CpuServer(port=0, model_cores=1)
"""Another core is left to engine, server, client and tests."""
PUBLISHED = (
    "id", "name", "description", "shared_information", "hidden_information", "possible_answers", "correct_answer"
)  # fmt: skip
SMALL_CACHE = {"VLLM_CPU_KVCACHE_SPACE": "1"}


@dataclass
class Place:
    """A server that can be killed and started again at the same address."""

    checkpoint: Checkpoint
    port: int
    log: Path
    server: Server | None = None

    @property
    def url(self) -> str:
        """Base URL, the same after every start."""
        return f"http://{CONFIG.host}:{self.port}/v1"

    @property
    def running(self) -> Server:
        """The server, which must have been started."""
        assert self.server is not None
        return self.server

    def start(self) -> None:
        """Start it, without waiting."""
        ((_, environment),) = places(MODEL, ANY_PORT)
        self.server = start(MODEL, self.checkpoint, CONFIG, self.port, environment, self.log)

    def wait(self) -> None:
        """Return when it serves requests."""
        wait_until_healthy([self.running], CONFIG.start_timeout_s, lambda seconds, line: None)

    def kill(self) -> None:
        """SIGKILL to the whole process group, as a machine that runs out of memory would."""
        os.killpg(self.running.process.pid, signal.SIGKILL)
        self.running.process.wait()

    def healthy_again(self) -> None:
        """Start it once more if it is down."""
        if self.running.process.poll() is not None or not self.running.healthy():
            self.running.stop()
            self.start()
            self.wait()

    def metric(self, name: str) -> float:
        """The sum of one of vLLM's counters."""
        with urllib.request.urlopen(f"http://{CONFIG.host}:{self.port}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        found = [line for line in lines if line.startswith(f"{name}{{")]
        assert found, f"no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    """SmolLM2 as a directory that vLLM serves."""
    return local_checkpoint(MODEL)


@pytest.fixture(scope="session")
def _place(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    assert PYTHON.exists(), "vLLM's CPU environment is missing; run make vllm-cpu"
    place = Place(checkpoint, free_ports(CONFIG.host, 1)[0], tmp_path_factory.mktemp("vllm") / "server.log")
    place.start()
    try:
        place.wait()
        yield place
    finally:
        place.running.stop()


@pytest.fixture
def place(_place: Place) -> Place:
    """The server, healthy at the start of every test."""
    _place.healthy_again()
    return _place


OpenEngine = Callable[..., AbstractAsyncContextManager[OpenAIServerEngine]]


@pytest.fixture
def engine(place: Place) -> OpenEngine:
    """Opens the client of the server; keyword arguments are its settings."""

    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[OpenAIServerEngine]:
        config = ServerEngineConfig(**{"urls": (place.url,), **settings})
        async with OpenAIServerEngine(MODEL, config) as client:
            yield client

    return opened


def _heed_interrupts() -> None:
    """A suite that runs in the background was started with interrupts ignored; a terminal's user was not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Script:
    """One of the scripts as a process, with its output in a file."""

    def __init__(self, log: Path, python: str, name: str, arguments: tuple[str, ...]) -> None:
        self.log = log
        command = [python, f"scripts/{name}.py", *arguments]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **SMALL_CACHE},
                preexec_fn=_heed_interrupts,
            )  # fmt: skip

    def wait_for(self, condition: Callable[[], bool], within_s: float) -> None:
        """Return when a condition holds; fails if the process ends before, or time runs out."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert self.process.poll() is None, f"it ended early:\n{self.said()}"
            assert time.monotonic() < deadline, f"not within {within_s} s:\n{self.said()}"
            time.sleep(0.1)

    def finish(self, within_s: float) -> int:
        """Exit status."""
        return self.process.wait(within_s)

    def said(self) -> str:
        """What it printed."""
        return self.log.read_text()


RunScript = Callable[..., Script]


@pytest.fixture
def script(tmp_path: Path) -> Iterator[RunScript]:
    """Starts scripts, and ends those that a failed test leaves: script(name, *overrides, python=...)."""
    started: list[Script] = []

    def run(name: str, *arguments: str, python: str = sys.executable) -> Script:
        started.append(Script(tmp_path / f"{name}-{len(started)}.log", python, name, arguments))
        return started[-1]

    yield run
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()


@pytest.fixture(scope="session")
def hiddenbench_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated tasks with the fields that HiddenBench publishes, and no others."""
    path = tmp_path_factory.mktemp("tasks") / "tasks.json"
    write_tasks(path, generate_travel("easy", 9, seed=11, n_agents=4, n_options=3, n_shared=4))
    tasks = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(
        json.dumps([{name: task[name] for name in PUBLISHED} for task in tasks]), encoding="utf-8"
    )
    return path
