"""A captain study on disk: every condition on every problem and seed, recorded, resumed, graded.

An episode is finished when its row stands in captain_episodes.jsonl; what a crash cut short is run again.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from sim.captain.agents import BUILT_IN, AgentLibrary, read_library
from sim.captain.captain import Outcome
from sim.captain.config import Backbone, CaptainConfig, Settings, parse
from sim.captain.desk import Desk
from sim.captain.graders import Grade, grade
from sim.captain.methods import METHODS, NEEDS_NO_SANDBOX, NEEDS_TEAM, attempt, plan_team
from sim.captain.problems import CORPUS, Problem, ProgramTests, Words, read_problems
from sim.captain.prompts import prompts_hash
from sim.captain.retrieval import RetrievalFailure, Retriever, Scorer, make_scorer
from sim.captain.room import Room, Team
from sim.captain.sandbox import Sandbox, make_sandbox
from sim.captain.toolbox import BUILT_IN as TOOLS
from sim.captain.toolbox import NO_TOOLS, Toolbox, read_tools
from sim.config import identity_hash
from sim.engines.protocol import Engine, EngineDown, EngineError
from sim.errors import UserError, shown
from sim.records.captain_rows import CaptainEpisodeRow, CaptainEventRow, Identity
from sim.records.run_dir import PROVENANCE, claim, provenance, read_config, tracked, write_json
from sim.records.store import RunStore, iter_rows
from sim.studies.language import make_engine
from sim.studies.opening import check_unchanged
from sim.studies.progress import Reporter
from sim.studies.study import together

LIBRARY = "agents.json"
ASKED = "asked"
_NEEDED = ("bm25s", "pint")
Show = Callable[[CaptainEventRow], None]


@dataclass
class Study:
    """What every episode needs. `engines` are open, by backbone."""

    config: CaptainConfig
    directory: Path
    store: RunStore
    problems: tuple[Problem, ...]
    engines: Mapping[str, Engine]
    scorers: Mapping[str, Scorer]
    library: AgentLibrary
    toolbox: Toolbox
    sandbox: Sandbox | None
    show: Show
    _teams: dict[tuple[str, str, int], Team | None] = field(default_factory=dict)
    _planning: asyncio.Lock = field(default_factory=asyncio.Lock)

    def room(self, condition: str, problem: Problem, seed: int, name: str | None = None) -> Room:
        """The room of an episode; `name` is the problem's id unless the episode is for a whole scenario."""
        settings = self.config.settings_of(condition)
        who = Identity(
            condition, problem.scenario, problem.id if name is None else name, seed, secrets.token_hex(4)
        )
        desk = Desk(self.engines, settings, who, self.config.prices, lambda row: self.store.append([row]))
        return Room(
            desk=desk,
            problem=problem,
            retriever=Retriever(self.scorers[settings.retriever], settings.top_k, settings.similarity),
            log=lambda row: self.store.append([row]),
            library=self.library if settings.agents else None,
            toolbox=self.toolbox if settings.tools else NO_TOOLS,
            sandbox=self.sandbox,
            show=self.show,
        )

    async def static_team(self, condition: str, scenario: str, seed: int) -> Team | None:
        """The team of a condition that builds one per scenario: built once, read from the record later."""
        key = (condition, scenario, seed)
        async with self._planning:
            if key not in self._teams:
                about = Problem("", scenario, f"Tasks of this kind: {scenario}", Words(()))  # type: ignore[arg-type]
                room = self.room(condition, about, seed, name="")
                self._teams[key] = team = await plan_team(room)
                room.event("static_team", "captain", team.id if team else "", team=msgspec.to_builtins(team))
            return self._teams[key]

    def remember_teams(self) -> None:
        """Take over the static teams that the run has built."""
        for row in iter_rows(self.directory, CaptainEventRow):
            if row.kind == "static_team":
                who = row.episode
                team = msgspec.convert(row.details["team"], Team | None)
                self._teams[who.condition, who.scenario, who.seed] = team


