"""Every reply a model is asked for, as a type: the schema it must meet, and what a reader may rely on.

Nothing here asks or acts. A text that is no such reply is no reply: no word in prose decides anything.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec


def _about(what: str) -> msgspec.Meta:
    return msgspec.Meta(description=what)


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all replies share: they are frozen, and a field that is not asked for is an error."""


class Subtask(Reply, frozen=True):
    """What a team is asked to do; the user's task stands verbatim beside it."""

    description: Annotated[str, _about("what the team shall find out")]
    plan: Annotated[str, _about("how to go about it, in a few steps")] = ""
    output_format: Annotated[str, _about("what the team's answer shall look like")] = ""
    constraints: Annotated[str, _about("what must be respected")] = ""
    results_so_far: Annotated[str, _about("what is known already")] = ""


class Solve(Reply, frozen=True, tag_field="decision", tag="solve"):
    """Work alone; Python in a ```python block is run."""

    text: Annotated[str, _about("your own work: reasoning, or a ```python block to run")]
    answer: Annotated[str, _about("your current answer to the task; empty if there is none yet")] = ""


class SeekExperts(Reply, frozen=True, tag_field="decision", tag="seek_experts"):
    """Have a team built for a subtask."""

    subtask: Subtask
    roles: Annotated[tuple[str, ...], _about("the experts that are needed, one short description each")]


class ReuseTeam(Reply, frozen=True, tag_field="decision", tag="reuse_team"):
    """Call a team that exists."""

    team: Annotated[str, _about("the team to call again")]
    subtask: Subtask


class Finish(Reply, frozen=True, tag_field="decision", tag="finish"):
    """Give the final answer; it is returned as it stands."""

    answer: Annotated[str, _about("the final answer to the task, and nothing else")]


Decision: TypeAlias = Solve | SeekExperts | ReuseTeam | Finish


class Consult(Reply, frozen=True, tag_field="decision", tag="consult"):
    """Meta-prompting: ask a fresh expert who sees nothing but the instruction."""

    expert: Annotated[str, _about("who to ask")]
    instruction: Annotated[str, _about("all that the expert needs to know, and the question")]


class Roles(Reply, frozen=True):
    """The experts of a team that is built once."""

    roles: Annotated[tuple[str, ...], _about("the experts that are needed, one short description each")]


class Selection(Reply, frozen=True):
    """The agent chosen for a role, or null where none fits."""

    agent: Annotated[str | None, _about("the id of the agent that fits the role, or null if none does")]


class NewAgent(Reply, frozen=True):
    """An agent to be made for a role."""

    name: Annotated[str, _about("a short name for the expert")]
    profile: Annotated[str, _about("who the expert is and what it knows")]
    solving: Annotated[str, _about("how the expert goes about a problem")]
    interaction: Annotated[str, _about("how the expert works with the others")]
    tools: Annotated[tuple[str, ...], _about("the tools it needs, by name")] = ()


class Say(Reply, frozen=True):
    """One turn of a team's conversation."""

    text: Annotated[str, _about("your message to the team; Python in a ```python block is run")]
    answer: Annotated[str, _about("your current answer to the subtask; empty if there is none yet")] = ""
    done: Annotated[bool, _about("true if the subtask is solved and the team can stop")] = False


class Review(Reply, frozen=True):
    """What the reflector makes of a conversation."""

    answer: Annotated[str, _about("the answer that the conversation supports")]
    reasons: Annotated[str, _about("why")]
    contradictions: Annotated[tuple[str, ...], _about("points on which members contradict each other")] = ()
    double_check: Annotated[bool, _about("true if the answer should be verified independently")] = False
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1, description="how sure, from 0 to 1")] = 0.5
    additional_information: Annotated[str, _about("what else the asker should know")] = ""


class Verdict(Reply, frozen=True):
    """What an independent verifier found, reasoning backwards from an answer."""

    holds: Annotated[bool, _about("true if the answer is consistent with everything in the task")]
    reasons: Annotated[str, _about("what the check showed")]
    answer: Annotated[str, _about("the right answer, if another one follows; else the answer checked")] = ""


class Answer(Reply, frozen=True):
    """A worked answer."""

    reasoning: Annotated[str, _about("your reasoning, step by step")]
    answer: Annotated[str, _about("the answer, and nothing else")]
