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
import subprocess
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from sim.errors import UserError

CONFIG = "config.yaml"
STATUS = "status.json"
PROVENANCE = "provenance.json"
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


def claim(root: Path, name: str, config_hash: str, config: Mapping[str, Any]) -> Path:
    """A new run directory `<name>-<config hash>-<launch id>`, claimed exclusively, with its config."""
    launch = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    directory = root / f"{name}-{config_hash}-{launch}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        directory.mkdir(exist_ok=False)
    except OSError as error:
        raise UserError(
            f"{directory}: {error.strerror}; choose a writable folder with output=<folder>"
        ) from error
    write_text(directory / CONFIG, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
    return directory


def read_config(directory: Path) -> dict[str, Any]:
    """The resolved config of a run; UserError where the directory is not a run."""
    path = directory / CONFIG
    if not path.is_file():
        raise UserError(f"{directory}: not a run directory ({CONFIG} is missing); give one made by a run")
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def read_provenance(directory: Path) -> dict[str, Any]:
    """What made a run; UserError where it was never opened."""
    path = directory / PROVENANCE
    if not path.is_file():
        raise UserError(f"{directory}: {PROVENANCE} is missing; give a run that has held discussions")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def read_status(directory: Path) -> dict[str, Any]:
    """The status of a run; `unknown` where a crash left none."""
    path = directory / STATUS
    if not path.is_file():
        return {"state": "unknown"}
    status: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return status


@contextmanager
def tracked(directory: Path, verb: str) -> Iterator[None]:
    """Keep status.json: running inside, then finished, or failed with the exception."""
    started = time.time()
    write_json(directory / STATUS, {"state": "running", "verb": verb, "pid": os.getpid()})
    try:
        yield
    except BaseException as error:
        write_json(
            directory / STATUS,
            {
                "state": "failed",
                "verb": verb,
                "error": f"{type(error).__name__}: {error}",
                "traceback": "".join(traceback.format_exception(error)),
            },
        )
        raise
    write_json(
        directory / STATUS, {"state": "finished", "verb": verb, "seconds": round(time.time() - started, 1)}
    )


def provenance(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What made a result: code version, packages, machine, and what the study adds."""
    return {
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "packages": {name: _version(name) for name in _PACKAGES},
        **extra,
    }


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
