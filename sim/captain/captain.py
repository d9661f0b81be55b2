"""The captain's loop: one typed decision a step, until it finishes, or its rounds or its tokens are spent.

The answer is returned verbatim. Nothing in prose ends the loop; a decision that cannot be read is counted and
taken as work without an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.captain.desk import BudgetSpent, Call
from sim.captain.prompts import render, turns
from sim.captain.reflector import reviewed, settle
from sim.captain.replies import Decision, Finish, Reply, ReuseTeam, SeekExperts, Solve, Subtask
from sim.captain.retrieval import RetrievalFailure
from sim.captain.room import Room, Team
from sim.captain.talk import converse
from sim.captain.teams import build


@dataclass(frozen=True)
class Outcome:
    """A method's answer, verbatim, and how it ended: `finished`, `unfinished` (round limit) or `budget`."""

    answer: str
    ending: str


@dataclass(frozen=True)
class Result:
    """What one step brought, as the captain sees it in later steps."""

    step: int
    what: str
    text: str
    answer: str = ""


async def lead(room: Room, adaptive: bool = True) -> Outcome:
    """Solve the room's problem. Without `adaptive` the captain keeps to the teams the room holds already."""
    results: list[Result] = []
    try:
        for step in range(1, room.settings.rounds + 1):
            room.step = step
            decision = await _decide(room, results, adaptive)
            if isinstance(decision, Finish):
                return Outcome(decision.answer, "finished")
            results.append(await _acted(room, decision))
    except BudgetSpent:
        room.event("note", "captain", "the tokens are spent")
        return Outcome(best(room, results), "budget")
    return Outcome(best(room, results), "unfinished")


def best(room: Room, results: list[Result]) -> str:
    """The best current answer: the one that stands, else the last work done, else nothing."""
    return room.answer or (results[-1].text if results else "")


async def _decide(room: Room, results: list[Result], adaptive: bool) -> Decision:
    """The next decision; one that cannot be read is work whose text is the reply."""
    kinds: list[type[Reply]] = [Solve, Finish]
    if adaptive:
        kinds.insert(1, SeekExperts)
    if room.teams:
        kinds.insert(-1, ReuseTeam)
    question = render(
        "decide", task=room.task, results=results, teams=list(room.teams.values()), answer=room.answer,
        step=room.step, rounds=room.settings.rounds, adaptive=adaptive, team_size=room.settings.team_size,
    )  # fmt: skip
    call = Call("captain", "decision", f"{room.step}/decision")
    asked = turns(render("captain"), question)
    decision = await room.ask(call, asked, kinds, Solve, {"team": list(room.teams)})
    kind, details = type(decision).__struct_config__.tag, {"answer": getattr(decision, "answer", "")}
    subtask = getattr(decision, "subtask", None)
    text = subtask.description if isinstance(subtask, Subtask) else getattr(decision, "text", "")
    room.event("decision", "captain", text, decision=str(kind), **details)
    return decision  # type: ignore[return-value]


async def _acted(room: Room, decision: Decision) -> Result:
    if isinstance(decision, Solve):
        return await _solved(room, decision)
    if isinstance(decision, ReuseTeam):
        if decision.team in room.teams:
            return await _consulted(room, room.teams[decision.team], decision.subtask)
        room.malformed += 1
        return Result(room.step, "reuse_team", f"There is no team {decision.team}.")
    assert isinstance(decision, SeekExperts)
    if not any(role.strip() for role in decision.roles):
        room.malformed += 1
        return Result(room.step, "seek_experts", "No team was built: no role was named.")
    try:
        team = await build(room, decision.roles)
    except RetrievalFailure as failure:
        room.event("note", "retriever", str(failure))
        return Result(room.step, "seek_experts", f"No team could be built ({failure}); you can ask again.")
    return await _consulted(room, team, decision.subtask)


async def _solved(room: Room, decision: Solve) -> Result:
    """The captain's own work, its code run."""
    done = await room.execute(decision.text, room.all_tools, f"{room.step}/solve")
    text = decision.text
    if done is not None:
        text = f"{text}\n\n{room.ran(done, 'captain')}"
    answer, check = await settle(room, decision.answer, asked=False, disputed=False)
    return Result(room.step, "solve", f"{text}\n\n{check}".strip(), answer if decision.answer.strip() else "")


async def _consulted(room: Room, team: Team, subtask: Subtask) -> Result:
    """A team's conversation, reviewed, and checked where the review or a changed answer demands it."""
    disputes = room.disputes
    talk = await converse(room, team, subtask)
    disputed = room.disputes > disputes
    if not room.settings.reflector:
        answer, _ = await settle(room, talk.answer, asked=False, disputed=disputed)
        last = talk.said[-1].text if talk.said else ""
        return Result(room.step, team.id, last, answer)
    review = await reviewed(room, talk)
    answer, check = await settle(room, review.answer, review.double_check, disputed)
    text = render("result", review=review, check=check, ending=talk.ending)
    return Result(room.step, team.id, text, answer)
