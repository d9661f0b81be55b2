"""Creating, resuming and closing run directories: exclusive claim, resolved config, provenance, status.

Success is judged by status.json alone. No secret is written: the config holds none and the environment is
not recorded.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import secrets
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from sim.errors import UserError, shown
from sim.records.code_version import code_version

CONFIG = "config.yaml"
STATUS = "status.json"
RUNNING, FINISHED, FAILED, INTERRUPTED, UNKNOWN = "running", "finished", "failed", "interrupted", "unknown"
PROVENANCE = "provenance.json"
ARMS = "arms"
"""Where the runs of a study of several arms lie, below its directory."""
_PACKAGES = ("numpy", "scipy", "torch", "transformers", "vllm", "msgspec", "pandas", "hydra-core")


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    draft = path.with_name(path.name + ".partial")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; free some space or make it writable") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object whole or not at all."""
    write_text(path, json.dumps(content, indent=1, sort_keys=True) + "\n")


def launch_id() -> str:
    """A new name for a launch: the time, and chance for those of the same second."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def claim(root: Path, name: str, config_hash: str, config: Mapping[str, Any]) -> Path:
    """A new run directory `<name>-<config hash>-<launch id>`, claimed exclusively, with its config."""
    directory = root / f"{name}-{config_hash}-{launch_id()}"
    make_exclusively(directory)
    write_config(directory, config)
    return directory


def make_exclusively(directory: Path) -> None:
    """Make a directory that must not exist yet; UserError where that cannot be."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(exist_ok=False)
    except OSError as error:
        raise UserError(
            f"{directory}: {error.strerror}; choose a writable folder with output=<folder>"
        ) from error


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Keep the resolved config of a run."""
    write_text(directory / CONFIG, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))


def read_config(directory: Path) -> dict[str, Any]:
    """The resolved config of a run; UserError where the directory is not a run."""
    path = directory / CONFIG
    if not path.is_file():
        raise UserError(f"{directory}: not a run directory ({CONFIG} is missing); give one made by a run")
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: damaged ({_one_line(error)}); give a run whose config is whole") from error
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: holds {shown(loaded)}; give a run whose config is whole")
    return loaded


def read_provenance(directory: Path) -> dict[str, Any]:
    """What made a run; UserError where it was never opened."""
    path = directory / PROVENANCE
    if not path.is_file():
        raise UserError(f"{directory}: {PROVENANCE} is missing; give a run that has held discussions")
    return read_json(path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object that a run wrote; UserError naming the file where it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: damaged ({_one_line(error)}); delete it to have it made again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds {shown(content)}; delete it to have it made again")
    return content


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def read_status(directory: Path) -> dict[str, Any]:
    """The status of a run; `unknown` where a crash left none."""
    path = directory / STATUS
    if not path.is_file():
        return {"state": UNKNOWN}
    return read_json(path)


def state_of(status: Mapping[str, Any]) -> str:
    """`running`, `finished`, `failed`, or `interrupted`: by a signal, or killed without a last word."""
    state = str(status.get("state", UNKNOWN))
    here = status.get("host") == socket.gethostname()
    return INTERRUPTED if state == RUNNING and here and not _alive(int(status["pid"])) else state


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def tracked(directory: Path, verb: str) -> Iterator[None]:
    """Keep status.json: running inside, then finished, or how it ended otherwise with the exception.

    Enter it with the run's lock held: a process that is refused must not speak for the one that runs.
    """
    started = time.time()
    where = {"pid": os.getpid(), "host": socket.gethostname()}
    write_json(directory / STATUS, {"state": RUNNING, "verb": verb, **where})
    try:
        yield
    except BaseException as error:
        with suppress(UserError):  # the disk that stopped the run may refuse this too: its error counts
            record_end(directory, verb, error)
        raise
    seconds = round(time.time() - started, 1)
    write_json(directory / STATUS, {"state": FINISHED, "verb": verb, "seconds": seconds})


def record_end(directory: Path, verb: str, error: BaseException) -> None:
    """Say in status.json that a run ended with an exception: failed, or interrupted by a signal."""
    stopped = isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
    content = {
        "state": INTERRUPTED if stopped else FAILED,
        "verb": verb,
        "error": f"{type(error).__name__}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
    }
    write_json(directory / STATUS, content)


def provenance(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What made a result: command line, code version, packages, machine, and what the study adds."""
    return {
        "command": sys.argv[1:],
        **code_version(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "packages": {name: _version(name) for name in _PACKAGES},
        **extra,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
