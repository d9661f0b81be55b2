"""HiddenBench's way of showing a discussion: a chat of the agent's own turns, the others' last messages before each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sim.discussion.naming import names_of
from sim.discussion.public import Message
from sim.engines.protocol import Turn
from sim.tasks import demo_task
from sim.worlds.prompts import SILENCE, participant_turns

TASK = demo_task()
NAME = names_of(TASK)
SPEAKERS = st.lists(st.integers(0, TASK.n_agents - 1), max_size=14)


def chat(transcript: list[Message], agent: int, layout: str = "private_last") -> tuple[Turn, ...]:
    """What an agent is shown of a discussion."""
    clue = (TASK.hidden_information[agent],)
    return participant_turns(TASK, clue, agent, transcript, "And now?", layout, "last_message")  # type: ignore[arg-type]


def said(speakers: list[int]) -> list[Message]:
    """A discussion with a text of its own for every message."""
    return [Message(speaker, "free", f"message-{place}.") for place, speaker in enumerate(speakers)]


@given(SPEAKERS, st.integers(0, TASK.n_agents - 1))
def test_each_turn_shows_the_last_message_of_everybody_else_and_no_other(
    speakers: list[int], agent: int
) -> None:
    transcript = said(speakers)
    system, *turns = chat(transcript, agent)
    assert system.role == "system"
    assert [turn.role for turn in turns] == ["user", "assistant"] * speakers.count(agent) + ["user"]
    own = [place for place, speaker in enumerate(speakers) if speaker == agent]
    assert [turn.content for turn in turns[1::2]] == [f"message-{place}." for place in own]
    for turn, end in zip(turns[::2], [*own, len(speakers)], strict=True):
        latest = {speaker: place for place, speaker in enumerate(speakers[:end]) if speaker != agent}
        expected = [f"{NAME[speakers[place]]}: message-{place}." for place in sorted(latest.values())]
        assert [line for line in turn.content.splitlines() if "message-" in line] == expected
    assert turns[-1].content.endswith("And now?")


@given(SPEAKERS, st.integers(0, TASK.n_agents - 1), st.sampled_from(["private_last", "private_first"]))
def test_the_clue_stands_once_and_the_chat_only_grows(speakers: list[int], agent: int, layout: str) -> None:
    transcript = said([*speakers, agent])
    turns = chat(transcript, agent, layout)
    shown = " ".join(turn.content for turn in turns)
    assert shown.count(TASK.hidden_information[agent]) == 1
    assert TASK.hidden_information[agent] in turns[1].content
    longer = chat(
        [*transcript, Message((agent + 1) % TASK.n_agents, "free", "more"), transcript[-1]], agent, layout
    )
    assert longer[: len(turns) - 1] == turns[:-1]


def test_a_silent_turn_is_no_empty_turn() -> None:
    assert chat([Message(0, "free", "")], 0)[2] == Turn("assistant", SILENCE)
