"""Methods: ways to answer a problem under one budget of tokens and with the same task text. A method is an
async function of a room; it joins by its name in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from sim.captain.agents import AgentCard, unique_names
from sim.captain.captain import Outcome, lead
from sim.captain.desk import BudgetSpent, Call
from sim.captain.prompts import render, turns
from sim.captain.replies import Answer, Consult, Finish, Roles, Solve, Subtask
from sim.captain.room import Member, Room, Team, reported
from sim.captain.talk import converse
from sim.captain.teams import build, described, team_id

Method: TypeAlias = Callable[[Room], Awaitable[Outcome]]


async def single(room: Room) -> Outcome:
    """One model, one worked answer."""
    reply = await _answered(room, render("answer", task=room.task, work=""), "0/answer")
    return Outcome(reply.answer, "finished")


async def single_code(room: Room) -> Outcome:
    """One model that writes one program, sees what it prints, and answers."""
    call = Call("captain", "program", "0/program")
    question = turns(render("solo"), render("program", task=room.task))
    work = (await room.ask(call, question, (Solve,), Solve)).text
    done = await room.execute(work, room.all_tools, "0/run")
    shown = f"{work}\n\n{room.ran(done, 'captain')}"
    reply = await _answered(room, render("answer", task=room.task, work=shown), "1/answer")
    return Outcome(reply.answer, "finished")


async def _answered(room: Room, question: str, place: str) -> Answer:
    call = Call("captain", "answer", place)
    reply = await room.ask(call, turns(render("solo"), question), (Answer,), lambda text: Answer("", text))
    room.answer = reply.answer
    room.event("decision", "captain", reply.reasoning, decision="finish", answer=reply.answer)
    return reply


async def two_agents(room: Room) -> Outcome:
    """An assistant that writes code and an executor that runs it, until the assistant is done."""
    card = AgentCard(
        "assistant",
        "Assistant",
        render("assistant"),
        render("solving"),
        render("interaction"),
        room.all_tools,
    )
    team = fixed_team(room, [card], "fixed")
    talk = await converse(room, team, Subtask(render("whole")))
    return Outcome(talk.answer, "finished" if talk.ending != "round_limit" else "unfinished")


async def meta_prompting(room: Room) -> Outcome:
    """A conductor who consults fresh experts, one at a time, who see its instruction alone (Suzgun 2024)."""
    heard: list[tuple[str, str]] = []
    for step in range(1, room.settings.rounds + 1):
        room.step = step
        question = turns(render("conductor"), render("conduct", task=room.task, heard=heard))
        call = Call("captain", "decision", f"{room.step}/decision")
        decision = await room.ask(call, question, (Consult, Finish), lambda text: None)
        if isinstance(decision, Finish):
            room.event("decision", "captain", "", decision="finish", answer=decision.answer)
            return Outcome(decision.answer, "finished")
        if not isinstance(decision, Consult):
            continue
        room.event("decision", "captain", decision.instruction, decision="consult", answer="")
        request = turns(render("consulted", expert=decision.expert), decision.instruction)
        call = Call("expert", "message", f"{room.step}/expert", decision.expert)
        reply = (await room.desk.write(call, request, room.settings.reply_tokens)).text
        done = await room.execute(reply, room.all_tools, f"{room.step}/run")
        text = reply if done is None else f"{reply}\n\n{reported(done)}"
        heard.append((decision.expert, text))
        room.said(decision.expert, text)
    return Outcome(room.answer or (heard[-1][1] if heard else ""), "unfinished")


async def captain(room: Room) -> Outcome:
    """The captain, building teams as it goes."""
    return await lead(room)


async def static_team(room: Room) -> Outcome:
    """The captain's loop with a team built once for the scenario; the study puts it into the room."""
    return await lead(room, adaptive=False)


async def random_team(room: Room) -> Outcome:
    """The captain's loop with members drawn from the library by the key of the problem."""
    agents = room.library.agents if room.library else ()
    if agents:
        places = room.draw("random team", len(agents))[: room.settings.team_size]
        team = fixed_team(room, [agents[i] for i in places], "random")
        room.teams[team.id] = team
        room.event("team", "captain", f"{team.id} is drawn", **described(team), recalled=False)
    return await lead(room, adaptive=False)


def fixed_team(room: Room, cards: list[AgentCard], source: str) -> Team:
    """A team of given agents with their own tools."""
    names = unique_names(card.name for card in cards)
    members = tuple(
        Member(name, card, (card.name,), room.toolbox.known(card.tools), source)
        for name, card in zip(names, cards, strict=True)
    )
    return Team(team_id(room.problem.id, names), tuple(names), members)


async def plan_team(room: Room) -> Team | None:
    """The static team of a scenario: roles planned from its description alone, then built as any team is.

    None where no role could be planned. Raises RetrievalFailure; the plan is then made again.
    """
    question = turns(
        render("captain"), render("plan", scenario=room.problem.scenario, size=room.settings.team_size)
    )
    try:
        call = Call("captain", "plan", "plan")
        roles = (await room.ask(call, question, (Roles,), lambda text: Roles(()))).roles
        return await build(room, roles) if any(role.strip() for role in roles) else None
    except BudgetSpent:
        return None


METHODS: dict[str, Method] = {
    "single": single,
    "single_code": single_code,
    "two_agents": two_agents,
    "meta_prompting": meta_prompting,
    "static_team": static_team,
    "random_team": random_team,
    "captain": captain,
}
NEEDS_TEAM = "static_team"
NEEDS_NO_SANDBOX = "single"


async def attempt(room: Room, method: str) -> Outcome:
    """A method's outcome; where its tokens run out, the best answer it has."""
    try:
        return await METHODS[method](room)
    except BudgetSpent:
        return Outcome(room.answer, "budget")
