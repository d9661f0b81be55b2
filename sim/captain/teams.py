"""The team builder: for each role retrieve, select or generate; teams are cached and recalled by id."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sim.captain.agents import AgentCard, Provenance, generated, plain, unique_names
from sim.captain.desk import Call
from sim.captain.forms import Unreadable, ask
from sim.captain.prompts import render, turns
from sim.captain.replies import NewAgent, Selection
from sim.captain.room import Member, Room, Team

_NOBODY = ("", "null", "none", "nobody", "abstain")


@dataclass(frozen=True)
class _Filled:
    """A role with the agent found for it, and how it was found, as events hold it."""

    role: str
    card: AgentCard
    tools: tuple[str, ...]
    source: str
    selection: Mapping[str, object]


def team_id(problem: str, roles: Sequence[str]) -> str:
    """The id of a team: the problem, and the set of roles whatever their order or spelling of spaces."""
    content = msgspec.json.encode([problem, sorted({plain(role) for role in roles})])
    return f"team-{hashlib.blake2b(content, digest_size=4).hexdigest()}"


async def build(room: Room, roles: Sequence[str]) -> Team:
    """The team of these roles: recalled if it was built before, else built, one role after the other.

    Raises RetrievalFailure; nothing of the team is then kept.
    """
    wanted = [role.strip() for role in roles if role.strip()]
    kept, left_out = wanted[: room.settings.team_size], wanted[room.settings.team_size :]
    name = team_id(room.problem.id, kept)
    if name in room.teams:
        room.event("team", "captain", f"{name} is recalled", **described(room.teams[name]), recalled=True)
        return room.teams[name]
    filled = [await _fill(room, f"{room.step}/role{i}", role) for i, role in enumerate(kept)]
    team = Team(name, tuple(kept), _members(filled))
    room.teams[name] = team
    room.event(
        "team", "captain", f"{name} is built", **described(team), recalled=False,
        selections=[one.selection for one in filled], left_out=left_out,
    )  # fmt: skip
    return team


def described(team: Team) -> dict[str, object]:
    """A team as events hold it."""
    members = [
        {
            "name": member.name,
            "agent": member.card.id,
            "roles": list(member.roles),
            "tools": list(member.tools),
            "source": member.source,
            "profile": member.card.profile,
        }
        for member in team.members
    ]
    return {"team": team.id, "roles": list(team.roles), "members": members}


def _members(filled: Sequence[_Filled]) -> tuple[Member, ...]:
    """One member per agent: an agent found for two roles has both, with the tools of both."""
    by_agent: dict[str, list[_Filled]] = {}
    for one in filled:
        by_agent.setdefault(one.card.id, []).append(one)
    names = unique_names(group[0].card.name for group in by_agent.values())
    return tuple(
        Member(
            name,
            group[0].card,
            tuple(one.role for one in group),
            tuple(dict.fromkeys(tool for one in group for tool in one.tools)),
            group[0].source,
        )
        for name, group in zip(names, by_agent.values(), strict=True)
    )


async def _fill(room: Room, place: str, role: str) -> _Filled:
    near = await _near_tools(room, place, role)
    agents = (*room.library.agents, *room.made) if room.library else ()
    hits = await room.look_up(f"{place}/agents", role, [card.described for card in agents])
    card, outcome = await _select(room, place, role, [agents[hit.place] for hit in hits])
    source = "library"
    if card is None:
        card, source = await _generate(room, place, role, near), "generated"
    candidates = [[agents[hit.place].id, round(hit.similarity, 4)] for hit in hits]
    selection = {
        "role": role,
        "candidates": candidates,
        "outcome": outcome,
        "chosen": card.id,
        "tags": card.tags,
    }
    return _Filled(role, card, room.toolbox.known((*card.tools, *near)), source, selection)


async def _near_tools(room: Room, place: str, role: str) -> tuple[str, ...]:
    tools = list(room.toolbox.tools.values())
    if not tools:
        return ()
    hits = await room.look_up(f"{place}/tools", role, [tool.described for tool in tools])
    return tuple(tools[hit.place].name for hit in hits)


async def _select(
    room: Room, place: str, role: str, candidates: Sequence[AgentCard]
) -> tuple[AgentCard | None, str]:
    """The selector's choice, or None: it abstained, named nobody we know, or could not be read."""
    if not candidates:
        return None, "nothing_near"
    call = Call("selector", "selection", f"{place}/select")
    question = turns(render("selector"), render("select", task=room.task, role=role, agents=candidates))
    try:
        reply = await ask(
            room.desk, call, question, (Selection,), {"agent": [*(card.id for card in candidates), None]}
        )
        text = reply.agent or ""
    except Unreadable as unreadable:
        text = unreadable.text.strip(" \n\t.\"'`")
        if plain(text) not in _NOBODY:
            room.malformed += 1
            return None, "unreadable"
    if plain(text) in _NOBODY:
        return None, "abstained"
    card = room.library.find(text, candidates) if room.library else None
    return card, "selected" if card else "unknown"


async def _generate(room: Room, place: str, role: str, near: Sequence[str]) -> AgentCard:
    """A new agent, stored in the library; where the reply cannot be read, the role itself is its profile."""
    tools = room.toolbox.signatures(near)
    call = Call("generator", "generation", f"{place}/generate")
    question = turns(render("generator"), render("generate", task=room.task, role=role, tools=tools))
    unread = NewAgent(role, role, render("solving"), render("interaction"))
    reply = await room.ask(call, question, (NewAgent,), lambda text: unread)
    who = room.desk.identity
    model = room.desk.engine("generator").capabilities.model
    origin = Provenance("generated", role, model, who.condition, who.problem, who.seed)
    card = generated(reply, room.toolbox.known(reply.tools), origin)
    if room.library is not None:
        room.library.store(card)
        room.made.append(card)
    return card
