"""The `controlled` speaker policy: a team's conversation held by the communication controller, as any
discussion is, with routing, one-step regret and, where thresholds are given, their gate.

The options are the distinct first answers of the team and "none of these", frozen for the talk. Each member
holds its own working, as an agent holds a private clue. Which option is right is known to nobody here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from conformal import OpenGate, Thresholds, policy_hash
from controllers.references import Best
from controllers.registry import make_controller
from sim.arrays import Ints
from sim.captain.desk import BudgetSpent, Call, Desk
from sim.captain.graders import code_blocks
from sim.captain.prompts import prompts_hash, render
from sim.captain.replies import Say
from sim.captain.room import EXECUTOR, Member, Room, reported
from sim.captain.talk import Talk, Utterance, planted_say, planted_seat, plurality, speak
from sim.discussion.actions import ACTION_NAMES, interventions
from sim.discussion.ending import decide
from sim.discussion.public import PublicView
from sim.discussion.routing import make_router
from sim.engines.protocol import Capabilities, ChatReply, ChatRequest, ChooseReply, ChooseRequest, EngineError
from sim.errors import UserError
from sim.studies.gates import AnyGate, make_gate
from sim.studies.rollout import Ending, Policy, Step, rollout
from sim.tasks import HiddenProfileTask
from sim.worlds.branch_store import BranchStore
from sim.worlds.language import LanguageSettings, LanguageWorld
from sim.worlds.protocol import Episodes

NONE_OF_THESE = "none of these"


@dataclass(frozen=True)
class DeskEngine:
    """Implements `Engine` for a talk: every call is on the episode's account."""

    desk: Desk
    place: str

    @property
    def capabilities(self) -> Capabilities:
        """Those of the experts' backbone."""
        return self.desk.engine("expert").capabilities

    async def chat(self, request: ChatRequest) -> ChatReply:
        """A message."""
        return await self.desk.chat(Call("expert", "branch", self.place), request)

    async def choose(self, request: ChooseRequest) -> ChooseReply:
        """A belief or a vote."""
        return await self.desk.choose(Call("expert", "belief", self.place), request)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


async def controlled_talk(room: Room, talk: Talk) -> None:
    """First answers, then the controlled discussion of which of them is right.

    Raises EngineError (BudgetSpent among them), and UserError where thresholds do not fit.
    """
    firsts = await _first_answers(room, talk)
    answers = [say.answer for say in firsts]
    talk.said += [Utterance(m.name, s.text, s.answer) for m, s in zip(talk.team.members, firsts, strict=True)]
    options = options_of(room, answers)
    if len(options) < 2:
        talk.ending = "no_answer"
        return
    task = _as_task(room, talk, firsts, options)
    world = _world(room, talk)
    policy = _policy(room, world)
    recorder = _Recorder(room, talk, options)
    await rollout(world, Episodes((task,), np.array([room.desk.identity.seed])), policy, recorder)
    if recorder.error:
        raise BudgetSpent(recorder.error) if room.desk.exhausted else EngineError(recorder.error)


async def _first_answers(room: Room, talk: Talk) -> list[Say]:
    """Every member's own answer, before it has heard another; its code is run first."""
    planted = planted_seat(room, talk.team)

    async def one(seat: int, member: Member) -> Say:
        place = f"{room.step}/{talk.team.id}/first{seat}"
        if seat == planted:
            return planted_say(room)
        alone = Talk(talk.team, talk.subtask)
        say = await speak(room, alone, member, place)
        if room.sandbox is not None and code_blocks(say.text):
            done = await room.execute(say.text, member.tools, place)
            alone.said += [Utterance(member.name, say.text, say.answer), Utterance(EXECUTOR, reported(done))]
            say = await speak(room, alone, member, f"{place}/run")
        return say

    jobs = [one(seat, member) for seat, member in enumerate(talk.team.members)]
    found = await asyncio.gather(*jobs, return_exceptions=True)
    for error in found:
        if isinstance(error, BaseException):
            raise error
    says = [say for say in found if isinstance(say, Say)]
    for seat, (member, say) in enumerate(zip(talk.team.members, says, strict=True)):
        room.said(member.name, say.text, say.answer, planted=seat == planted)
    return says


def options_of(room: Room, answers: Sequence[str]) -> list[str]:
    """The distinct answers, as the scenario's grader tells them apart, and "none of these" at the end."""
    distinct = [answers[group[0]].strip() for group in room.groups(answers)]
    options: list[str] = []
    for option in (*distinct, NONE_OF_THESE):
        alike = sum(" ".join(option.split()).casefold() == " ".join(o.split()).casefold() for o in options)
        options.append(f"{option} ({alike + 1})" if alike else option)
    return options


def _as_task(room: Room, talk: Talk, firsts: Sequence[Say], options: Sequence[str]) -> HiddenProfileTask:
    """The talk as a task of the simulator. Its answer is unknown: the field is filled and read by nobody."""
    clues = [
        render("working", member=member, say=say, tools=room.toolbox.signatures(member.tools))
        for member, say in zip(talk.team.members, firsts, strict=True)
    ]
    return HiddenProfileTask(
        id=f"{room.problem.id}#{room.step}",
        name=room.problem.id,
        description=room.task,
        shared_information=(render("subtask", subtask=talk.subtask),),
        hidden_information=tuple(clues),
        possible_answers=tuple(options),
        correct_answer=options[-1],
        family=room.problem.unit_of_analysis,
    )


