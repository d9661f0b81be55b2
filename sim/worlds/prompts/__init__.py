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
SILENCE = "…"
"""Stands in a chat for a turn in which nothing was said, which templates may refuse."""
Layout = Literal["private_last", "private_first"]
Context = Literal["whole", "last_message"]

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
    context: Context = "whole",
) -> tuple[Turn, ...]:
    """What one participant is shown: the task, the discussion so far, its own clues, and a question.

    The others' messages stand in one user turn, because several chat templates demand strict alternation.
    In context `last_message` the discussion is a chat of the participant's own turns, as HiddenBench's runner
    holds it: each follows a user turn with the last message of everybody else at that moment.
    """
    names = names_of(task)
    system = render("task", names=names, description=task.description, shared=task.shared_information)
    if context == "last_message":
        chat = _own_turns(names, clues, agent, transcript, question)
        return Turn("system", system), *chat
    heard = render("transcript", names=names, messages=transcript)
    private = render("private", name=names[agent], clues=clues)
    parts = (private, heard, question) if layout == "private_first" else (heard, private, question)
    return Turn("system", system), Turn("user", "\n\n".join(parts))


def _own_turns(
    names: Sequence[str], clues: Sequence[str], agent: int, transcript: Sequence[Message], question: str
) -> list[Turn]:
    """A participant's turns so far as a chat, its clues in front of the first, and the question at the end."""
    turns: list[Turn] = []
    opening = [render("private", name=names[agent], clues=clues)]
    for place, message in enumerate(transcript):
        if message.speaker == agent:
            turns.append(Turn("user", "\n\n".join([*opening, _latest(names, agent, transcript[:place])])))
            turns.append(Turn("assistant", message.text or SILENCE))
            opening = []
    last = [*opening, _latest(names, agent, transcript), question]
    return [*turns, Turn("user", "\n\n".join(last))]


def _latest(names: Sequence[str], agent: int, transcript: Sequence[Message]) -> str:
    """The last message of every other participant, in the order in which they were said."""
    found = {message.speaker: place for place, message in enumerate(transcript) if message.speaker != agent}
    return render("latest", names=names, messages=[transcript[place] for place in sorted(found.values())])
