"""What a study would cost before it is launched: discussions, branches, model calls, tokens and GPU-hours.

Every condition is rehearsed on a few tasks with an engine that counts and answers with filler, through the same
rollout as the real thing, and scaled up to all tasks and seeds. Costs are upper bounds: no discussion ends early,
every message is as long as it may be, and conditions share only branches that they must share.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from controllers.llm import LLM, Asked
from controllers.protocol import Controller, draw_admissible
from controllers.registry import PROMPTED
from sim.arrays import Ints
from sim.config import GATE_SUFFIX, SCREEN_SUFFIX, LanguageWorldConfig, StudyConfig, Throughput
from sim.discussion.actions import VOTE, Candidates
from sim.discussion.ending import Stop
from sim.discussion.public import PublicView
from sim.discussion.state import Features
from sim.engines.rehearsal import RehearsalEngine
from sim.errors import UserError
from sim.randomness import keys, text_key, uniform
from sim.records.rows import FULL_INFORMATION, BranchRow, CallRow, VoteRow
from sim.studies.calibration import CALIBRATE, folds_of, longest_horizon
from sim.studies.conditions import EVALUATE, EXPLORE, baseline, controlled, explorer, is_baseline
from sim.studies.learners import explored_tasks, is_learned, lessons
from sim.studies.rollout import Policy, rollout
from sim.studies.study import Tasks, make_folds
from sim.studies.trace import Trace
from sim.tasks import HiddenProfileTask, one_per_family
from sim.worlds.branch_store import BranchStore
from sim.worlds.language import LanguageWorld
from sim.worlds.protocol import Episodes, shape_of

SAMPLE = 3
"""Tasks of a shape that are rehearsed; the others of that shape are taken to be like them."""


@dataclass(frozen=True)
class Cost:
    """What some discussions take; tokens in cache are part of the prompt tokens."""

    branches: float = 0.0
    calls: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    completion_tokens: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(mine + theirs for mine, theirs in zip(self.parts, other.parts, strict=True)))

    def times(self, factor: float) -> Cost:
        """The cost of so many times as many discussions."""
        return Cost(*(part * factor for part in self.parts))

    @property
    def parts(self) -> tuple[float, ...]:
        """The five numbers in order."""
        return (
            self.branches, self.calls, self.prompt_tokens, self.cached_tokens, self.completion_tokens
        )  # fmt: skip

    def gpu_hours(self, throughput: Throughput, active_billions: float, cache: bool = True) -> float:
        """Hours of one GPU that reads and writes at the given rates; without the prefix cache if so asked."""
        fresh = self.prompt_tokens - (self.cached_tokens if cache else 0)
        seconds = fresh / throughput.prefill + self.completion_tokens / throughput.decode
        return seconds * active_billions / 3600


@dataclass(frozen=True)
class Line:
    """One condition in one stage."""

    stage: str
    condition: str
    discussions: int
    cost: Cost


@dataclass(frozen=True)
class _Part:
    """A policy to be rehearsed: it will hold `seeds` discussions of each of `tasks`, as trees of `depth`."""

    stage: str
    policy: Policy
    tasks: Tasks
    seeds: int
    depth: int | None = None


@dataclass(frozen=True)
class _StandIn:
    """Any controller: draws among the admissible interventions, by its own dice, so that the paths of two
    conditions part as soon as they can."""

    name: str

    async def propose(self, view: PublicView, features: Features, candidates: Candidates) -> Ints:
        """The drawn interventions (B,), never a vote, which would end the discussion."""
        stay = replace(candidates, admissible=candidates.admissible & (candidates.actions != VOTE))
        salted = keys("stand-in", view.key, view.rounds, np.uint64(text_key(self.name)))
        return draw_admissible(stay, uniform(salted, 1)[:, 0])

    def describe(self) -> dict[str, object]:
        """Name only."""
        return {"name": self.name}


@dataclass(frozen=True)
class _Asking:
    """A controller that asks the model: its question is paid for, its answer is the stand-in's."""

    asks: LLM
    draws: _StandIn

    @property
    def name(self) -> str:
        """The stand-in's."""
        return self.draws.name

    async def propose(self, view: PublicView, features: Features, candidates: Candidates) -> Ints:
        """The drawn interventions (B,)."""
        await self.asks.propose(view, features, candidates)
        return await self.draws.propose(view, features, candidates)

    def describe(self) -> dict[str, object]:
        """Name only."""
        return {"name": self.name}


@dataclass
class _Tally:
    """What the calls of one rehearsal took, by round; final votes stand at round -1."""

    rounds: dict[int, Cost] = field(default_factory=lambda: defaultdict(Cost))

    def called(self, row: CallRow) -> None:
        """A call of an agent."""
        place = -1 if row.purpose == "vote" else _round_of(row.path)
        self._add(place, row.prompt_tokens, row.cached_tokens, row.completion_tokens)

    def asked(self, asked: Asked) -> None:
        """A call of a controller, made before the round it proposes for."""
        usage = asked.usage
        self._add(
            _round_of(asked.path) + 1, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
        )

    def kept(self, row: BranchRow | VoteRow) -> None:
        """A row that nobody had asked for yet; an opening is no branch."""
        if isinstance(row, BranchRow) and row.round:
            self.rounds[row.round] += Cost(branches=1)

    def _add(self, place: int, prompt: int, cached: int | None, completion: int) -> None:
        self.rounds[place] += Cost(0, 1, prompt, cached or 0, completion)

    def path(self) -> Cost:
        """The cost of one path."""
        return sum(self.rounds.values(), Cost())

    def tree(self, width: int, depth: int) -> Cost:
        """The cost of the whole tree of `depth` rounds, from that of one path through it."""
        levels = [
            cost.times(width ** max(0, place - 1))
            for place, cost in self.rounds.items()
            if 0 <= place <= depth
        ]
        return sum(levels, self.rounds[-1].times(width**depth))


