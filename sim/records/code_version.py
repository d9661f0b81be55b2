"""Which code runs: its git commit and a hash of its sources; and copies of it for jobs that start later.

A copy carries the version of what it was made from, so that a job which waits for hours in a queue runs, and
names, the code of its launch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
CODE = ("sim", "controllers", "conformal", "scripts", "conf")
_VERSION = "code_version.json"
_IGNORED = ("__pycache__", "*.pyc")


def code_version(root: Path = ROOT) -> dict[str, Any]:
    """`git_commit`, `git_dirty` (both null outside git) and `source_hash` of the code below a root."""
    kept = root / _VERSION
    if kept.is_file():
        content: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return content
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {
        "git_commit": _git(root, "rev-parse", "HEAD"),
        "git_dirty": None if changes is None else bool(changes),
        "source_hash": source_hash(root),
    }


def source_hash(root: Path = ROOT) -> str:
    """Hash of every source file's path and content."""
    digest = hashlib.blake2b(digest_size=8)
    for path in _sources(root):
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def copy_code(target: Path, root: Path = ROOT) -> None:
    """Copy the code below a root into a new folder, with its version; `target` goes on PYTHONPATH."""
    version = code_version(root)
    for name in CODE:
        if (root / name).is_dir():
            shutil.copytree(root / name, target / name, ignore=shutil.ignore_patterns(*_IGNORED))
    (target / _VERSION).write_text(json.dumps(version, indent=1) + "\n", encoding="utf-8")


def _sources(root: Path) -> Iterator[Path]:
    for name in CODE:
        for path in sorted((root / name).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
