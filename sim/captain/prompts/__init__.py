"""Prompts of the captain module: one template a file, versioned by their hash."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from sim.engines.protocol import Turn
from sim.templates import Templates

_TEMPLATES = Templates(Path(__file__).parent)
render = _TEMPLATES.render
prompts_hash = lru_cache(maxsize=1)(_TEMPLATES.version)


def turns(system: str, user: str) -> tuple[Turn, ...]:
    """One system turn and one user turn: what every chat template can take."""
    return Turn("system", system), Turn("user", user)