async def hold(study: Study, condition: str, problem: Problem, seed: int) -> CaptainEpisodeRow:
    """One episode: the method's answer, graded and recorded. Raises EngineDown and UserError only."""
    started = time.monotonic()
    room = study.room(condition, problem, seed)
    method = study.config.conditions[condition].method
    outcome, error = Outcome("", "failed"), ""
    try:
        if method == NEEDS_TEAM:
            team = await study.static_team(condition, problem.scenario, seed)
            room.teams.update({team.id: team} if team else {})
        outcome = await attempt(room, method)
    except EngineDown:
        raise
    except (EngineError, RetrievalFailure) as failure:
        error = str(failure)
    seconds = time.monotonic() - started
    graded = await _graded(study, problem, outcome.answer) if not error else Grade(False, "it failed")
    flips = [(await _graded(study, problem, a), await _graded(study, problem, b)) for a, b in room.changes]
    row = CaptainEpisodeRow(
        episode=room.desk.identity,
        method=method,
        family=problem.unit_of_analysis,
        level=problem.level,
        answer=outcome.answer,
        correct=graded.correct,
        reason=graded.reason,
        ending=outcome.ending,
        steps=room.step,
        teams=len(room.teams),
        malformed=room.malformed,
        tokens=room.desk.spent,
        seconds=seconds,
        disputes=room.disputes,
        detected=room.detected,
        checked=room.checked,
        right_to_wrong=sum(a.correct and not b.correct for a, b in flips),
        wrong_to_right=sum(b.correct and not a.correct for a, b in flips),
        error=error,
    )
    study.store.append([row])
    return row


async def _graded(study: Study, problem: Problem, answer: str) -> Grade:
    if problem.id == ASKED:
        return Grade(False, "nobody knows the answer")
    return await grade(problem, answer, study.sandbox)


async def hold_all(study: Study, advance: Callable[[int], None]) -> None:
    """Every episode that is not recorded yet, a bounded number at a time; the first error stops the rest."""
    done = {row.episode.key for row in iter_rows(study.directory, CaptainEpisodeRow)}
    limit = asyncio.Semaphore(study.config.in_flight)

    async def one(condition: str, problem: Problem, seed: int) -> None:
        async with limit:
            await hold(study, condition, problem, seed)
            advance(1)

    jobs = [
        one(condition, problem, seed)
        for problem in study.problems
        for seed in study.config.seeds
        for condition in study.config.conditions
        if (condition, problem.id, seed) not in done
    ]
    advance(len(study.problems) * len(study.config.seeds) * len(study.config.conditions) - len(jobs))
    await together(jobs)


def check(data: Mapping[str, Any]) -> CaptainConfig:
    """The typed configuration; UserError for anything that would stop the run later."""
    config = parse(data)
    missing = [package for package in _NEEDED if find_spec(package) is None]
    if missing:
        raise UserError(f"package {missing[0]} is not installed; pip install 'consilience[captain]'")
    for name, condition in config.conditions.items():
        if condition.method not in METHODS:
            known = ", ".join(METHODS)
            raise UserError(
                f"conditions.{name}.method is {shown(condition.method)}; it must be one of {known}"
            )
    return config


def opened_run(data: Mapping[str, Any], overridden: Mapping[str, Any]) -> tuple[Path, CaptainConfig]:
    """A new run directory, or the one to resume under its stored configuration."""
    if data["resume"] is None:
        config = check(data)
        read_problems(config.problems)
        return claim(Path(config.output), config.name, identity_hash(data), data), config
    directory = Path(data["resume"])
    stored = read_config(directory)
    check_unchanged(directory, stored, overridden)
    return directory, msgspec.structs.replace(check(stored), progress=data["progress"])


def asked(config: CaptainConfig) -> tuple[CaptainConfig, tuple[Problem, ...]]:
    """The conditions and problems to run: one problem from the command line goes to captains alone."""
    if config.problem is None:
        return config, read_problems(config.problems)
    scenario = (*config.problems.scenarios, "mathematics")[0]
    captains = {name: one for name, one in config.conditions.items() if one.method == "captain"}
    conditions = captains or config.conditions
    problem = Problem(ASKED, scenario, config.problem, Words(()))
    kept = msgspec.structs.replace(config, conditions=conditions, reference=next(iter(conditions)))
    return kept, (problem,)


