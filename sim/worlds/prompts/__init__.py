"""Prompts of the language world: one template a file, constant text first, versioned by their hash.

They see what one participant may see; which that is, the world decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from sim.discussion.naming import names_of
from sim.discussion.public import Message
from sim.engines.protocol import Turn
from sim.tasks.task import HiddenProfileTask
from sim.templates import Templates

LABELS = "ABCDEFGHIJ"
Layout = Literal["private_last", "private_first"]

_TEMPLATES = Templates(Path(__file__).parent)
render = _TEMPLATES.render
prompts_hash = lru_cache(maxsize=1)(_TEMPLATES.version)


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
