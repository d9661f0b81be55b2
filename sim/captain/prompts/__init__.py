"""Prompts of the captain module: one template a file, versioned by their hash. They are plain text, not HTML."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sim.engines.protocol import Turn

FOLDER = Path(__file__).parent


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


@lru_cache(maxsize=1)
def prompts_hash() -> str:
    """Hash of all templates, part of provenance and of a talk's policy."""
    state = hashlib.blake2b(digest_size=8)
    for path in sorted(FOLDER.glob("*.j2")):
        state.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return state.hexdigest()


def render(template: str, **values: object) -> str:
    """A template filled in; an undefined variable is an error."""
    return _environment().get_template(f"{template}.j2").render(**values).strip()


def turns(system: str, user: str) -> tuple[Turn, ...]:
    """One system turn and one user turn: what every chat template can take."""
    return Turn("system", system), Turn("user", user)