@asynccontextmanager
async def opened(config: CaptainConfig, directory: Path, store: RunStore, show: Show) -> AsyncIterator[Study]:
    """The study of a run directory: engines started, libraries read, the sandbox tried out."""
    config, problems = asked(config)
    settings = {name: config.settings_of(name) for name in config.conditions}
    toolbox = read_tools(Path(config.tools) if config.tools else TOOLS)
    library = read_library(Path(config.library) if config.library else BUILT_IN, directory / LIBRARY)
    names: set[str] = {one.retriever for one in settings.values()}
    scorers = {name: make_scorer(name) for name in sorted(names)}
    sandbox = _sandbox(config, problems, settings, toolbox)
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(make_engine(one.engine, one.model))
            for name, one in _backbones(config, settings.values()).items()
        }
        _check_typed(engines)
        study = Study(config, directory, store, problems, engines, scorers, library, toolbox, sandbox, show)
        study.remember_teams()
        if not (directory / PROVENANCE).exists():
            write_json(directory / PROVENANCE, provenance(fingerprint(study)))
        yield study


def _check_typed(engines: Mapping[str, Engine]) -> None:
    for name, engine in engines.items():
        found = engine.capabilities
        if not (found.structured or found.label_logprobs):
            raise UserError(
                f"backbone {name}: {found.model} keeps to no schema and gives no probabilities of letters; typed "
                "decisions need one of the two: choose another model or server"
            )


def _backbones(config: CaptainConfig, settings: Iterable[Settings]) -> dict[str, Backbone]:
    """The models that conditions name."""
    known = {"default": Backbone(config.engine, config.model)} | config.backbones
    names = {name for one in settings for name in (one.backbone, one.expert_backbone) if name}
    return {name: known[name] for name in sorted(names)}


def _sandbox(
    config: CaptainConfig, problems: Iterable[Problem], settings: Mapping[str, Settings], toolbox: Toolbox
) -> Sandbox | None:
    """The sandbox, tried out before anything is spent; None where no program will be run."""
    methods = {condition.method for condition in config.conditions.values()}
    if methods == {NEEDS_NO_SANDBOX} and not any(isinstance(one.expected, ProgramTests) for one in problems):
        return None
    corpus = Path(config.problems.corpus) if config.problems.corpus else CORPUS
    if not corpus.exists():
        raise UserError(f"problems.corpus: {corpus} is missing; give a folder of texts or a JSONL file")
    first = next(iter(settings.values()))
    shown_folders = {"CAPTAIN_TOOLS": toolbox.folder.resolve(), "CAPTAIN_CORPUS": corpus.resolve()}
    return make_sandbox(first.executor, first.limits, shown_folders)


def fingerprint(study: Study) -> dict[str, Any]:
    """What made a result beside code and packages; which retrieval and which sandbox were found stands here."""
    content = msgspec.json.encode(study.problems)
    return {
        "data_hash": hashlib.blake2b(content, digest_size=16).hexdigest(),
        "prompts": prompts_hash(),
        "retrieval": {name: scorer.name for name, scorer in study.scorers.items()},
        "sandbox": study.sandbox.wall.name if study.sandbox else None,
        "engines": {name: msgspec.to_builtins(engine.capabilities) for name, engine in study.engines.items()},
        "agents": len(study.library.agents),
        "tools": list(study.toolbox.tools),
    }


def run_captain(data: Mapping[str, Any], overridden: Mapping[str, Any]) -> Path:
    """Run a study, or one problem, in a new run directory or in the one named by `resume`; then report."""
    from sim.captain.calibration import calibrate_run
    from sim.captain.command import print_outcome, shower
    from sim.captain.report import build_captain_report

    if data["calibrate"] is not None:
        return calibrate_run(Path(data["calibrate"]), check(data))
    directory, config = opened_run(data, overridden)
    with RunStore(directory) as store, tracked(directory, "captain"):
        asyncio.run(_held(config, directory, store, shower(config)))
        build_captain_report(directory)
        print_outcome(directory, config)
    return directory


async def _held(config: CaptainConfig, directory: Path, store: RunStore, show: Show) -> None:
    report = Reporter(config.progress and config.problem is None)
    try:
        async with opened(config, directory, store, show) as study:
            total = len(study.problems) * len(study.config.seeds) * len(study.config.conditions)
            with report.stage("captain", total) as advance:
                await hold_all(study, advance)
    except EngineDown as error:
        raise UserError(f"{error}; start the server again, then continue with resume={directory}") from error
