"""Server processes: start, health, failure and end, with a stand-in for vLLM that misbehaves on demand.

The stand-in is a package named vllm that an ordinary interpreter finds first; vLLM itself is in tests/vllm.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from sim.engines.checkpoints import Checkpoint
from sim.engines.models import ModelConfig
from sim.engines.placement import CpuServer, GpuServer
from sim.engines.serving import command, last_error, last_line, serving
from sim.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
STAND_IN = """
import http.server, os, signal, subprocess, sys, time

def option(name):
    return sys.argv[sys.argv.index("--" + name) + 1]

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if time.monotonic() > ready else 503)
        self.end_headers()

    def log_message(self, *arguments):
        pass

how = os.environ.get("STAND_IN", "")
print("(APIServer pid=1) INFO 12-01 02:03:04 [core.py:1] Loading weights", flush=True)
if how == "dies":
    print("(EngineCore pid=2) ERROR 12-01 02:03:05 [core.py:9] ValueError: no room for the cache", flush=True)
    print("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}", flush=True)
    sys.exit(1)
if how == "silent":
    os._exit(3)
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
ready = time.monotonic() + float(os.environ.get("READY_AFTER", "0.3"))
http.server.ThreadingHTTPServer((option("host"), int(option("port"))), Health).serve_forever()
"""
MODEL = ModelConfig("tiny", "tiny", 128)


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter's vllm that is not vLLM."""
    package = tmp_path / "path" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, *list(package.parents)[:2]):
        (folder / "__init__.py").touch()
    (package / "api_server.py").write_text(textwrap.dedent(STAND_IN))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.setattr("sim.engines.serving._GRACE_S", 0.5)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Where servers write."""
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def checkpoint() -> Checkpoint:
    """Some directory."""
    return Checkpoint(Path("/weights"), "r1")


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pid: int, within_s: float = 5.0) -> bool:
    """Whether a process ends in time."""
    deadline = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def child_of(log: Path) -> int:
    """The process that the stand-in started."""
    return int(next(line.split()[1] for line in log.read_text().splitlines() if line.startswith("child")))


def test_healthy_servers_are_given_and_their_groups_ended(logs: Path) -> None:
    told: list[tuple[float, str]] = []
    with serving(
        MODEL, checkpoint(), CpuServer(port=0, replicas=2), logs, lambda s, line: told.append((s, line))
    ) as servers:
        assert all(server.healthy() for server in servers)
        assert len({server.url for server in servers}) == 2
        processes = [pid for server in servers for pid in (server.process.pid, child_of(server.log))]
        assert all(alive(pid) for pid in processes)
    assert all(gone(pid) for pid in processes)
    assert told, "progress is told while waiting"
    assert told[-1][0] > 0


@pytest.mark.parametrize("how", ["", "stubborn"])
def test_an_error_in_the_block_ends_the_group_too(
    how: str, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", how)
    processes: list[int] = []

    def interrupted() -> None:
        with serving(MODEL, checkpoint(), CpuServer(port=0), logs) as (server,):
            processes.extend((server.process.pid, child_of(server.log)))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(gone(pid) for pid in processes)


def test_a_server_that_dies_at_the_start_says_its_own_last_error(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "dies")
    with (
        pytest.raises(
            UserError, match=r"stopped \(1\): ValueError: no room for the cache \(log: .*server-0.log"
        ),
        serving(MODEL, checkpoint(), CpuServer(port=0), logs),
    ):
        pass


def test_a_server_that_dies_without_an_error_shows_its_last_line(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "silent")
    with (
        pytest.raises(UserError, match=r"stopped \(3\): Loading weights"),
        serving(MODEL, checkpoint(), CpuServer(port=0), logs),
    ):
        pass


def test_a_server_that_is_not_ready_in_time_is_given_up(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("READY_AFTER", "60")
    with (
        pytest.raises(UserError, match=r"not healthy after 1 s; set server.start_timeout_s higher"),
        serving(MODEL, checkpoint(), CpuServer(port=0, start_timeout_s=1), logs),
    ):
        pass
    assert gone(child_of(logs / "server-0.log"))


def test_one_replica_that_fails_ends_the_others(logs: Path, tmp_path: Path) -> None:
    starter = tmp_path / "python"
    starter.write_text(
        f'#!/bin/sh\nif mkdir {tmp_path}/first 2>/dev/null; then exec {sys.executable} "$@"; fi\nexit 7\n'
    )
    starter.chmod(0o755)
    config = CpuServer(port=0, replicas=2, python=str(starter))
    with pytest.raises(UserError, match=r"stopped \(7\)"), serving(MODEL, checkpoint(), config, logs):
        pass
    for log in logs.iterdir():
        if "child" in log.read_text():
            assert gone(child_of(log))


def test_a_server_that_ends_by_itself_is_noticed(logs: Path) -> None:
    with serving(MODEL, checkpoint(), CpuServer(port=0), logs) as (server,):
        server.check_running()
        server.process.kill()
        server.process.wait()
        assert not server.healthy()
        with pytest.raises(UserError, match=r"stopped \(-9\)"):
            server.check_running()


def test_servers_end_when_their_starter_is_killed(logs: Path) -> None:
    code = "import sys, time; from pathlib import Path; from tests_serving_entry import go; go(Path(sys.argv[1]))"
    entry = logs.parent / "path" / "tests_serving_entry.py"
    entry.write_text(
        "import time\n"
        "from pathlib import Path\n"
        "from sim.engines.checkpoints import Checkpoint\n"
        "from sim.engines.models import ModelConfig\n"
        "from sim.engines.placement import CpuServer\n"
        "from sim.engines.serving import serving\n\n\n"
        "def go(logs):\n"
        "    model = ModelConfig('tiny', 'tiny', 128)\n"
        "    with serving(model, Checkpoint(Path('/w'), 'r'), CpuServer(port=0), logs) as (server,):\n"
        "        print(server.process.pid, flush=True)\n"
        "        time.sleep(600)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", code, str(logs)], stdout=subprocess.PIPE, cwd=ROOT)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    assert gone(pid)
    os.kill(child_of(logs / "server-0.log"), signal.SIGKILL)


def test_the_command_sends_no_default_of_the_models_own() -> None:
    line = command(MODEL, checkpoint(), CpuServer(block_size=32, arguments=("--enforce-eager",)), 8123)
    options = dict(pairwise(line))
    assert line[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert options["--generation-config"] == "vllm"
    assert options["--model"] == "/weights"
    assert options["--served-model-name"] == "tiny"
    assert options["--max-model-len"] == "128"
    assert options["--block-size"] == "32"
    assert options["--port"] == "8123"
    assert json.loads(options["--structured-outputs-config"])["disable_any_whitespace"] is True
    assert "--enable-prefix-caching" in line
    assert "--enable-prompt-tokens-details" in line
    assert line[-1] == "--enforce-eager"
    assert "--tensor-parallel-size" not in line


def test_a_gpu_server_is_told_how_to_split_the_model() -> None:
    model = ModelConfig("big", "big", 128, tensor_parallel=4)
    line = command(model, checkpoint(), GpuServer(data_parallel=2, gpu_memory_utilization=0.8), 8000)
    options = dict(pairwise(line))
    assert options["--tensor-parallel-size"] == "4"
    assert options["--data-parallel-size"] == "2"
    assert options["--gpu-memory-utilization"] == "0.8"


def test_an_empty_log_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    assert last_error(log) == "it wrote nothing"
    assert last_line(log) == ""


def test_colours_and_prefixes_of_a_log_are_taken_off(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\x1b[36m(Worker pid=7)\x1b[0;0m INFO 12-01 02:13:58 [loader.py:501] Loading took 0.2 s\n")
    assert last_line(log) == "Loading took 0.2 s"


def _heed_interrupts() -> None:
    """A suite that runs in the background was started with interrupts ignored; a terminal's user was not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class TestServeScript:
    """scripts/serve.py as a user runs it."""

    @pytest.fixture
    def running(self, tmp_path: Path, logs: Path) -> Iterator[subprocess.Popen[str]]:
        """The script, serving a directory of weights with the stand-in."""
        (tmp_path / "weights").mkdir()
        process = subprocess.Popen(
            [
                sys.executable, "scripts/serve.py", f"model.id={tmp_path / 'weights'}", f"output={logs}",
                f"server.python={sys.executable}", "server.port=0",
            ],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            preexec_fn=_heed_interrupts,
        )  # fmt: skip
        yield process
        process.kill()
        process.wait()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_it_prints_url_and_log_and_stops_cleanly(
        self, running: subprocess.Popen[str], logs: Path, number: signal.Signals
    ) -> None:
        assert running.stdout is not None
        said = ""
        while "pipeline.py" not in said:
            line = running.stdout.readline()
            assert line, f"ended early: {running.stderr.read() if running.stderr else ''}"
            said += line
        (directory,) = logs.iterdir()
        record = json.loads((directory / "server.json").read_text())
        (served,) = record["servers"]
        assert served["url"] in said
        assert str(directory / "server-0.log") in said
        assert record["revision"] in said
        running.send_signal(number)
        rest, errors = running.communicate(timeout=30)
        assert (running.returncode, errors) == (0, "")
        assert rest.splitlines()[-1] == "stopped"
        assert gone(served["pid"])

    def test_a_server_that_dies_later_ends_it_with_status_2(
        self, running: subprocess.Popen[str], logs: Path
    ) -> None:
        assert running.stdout is not None
        said = ""
        while "pipeline.py" not in said:
            said += running.stdout.readline()
        (directory,) = logs.iterdir()
        os.kill(json.loads((directory / "server.json").read_text())["servers"][0]["pid"], signal.SIGKILL)
        _, errors = running.communicate(timeout=30)
        assert running.returncode == 2
        assert "stopped (-9)" in errors
        assert "Traceback" not in errors
