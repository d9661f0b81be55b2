"""The reflector and the verifier: a typed review of every conversation, and a check that the loop enforces.

A check is made because a field says so or an answer changed, while the budget of checks lasts; no prompt and
no word in a text makes or prevents one.
"""

from __future__ import annotations

import msgspec

from sim.captain.desk import Call
from sim.captain.prompts import render, turns
from sim.captain.replies import Review, Verdict
from sim.captain.room import Room
from sim.captain.talk import Talk


async def reviewed(room: Room, talk: Talk) -> Review:
    """The review of a whole transcript; one that cannot be read keeps the team's answer and asks for nothing."""
    question = turns(
        render("reflector"),
        render("review", task=room.task, subtask=talk.subtask, said=talk.said, answer=talk.answer),
    )
    unread = Review(talk.answer, "The review could not be read.", confidence=0.0)
    call = Call("reflector", "review", f"{room.step}/review")
    review = await room.ask(call, question, (Review,), lambda text: unread)
    if len(room.groups(list(talk.first().values()))) > 1:
        room.detected += bool(review.contradictions) or review.double_check
    details = msgspec.to_builtins(review)
    room.event("review", "reflector", details.pop("reasons"), **details)
    return review


async def settle(room: Room, answer: str, asked: bool, disputed: bool) -> tuple[str, str]:
    """Take over a step's answer, verified first if that was asked for or the answer changed.

    Returns the answer that now stands and what the check showed (empty where none was made).
    """
    if not answer.strip():
        return room.answer, ""
    changed = bool(room.answer.strip()) and not room.same(room.answer, answer)
    reason = "the review asks for it" if asked else "the answer changed" if changed else ""
    checks = len(room.changes)
    if not room.settings.reflector or not reason or checks >= room.settings.rechecks:
        room.answer = answer
        return answer, ""
    room.checked += disputed
    verdict = await _verified(room, answer)
    revised = "" if verdict.holds else verdict.answer
    room.answer = revised if revised.strip() else answer
    room.changes.append((answer, room.answer))
    room.event(
        "verification", "verifier", verdict.reasons, because=reason, holds=verdict.holds, before=answer,
        after=room.answer,
    )  # fmt: skip
    return room.answer, verdict.reasons


async def _verified(room: Room, answer: str) -> Verdict:
    """An independent check that sees the task and the answer, not the conversation, and reasons backwards."""
    question = turns(render("verifier"), render("verify", task=room.task, answer=answer))
    unread = Verdict(True, "The check could not be read; the answer stands.")
    call = Call("verifier", "verification", f"{room.step}/verify")
    return await room.ask(call, question, (Verdict,), lambda text: unread)
