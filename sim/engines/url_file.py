"""A file that says where servers are by now: written by who serves, read by clients that may run elsewhere.

Whole or not at all, so that a reader never sees half of it; absent while nobody serves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sim.errors import UserError, shown

PREFIX = "file:"
_LOOK_S = 0.5


@contextmanager
def published(path: Path, urls: Sequence[str]) -> Iterator[None]:
    """The file is there for the time of the block."""
    draft = path.with_name(path.name + ".partial")
    draft.write_text(json.dumps(list(urls)) + "\n", encoding="utf-8")
    draft.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def current_urls(entries: Sequence[str]) -> tuple[str, ...] | None:
    """The URLs that some entries stand for, `file:<path>` for those in the file; None while a file is absent.

    Raises UserError where a file holds anything but a list of URLs.
    """
    found: list[str] = []
    for entry in entries:
        if not entry.startswith(PREFIX):
            found.append(entry)
            continue
        path = Path(entry.removeprefix(PREFIX))
        try:
            found += _urls(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"engine.urls: {path}: {error.strerror}; name the file of a server") from error
    return tuple(found)


def awaited_urls(entries: Sequence[str], wait_s: float) -> tuple[str, ...]:
    """As `current_urls`, once every file is there; UserError naming the first one that is not after `wait_s`."""
    end = time.monotonic() + wait_s
    while (found := current_urls(entries)) is None:
        if time.monotonic() >= end:
            missing = next(entry for entry in entries if current_urls([entry]) is None)
            raise UserError(
                f"engine.urls: {missing}: no server published its URL there in {wait_s:g} s; start one with "
                "scripts/serve.py where=slurm, or set engine.wait_s higher"
            )
        time.sleep(min(_LOOK_S, wait_s))
    return found


def _urls(path: Path) -> list[str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"engine.urls: {path}: not JSON ({error}); name the file of a server") from error
    if not isinstance(content, list) or not content or not all(isinstance(url, str) for url in content):
        raise UserError(f"engine.urls: {path} holds {shown(content)}; it must be a list of URLs")
    return content
