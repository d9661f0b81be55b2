"""Prompts of the language world: one template a file, constant text first, versioned by their hash.

They see what one participant may see; which that is, the world decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sim.discussion.naming import names_of
from sim.discussion.public import Message
from sim.engines.protocol import Turn
from sim.tasks.task import HiddenProfileTask

FOLDER = Path(__file__).parent
LABELS = "ABCDEFGHIJ"
Layout = Literal["private_last", "private_first"]


@lru_cache(maxsize=1)
def _environment() -> Environment:
    # Prompts are plain text for a model, not HTML for a browser.
    return Environment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=False,
    )


@lru_cache(maxsize=1)
def prompts_hash() -> str:
    """Hash of all templates: part of the policy hash and of provenance."""
    state = hashlib.blake2b(digest_size=8)
    for path in sorted(FOLDER.glob("*.j2")):
        state.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return state.hexdigest()


def render(template: str, **values: object) -> str:
    """A template filled in; an undefined variable is an error."""
    return _environment().get_template(f"{template}.j2").render(**values).strip()


def participant_turns(
    task: HiddenProfileTask,
    clues: Sequence[str],
    agent: int,
    transcript: Sequence[Message],
    question: str,
    layout: Layout,
) -> tuple[Turn, ...]:
    """What one participant is shown: the task, the discussion so far, its own clues, and a question.

    The others' messages stand in one user turn, because several chat templates demand strict alternation.
    """
    names = names_of(task)
    system = render("task", names=names, description=task.description, shared=task.shared_information)
    heard = render("transcript", names=names, messages=transcript)
    private = render("private", name=names[agent], clues=clues)
    parts = (private, heard, question) if layout == "private_first" else (heard, private, question)
    return Turn("system", system), Turn("user", "\n\n".join(parts))