def _world(room: Room, talk: Talk) -> LanguageWorld:
    """The room as a world. Beliefs are letters' probabilities, or said in words where the engine gives none."""
    control, settings = room.settings.control, room.settings
    engine = DeskEngine(room.desk, f"{room.step}/{talk.team.id}")
    by_letter = engine.capabilities.label_logprobs
    spoken = LanguageSettings(
        elicitation="choice" if by_letter else "verbal",
        final_vote="choice" if by_letter else "verbal",
        max_words=control.max_words,
        max_tokens=2 * control.max_words,
        temperature=settings.temperature,
        top_p=settings.top_p,
    )
    return LanguageWorld(engine, spoken, BranchStore(), control.rounds)


def _policy(room: Room, world: LanguageWorld) -> Policy:
    """The policy of a talk. The certificate is for the first talk of a problem: whether there is a second one
    depends on what the gate did in the first."""
    control = room.settings.control
    path = Path(control.path) if control.path else None
    controller = make_controller(control.controller, path=path, engine=world.engine)
    policy = Policy(
        name=room.desk.identity.condition,
        controller=controller,
        menu=interventions(vote=control.vote or control.controller.endswith("_vote")),
        router=make_router(control.routing),
        objective=control.objective,
        gate=OpenGate(),
        stop=control.stop,
        exhaustive=control.exhaustive or control.thresholds is not None or isinstance(controller, Best),
    )
    parts = policy_parts(room, policy, world)
    first, room.talks = room.talks == 0, room.talks + 1
    room.event("policy", "controller", policy_hash(parts), parts=parts, first=first)
    if first and control.thresholds is not None:
        policy = replace(policy, gate=_gate(room, parts))
    return policy


def policy_parts(room: Room, policy: Policy, world: LanguageWorld) -> dict[str, str]:
    """The readable parts of a talk's policy hash: all that must agree between calibration and deployment."""
    settings = msgspec.to_builtins(room.settings)
    for name in ("control", "executor", "budget"):
        settings.pop(name)
    parts = {
        "controller": policy.controller.describe(),
        "objective": msgspec.to_builtins(policy.objective),
        "router": room.settings.control.routing,
        "menu": [ACTION_NAMES[action] for action in policy.menu.actions],
        "stop": msgspec.to_builtins(policy.stop),
        "world": world.identity() | {"horizon": world.horizon},
        "captain": {"prompts": prompts_hash(), "settings": settings},
    }
    return {name: msgspec.json.encode(part, order="sorted").decode() for name, part in parts.items()}


def _gate(room: Room, parts: dict[str, str]) -> AnyGate:
    path = str(room.settings.control.thresholds)
    try:
        found = Thresholds.load(
            path, policy_hash=policy_hash(parts), test_units=[room.problem.unit_of_analysis], policy=parts
        )
        return make_gate(found)
    except (OSError, ValueError) as error:
        raise UserError(f"captain.control.thresholds: {error}") from error


@dataclass
class _Recorder:
    """Tells the room of every round, and the talk of its outcome."""

    room: Room
    talk: Talk
    options: list[str]
    error: str = ""
    _spoken: int = 0

    def opened(self, view: PublicView) -> None:
        """The options and first beliefs."""
        self.room.event(
            "options", self.talk.team.id, "", options=self.options, beliefs=view.beliefs[0].tolist()
        )

    def stepped(self, step: Step) -> None:
        """One round: what was proposed, what was executed at which threshold, and the message."""
        executed = int(step.decision.executed[0])
        width = step.candidates.actions.shape[1]
        actions = [ACTION_NAMES[action] for action in step.candidates.actions[0].tolist()]
        regrets = [None if value == np.inf else value for value in step.regrets[0].tolist()]
        threshold = float(step.decision.threshold[0])
        self.room.event(
            "intervention",
            "controller",
            actions[executed],
            round=int(step.view.rounds[0]) + 1,
            candidates=actions,
            speakers=step.candidates.speakers[0].tolist(),
            proposal=actions[int(step.proposal[0])],
            regrets=regrets if width > 1 else [None],
            regret=regrets[int(step.proposal[0])] if width > 1 else None,
            threshold=None if threshold == np.inf else threshold,
            certified=bool(step.decision.certified[0]),
            replaced=bool(step.decision.replaced[0]),
            beliefs=step.branches.beliefs[executed].tolist(),
        )
        heard = step.branches.transcripts[executed]
        for message in heard[self._spoken :]:
            name = self.talk.team.members[message.speaker].name
            self.talk.said.append(Utterance(name, message.text))
            self.room.said(name, message.text, action=message.action)
        self._spoken = len(heard)

    def ended(self, ending: Ending) -> None:
        """The group's decision; "none of these" is no answer, and nobody's vote leaves the plurality."""
        decision = int(decide(ending.votes, ending.view.key)[0])
        self.talk.ending = "decision" if decision >= 0 else "abstained"
        if decision < 0:
            self.talk.answer = plurality(self.room, self.talk)
        elif decision < len(self.options) - 1:
            self.talk.answer = self.options[decision]
        votes = ending.votes.choice[0].tolist()
        self.room.event("vote", self.talk.team.id, self.talk.answer, votes=votes, decision=decision)

    def failed(self, rows: Ints, view: PublicView | None, error: str) -> None:
        """The talk broke off."""
        self.error = error
