"""The nested conversation: a team shares one transcript, a policy says who speaks next, code is run.

It ends by a typed `done`, by agreement or at its round limit; no word in a message ends anything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sim.captain.desk import BudgetSpent, Call
from sim.captain.forms import Unreadable, pick
from sim.captain.graders import code_blocks
from sim.captain.prompts import render, turns
from sim.captain.replies import Say, Subtask
from sim.captain.room import EXECUTOR, Member, Room, Team
from sim.engines.protocol import Turn


@dataclass(frozen=True)
class Utterance:
    """One message of a transcript; `answer` is the speaker's answer at that moment, if it gave one."""

    who: str
    text: str
    answer: str = ""


@dataclass
class Talk:
    """A conversation so far. Seat len(members) is the executor's, where there is a sandbox."""

    team: Team
    subtask: Subtask
    said: list[Utterance] = field(default_factory=list)
    ending: str = ""
    answer: str = ""
    failed: bool = False
    """Whether the last run of code failed."""

    def latest(self) -> dict[str, str]:
        """Every member's last answer."""
        return {one.who: one.answer for one in self.said if one.answer.strip()}

    def first(self) -> dict[str, str]:
        """Every member's first answer."""
        return {one.who: one.answer for one in reversed(self.said) if one.answer.strip()}

    def author(self) -> str:
        """Who wrote the last message that is not the executor's."""
        return next((one.who for one in reversed(self.said) if one.who != EXECUTOR), "")


async def converse(room: Room, team: Team, subtask: Subtask) -> Talk:
    """Hold the team's conversation on a subtask. Raises EngineError (BudgetSpent among them)."""
    talk = Talk(team, subtask)
    try:
        if room.settings.speaker == "controlled" and len(team.members) > 1:
            from sim.captain.controlled import controlled_talk

            await controlled_talk(room, talk)
        else:
            await _free_talk(room, talk)
    except BudgetSpent:
        room.answer = room.answer or plurality(room, talk)
        raise
    groups = room.groups(list(talk.first().values()))
    room.disputes += len(groups) > 1
    room.event("talk", team.id, talk.answer, ending=talk.ending, messages=len(talk.said), answers=len(groups))
    return talk


async def _free_talk(room: Room, talk: Talk) -> None:
    planted = planted_seat(room, talk.team)
    for number in range(room.settings.talk_rounds):
        place = f"{room.step}/{talk.team.id}/{number}"
        seat = await _next_seat(room, talk, place)
        if seat == len(talk.team.members):
            await _execute(room, talk, place)
            continue
        member = talk.team.members[seat]
        silent = all(one.who != member.name for one in talk.said)
        say = planted_say(room) if seat == planted and silent else await speak(room, talk, member, place)
        talk.said.append(Utterance(member.name, say.text, say.answer))
        room.said(member.name, say.text, say.answer, say.done, planted=seat == planted and silent)
        if say.done and say.answer.strip():
            talk.ending, talk.answer = "done", say.answer
            return
        if _agreed(room, talk):
            talk.ending, talk.answer = "agreement", say.answer
            return
    talk.ending, talk.answer = "round_limit", plurality(room, talk)


async def speak(room: Room, talk: Talk, member: Member, place: str) -> Say:
    """A member's next turn; one that cannot be read is said as it is, and answers nothing."""
    call = Call("expert", "message", f"{place}/say", member.name)
    return await room.ask(call, _shown(room, talk, member), (Say,), Say)


def _shown(room: Room, talk: Talk, member: Member) -> tuple[Turn, ...]:
    """What a member sees: its own card, the user's task verbatim, the subtask and the transcript."""
    system = render(
        "expert",
        member=member,
        others=[other.name for other in talk.team.members if other is not member],
        tools=room.toolbox.signatures(member.tools),
        executor=room.sandbox is not None,
    )
    return turns(
        system, render("say", task=room.task, subtask=talk.subtask, said=talk.said, name=member.name)
    )


async def _execute(room: Room, talk: Talk, place: str) -> None:
    """The executor's turn: it runs the last message's code, or says that there is none."""
    author, last = talk.author(), talk.said[-1].text if talk.said else ""
    tools = next((member.tools for member in talk.team.members if member.name == author), ())
    done = await room.execute(last, tools, place)
    talk.failed = done is not None and done.verdict != "ok"
    talk.said.append(Utterance(EXECUTOR, room.ran(done, author)))


async def _next_seat(room: Room, talk: Talk, place: str) -> int:
    """The seat that speaks next, by the policy."""
    n, policy = len(talk.team.members), room.settings.speaker
    seats = n + (room.sandbox is not None)
    if policy == "round_robin":
        return len(talk.said) % seats
    if policy == "random":
        return room.draw(f"{place}/speaker", seats)[0]
    if policy == "llm":
        return await _asked_seat(room, talk, place, seats)
    return _ruled_seat(room, talk)


def _ruled_seat(room: Room, talk: Talk) -> int:
    """Code goes to the executor, an error back to its author, else the least heard speaks (not twice running)."""
    names = [member.name for member in talk.team.members]
    last = talk.said[-1] if talk.said else None
    if last and last.who != EXECUTOR and code_blocks(last.text) and room.sandbox is not None:
        return len(names)
    if last and last.who == EXECUTOR and talk.failed:
        return names.index(talk.author())
    words = Counter(dict.fromkeys(names, 0))
    for one in talk.said:
        words[one.who] += len(one.text.split())
    return min(range(len(names)), key=lambda i: (words[names[i]], names[i] == talk.author(), i))


async def _asked_seat(room: Room, talk: Talk, place: str, seats: int) -> int:
    """The captain's model chooses among the names; where it cannot, the rules do."""
    names = [*(member.name for member in talk.team.members), EXECUTOR][:seats]
    shown = turns(render("captain"), render("speaker", task=room.task, said=talk.said))
    call = Call("captain", "speaker", f"{place}/speaker")
    try:
        return await pick(room.desk, call, "who should speak next", shown, names)
    except Unreadable:
        room.malformed += 1
        return _ruled_seat(room, talk)


def _agreed(room: Room, talk: Talk) -> bool:
    """Whether every member has an answer, all have the same, and at least two were asked."""
    answers = talk.latest()
    everybody = len(answers) == len(talk.team.members) > 1
    return everybody and len(room.groups(list(answers.values()))) == 1


def plurality(room: Room, talk: Talk) -> str:
    """The answer most members have now, ties to the one given last; empty where nobody has any."""
    answers = list(talk.latest().values())
    order = {one.answer: i for i, one in enumerate(talk.said)}
    groups = room.groups(answers)
    if not groups:
        return ""
    best = max(groups, key=lambda group: (len(group), max(order[answers[i]] for i in group)))
    return max((answers[i] for i in best), key=lambda answer: order[answer])


def planted_seat(room: Room, team: Team) -> int | None:
    """The member whose first message is a planted wrong answer, where the study plants any."""
    if not room.settings.plant or not room.problem.distractor or len(team.members) < 2:
        return None
    return room.draw(f"{room.step}/{team.id}/planted", len(team.members))[0]


def planted_say(room: Room) -> Say:
    """The planted message."""
    return Say(render("planted", answer=room.problem.distractor), room.problem.distractor)
