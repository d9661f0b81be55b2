"""The verb `serve`: starts the servers of a configuration, says where they are, and ends them on Ctrl-C."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from rich.console import Console

from sim.engines.checkpoints import Checkpoint, local_checkpoint
from sim.engines.models import ModelConfig, parse_model
from sim.engines.placement import ServerConfig, parse_server
from sim.engines.serving import Server, serving
from sim.engines.url_file import published
from sim.errors import UserError

URLS = "urls.json"
"""Where servers are, in the directory of their logs, for as long as they serve."""
_LOOK_S = 1.0
_QUIET_S = 15.0


def serve(data: Mapping[str, Any], overridden: Mapping[str, Any]) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises UserError where a server does not start, or ends by itself."""
    model, config = parse_model(data["model"]), parse_server(data["server"])
    directory = _claim(Path(data["output"]), model.name)
    try:
        serve_in(directory, model, config)
    except KeyboardInterrupt:
        Console().print("stopped")


def serve_in(directory: Path, model: ModelConfig, config: ServerConfig) -> None:
    """Serve with logs and the file of URLs in a directory; KeyboardInterrupt on Ctrl-C, SIGTERM or SIGHUP."""
    console = Console()
    checkpoint = local_checkpoint(model)
    with (
        _ends_on_signal(),
        _progress(model, console) as progress,
        serving(model, checkpoint, config, directory, progress) as servers,
    ):
        progress(-1.0, "")
        _write_record(directory, model, checkpoint, config, servers)
        with published(directory / URLS, [server.url for server in servers]):
            _announce(console, model, checkpoint, servers)
            while all(server.process.poll() is None for server in servers):
                time.sleep(_LOOK_S)
        for server in servers:
            server.check_running()


def _claim(output: Path, name: str) -> Path:
    """A new directory for the logs of one start."""
    directory = output / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"output: {directory} cannot be made: {error.strerror}") from error
    return directory


@contextmanager
def _progress(model: ModelConfig, console: Console) -> Iterator[Callable[[float, str], None]]:
    """A line that moves on a terminal, or one line every 15 seconds in a log; -1 seconds ends it."""
    status = console.status(f"starting a server for {model.name}")
    shown = -_QUIET_S

    def tell(seconds: float, line: str) -> None:
        nonlocal shown
        text = f"starting a server for {model.name}: {seconds:.0f} s  [dim]{_plain(line)[:100]}[/dim]"
        if seconds < 0:
            status.stop()
        elif console.is_terminal:
            status.update(text)
        elif seconds - shown >= _QUIET_S:
            console.print(text)
            shown = seconds

    if console.is_terminal:
        status.start()
    try:
        yield tell
    finally:
        status.stop()


def _plain(line: str) -> str:
    return line.replace("[", r"\[")


def _announce(
    console: Console, model: ModelConfig, checkpoint: Checkpoint, servers: Sequence[Server]
) -> None:
    urls = ",".join(server.url for server in servers)
    console.print(f"{model.name} ({checkpoint.revision}) is served; end it with Ctrl-C", highlight=False)
    for server in servers:
        console.print(f"  {server.url}   log: {server.log}", highlight=False, soft_wrap=True)
    use = f"world=language engine=openai_server model={model.name} 'engine.urls=[{urls}]'"
    console.print(f"  python scripts/pipeline.py {use}", highlight=False, soft_wrap=True, markup=False)


def _write_record(
    directory: Path,
    model: ModelConfig,
    checkpoint: Checkpoint,
    config: ServerConfig,
    servers: Sequence[Server],
) -> None:
    """What runs, in server.json: model, resolved revision, URLs, process ids and command lines."""
    record = {
        "model": model,
        "revision": checkpoint.revision,
        "directory": str(checkpoint.directory),
        "server": config,
        "servers": [
            {
                "url": server.url,
                "log": str(server.log),
                "pid": server.process.pid,
                "command": server.process.args,
            }
            for server in servers
        ],
    }
    encoded = msgspec.json.format(msgspec.json.encode(record), indent=2)
    (directory / "server.json").write_bytes(encoded)


@contextmanager
def _ends_on_signal() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