def plan(config: StudyConfig, tasks: Tasks, stages: tuple[str, ...]) -> list[Line]:
    """The cost of every condition in every stage, at most. Raises UserError for a world without a model."""
    world = config.world
    if not isinstance(world, LanguageWorldConfig):
        raise UserError("plan is on, but world=cognitive calls no model; choose world=language")
    folds = make_folds(tasks, config)
    engine = RehearsalEngine(str(config.model.get("name", "")))
    stages_of_parts = (
        list(_learning(config, folds, stages)),
        list(_certifying(config, folds, stages)),
        list(_evaluating(config, folds, stages, engine)),
    )

    async def rehearse() -> list[Line]:
        rehearsals = [(_Rehearsal(world, engine), parts) for parts in stages_of_parts]
        return [await rehearsal.line(part) for rehearsal, parts in rehearsals for part in parts]

    return asyncio.run(rehearse())


def _learning(config: StudyConfig, folds: Mapping[str, Tasks], stages: tuple[str, ...]) -> Iterator[_Part]:
    if "explore" not in stages or ("train" in stages and not (config.trained or config.screened)):
        return
    tasks = explored_tasks(config, folds)
    depth = None
    if config.exploration.mode == "tree":
        depth = config.exploration.depth or longest_horizon(tasks, config.world.horizon)
    policy = explorer(config, _StandIn(config.exploration.behaviour))
    yield _Part(EXPLORE, policy, tasks, len(config.explore_seeds), depth)


def _certifying(config: StudyConfig, folds: Mapping[str, Tasks], stages: tuple[str, ...]) -> Iterator[_Part]:
    if "calibrate" not in stages:
        return
    for name in config.certified:
        screening = ("screening",) if name in config.screened else ()
        for fold in (*folds_of(config), *screening):
            policy = controlled(config, name, _StandIn(f"{name} {fold}"))
            yield _Part(CALIBRATE, policy, one_per_family(folds.get(fold, ()), 0), 1)


def _evaluating(
    config: StudyConfig, folds: Mapping[str, Tasks], stages: tuple[str, ...], engine: RehearsalEngine
) -> Iterator[_Part]:
    if "evaluate" not in stages:
        return
    test, seeds = folds.get("test", ()), len(config.test_seeds)
    for name in config.conditions:
        if is_baseline(name):
            yield _Part(EVALUATE, baseline(config, name), test, seeds)
            continue
        parts = [(name, test)]
        if is_learned(config, name):
            parts = [(lesson.condition, lesson.test_tasks) for lesson in lessons(config, folds, name)]
        for condition, tasks in parts:
            for suffix in ("", *_suffixes(config, name)):
                policy = controlled(config, name, _controller(config, name, condition + suffix, engine))
                yield _Part(EVALUATE, replace(policy, name=condition + suffix), tasks, seeds)


def _suffixes(config: StudyConfig, name: str) -> Iterator[str]:
    if name in config.certified:
        yield GATE_SUFFIX
    if name in config.screened:
        yield SCREEN_SUFFIX


def _controller(config: StudyConfig, name: str, label: str, engine: RehearsalEngine) -> Controller:
    """The stand-in of a condition, with the questions it asks a model."""
    chosen = config.variant(name).controller
    stand_in = _StandIn(label)
    return _Asking(LLM(engine), stand_in) if chosen in PROMPTED else stand_in


class _Rehearsal:
    """One stage: an engine that counts, and a store of branches that nobody pays twice."""

    def __init__(self, world: LanguageWorldConfig, engine: RehearsalEngine) -> None:
        self._tally = _Tally()
        self._world = LanguageWorld(
            engine,
            world.settings,
            BranchStore(on_new=lambda row: self._tally.kept(row)),
            world.horizon,
            lambda row: self._tally.called(row),
        )

    async def line(self, part: _Part) -> Line:
        """The cost of a part: the mean over a sample of each shape's tasks, times how many there are."""
        total = Cost()
        for shape in sorted({shape_of(task) for task in part.tasks}):
            alike = [task for task in part.tasks if shape_of(task) == shape]
            sample = alike[:SAMPLE]
            for task in sample:
                total += (await self._discussion(part, task)).times(len(alike) * part.seeds / len(sample))
        return Line(part.stage, part.policy.name, len(part.tasks) * part.seeds, total)

    async def _discussion(self, part: _Part, task: HiddenProfileTask) -> Cost:
        self._tally = tally = _Tally()
        policy = replace(part.policy, stop=Stop(quorum=None))
        if isinstance(policy.controller, _Asking):
            asks = replace(policy.controller.asks, log=tally.asked)
            policy = replace(policy, controller=replace(policy.controller, asks=asks))
        episodes = Episodes((task,), np.zeros(1, np.int64))
        await rollout(self._world, episodes, policy, Trace(episodes))
        return tally.path() if part.depth is None else tally.tree(policy.menu.size, part.depth)


def _round_of(path: str) -> int:
    return path.count("/") + 1 if path not in ("", FULL_INFORMATION) else 0
