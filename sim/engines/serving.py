"""vLLM server processes: their command lines, their start, their health and their end.

A server owns its GPUs, its process group and its log file; clients know its URL only. Nothing here sends a
prompt.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sim.engines.checkpoints import Checkpoint
from sim.engines.models import ModelConfig
from sim.engines.placement import GpuServer, ServerConfig, interpreter, places
from sim.errors import UserError

STRUCTURED_OUTPUTS = {"backend": "xgrammar", "disable_any_whitespace": True}
"""How vLLM binds replies to a schema: a model that may write white space can write nothing else for ever."""

_POLL_S = 0.5
_GRACE_S = 20.0
_TAIL_BYTES = 200_000
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LOG_PREFIX = re.compile(r"^(\([^)]*\) )?([A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] )?")
_SAYS_ERROR = re.compile(r"\b\w*(Error|Exception|error)\b: \S")
_POINTS_ELSEWHERE = re.compile(r"(?i)see (root cause|stack trace)|failed core proc")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Server:
    """A running server process; `url` is the base URL of its OpenAI-compatible interface."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def health_url(self) -> str:
        """Answers 200 once requests are served, 503 if the engine behind the server is dead."""
        return f"{self.url.removesuffix('/v1')}/health"

    def healthy(self) -> bool:
        """Whether it serves requests now."""
        try:
            with urllib.request.urlopen(self.health_url, timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False

    def check_running(self) -> None:
        """Raise UserError with the server's own last error if its process has ended."""
        status = self.process.poll()
        if status is not None:
            said = last_error(self.log)
            raise UserError(f"the server at {self.url} stopped ({status}): {said} (log: {self.log})")

    def stop(self) -> None:
        """End the whole process group: first asked, after 20 s forced."""
        _signal_group(self.process, signal.SIGTERM)
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _signal_group(self.process, signal.SIGKILL)
            self.process.wait()


@contextmanager
def serving(
    model: ModelConfig,
    checkpoint: Checkpoint,
    config: ServerConfig,
    directory: Path,
    progress: Callable[[float, str], None] = lambda seconds, line: None,
) -> Iterator[list[Server]]:
    """Healthy servers, one per replica, for the time of the block; their logs lie in `directory`.

    `progress` is told of the seconds waited and the log's last line. Raises UserError where a server cannot
    start, with the server's own last error.
    """
    servers: list[Server] = []
    try:
        for index, (port, environment) in enumerate(places(model, config)):
            log = directory / f"server-{index}.log"
            servers.append(start(model, checkpoint, config, port, environment, log))
        wait_until_healthy(servers, config.start_timeout_s, progress)
        yield servers
    finally:
        for server in servers:
            server.stop()


def start(
    model: ModelConfig,
    checkpoint: Checkpoint,
    config: ServerConfig,
    port: int,
    environment: Mapping[str, str],
    log: Path,
) -> Server:
    """A server process in its own group, not yet healthy; it ends when this process does."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command(model, checkpoint, config, port),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
    return Server(f"http://{config.host}:{port}/v1", log, process)


def command(model: ModelConfig, checkpoint: Checkpoint, config: ServerConfig, port: int) -> list[str]:
    """The command line of one server; sampling defaults of the model's own are switched off."""
    options: dict[str, object] = {
        "model": checkpoint.directory,
        "served-model-name": model.name,
        "dtype": model.dtype,
        "max-model-len": model.context,
        "host": config.host,
        "port": port,
        "max-num-seqs": config.max_num_seqs,
        "generation-config": "vllm",
        "structured-outputs-config": json.dumps(STRUCTURED_OUTPUTS),
    }
    if config.block_size is not None:
        options["block-size"] = config.block_size
    if isinstance(config, GpuServer):
        options["tensor-parallel-size"] = model.tensor_parallel
        options["data-parallel-size"] = config.data_parallel
        options["gpu-memory-utilization"] = config.gpu_memory_utilization
    listed = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    flags = ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    entry = [interpreter(config), "-m", "vllm.entrypoints.openai.api_server"]
    return [*entry, *listed, *flags, *config.arguments]


def wait_until_healthy(
    servers: Sequence[Server], timeout_s: float, progress: Callable[[float, str], None]
) -> None:
    """Return when all serve requests. Raises UserError if one ends, or is not there in time."""
    started = time.monotonic()
    missing = list(servers)
    while missing:
        for server in servers:
            server.check_running()
        missing = [server for server in missing if not server.healthy()]
        waited = time.monotonic() - started
        if missing and waited > timeout_s:
            raise UserError(
                f"the server at {missing[0].url} was not healthy after {timeout_s:.0f} s; set "
                f"server.start_timeout_s higher or read its log: {missing[0].log}"
            )
        if missing:
            progress(waited, last_line(missing[0].log))
            time.sleep(_POLL_S)


def last_error(log: Path) -> str:
    """The last line of a log that states an error, without those that only point at another line."""
    lines = _tail(log)
    stated = [line for line in lines if _SAYS_ERROR.search(line) and not _POINTS_ELSEWHERE.search(line)]
    return (stated or lines or ["it wrote nothing"])[-1]


def last_line(log: Path) -> str:
    """The last line of a log, without vLLM's prefix."""
    return (_tail(log) or [""])[-1]


def _tail(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        text = _ANSI.sub("", file.read().decode(errors="replace"))
    return [_LOG_PREFIX.sub("", line).strip() for line in text.splitlines() if line.strip()]


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _end_with_parent() -> None:
    """In the child: be asked to end when the process that started it dies, however it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
