"""The stages of a study: explore, train, calibrate, evaluate. Each reads what the one before left on disk.

A stage that is already done is not done again, so every stage can be run alone, killed and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from conformal import PolicyMismatch, Thresholds
from conformal.ranks import exact_level
from conformal.thresholds import check_use
from controllers.llm import Asked
from controllers.protocol import Controller
from controllers.registry import LEARNED, make_controller
from sim.discussion.actions import NOBODY
from sim.errors import UserError
from sim.records.rows import CallRow, EpisodeRow, VoteRow
from sim.records.run_dir import read_json, write_json
from sim.records.store import iter_finished_decisions, iter_rows
from sim.studies.calibration import calibrate, longest_horizon, planned_discussions, rounds_of
from sim.studies.conditions import (
    EVALUATE,
    EXPLORE,
    baseline,
    controlled,
    describe_policy,
    explorer,
    gated,
    is_baseline,
)
from sim.studies.learners import CONTROLLER, Lesson, all_lessons, explored_tasks, is_learned, lessons
from sim.studies.progress import Reporter
from sim.studies.rollout import Policy
from sim.studies.screen_stage import SCREENS, fit_band, read_bands, screened, write_bands
from sim.studies.study import Study, Tasks, Work, fold, hold
from sim.studies.tree import with_tree_horizon
from sim.tasks import one_per_family
from sim.worlds.protocol import Episodes

if TYPE_CHECKING:
    from controllers.dataset import BranchDataset

THRESHOLDS = "thresholds.json"


@dataclass(frozen=True)
class Cast:
    """A controller with the test tasks it plays: one of the networks behind a row of the tables, or all there
    is to it."""

    condition: str
    controller: Controller
    tasks: Tasks


def controller_of(study: Study, condition: str) -> Controller:
    """The one controller a condition runs."""
    return cast_of(study, condition)[0].controller


def cast_of(study: Study, condition: str) -> list[Cast]:
    """The controllers a condition runs; learned ones are read from this run, or from another one."""
    if is_learned(study.config, condition):
        found = lessons(study.config, study.folds, condition)
        return [Cast(lesson.condition, _trained(study, lesson), lesson.test_tasks) for lesson in found]
    return [
        Cast(
            condition, _plain(study, study.config.variant(condition).controller), study.folds.get("test", ())
        )
    ]


def _trained(study: Study, lesson: Lesson) -> Controller:
    expected = None if lesson.run else lesson.settings
    return make_controller(lesson.controller, path=lesson.weights(study.directory), training=expected)


def _plain(study: Study, name: str) -> Controller:
    return make_controller(name, engine=study.engine, log=_proposal_log(study))


def _proposal_log(study: Study) -> Callable[[Asked], None]:
    """Keeps a controller's model calls; the record it sees names no seed, so keys are looked up."""
    seeds = (*study.config.explore_seeds, *study.config.test_seeds)
    tasks = tuple(task for part in study.folds.values() for task in part)
    seed_of: dict[int, int] = {}

    def log(asked: Asked) -> None:
        if not seed_of:
            for seed in seeds:
                episodes = Episodes(tasks, np.full(len(tasks), seed))
                seed_of.update(dict.fromkeys(episodes.key.tolist(), seed))
        study.store.append([_proposal_call(asked, seed_of[asked.key], study.engine.capabilities.model)])

    return log


def _proposal_call(asked: Asked, seed: int, model: str) -> CallRow:
    return CallRow(
        task=asked.task,
        seed=seed,
        path=asked.path,
        purpose="proposal",
        agent=NOBODY,
        prompt_hash=asked.prompt_hash,
        prompt_tokens=asked.usage.prompt_tokens,
        cached_tokens=asked.usage.cached_tokens,
        completion_tokens=asked.usage.completion_tokens,
        latency_s=asked.usage.latency_s,
        retries=asked.usage.retries,
        finish_reason="unparsable" if asked.error else "stop",
        model=model,
        replica=asked.usage.replica,
        error=asked.error,
    )


def source_run(study: Study) -> Path:
    """Where trained controllers and thresholds are read from."""
    return Path(study.config.from_run) if study.config.from_run else study.directory


async def explore(study: Study, report: Reporter) -> None:
    """Evaluate every branch of the explored tasks: along one path each, or of the whole tree."""
    config = study.config
    for name in config.exploration.folds:
        fold(study, name)
    tasks = explored_tasks(config, study.folds)
    depth = (
        config.exploration.depth or longest_horizon(tasks, config.world.horizon)
        if config.exploration.mode == "tree"
        else None
    )
    work = Work(EXPLORE, explorer(config, behaviour_of(study)), tasks, config.explore_seeds, depth)
    with report.stage(EXPLORE, work.size) as advance:
        await hold(study, [work], advance)


def behaviour_of(study: Study) -> Controller:
    """The controller whose proposals the exploration commits."""
    name = study.config.exploration.behaviour
    if name in LEARNED:
        return make_controller(name, path=source_run(study) / CONTROLLER / name)
    return _plain(study, name)


def train(study: Study, report: Reporter) -> None:
    """Fit the learned controllers on the explored branches; the same branches give the same weights."""
    from controllers.dataset import of_tasks
    from controllers.mlp import save
    from controllers.training import train as fit

    planned = all_lessons(study.config, study.folds)
    missing = [lesson for lesson in planned if not lesson.weights(study.directory).exists()]
    data = explored(study, {lesson.settings.horizon for lesson in missing}) if missing else None
    with report.stage("train", sum(lesson.settings.epochs for lesson in planned)) as advance:
        advance(sum(lesson.settings.epochs for lesson in planned if lesson not in missing))
        for lesson in missing:
            assert data is not None
            mine = of_tasks(data, (task.id for task in lesson.train_tasks))
            model = fit(mine, lesson.settings, lesson.controller, lambda: advance(1))
            save(model, lesson.weights(study.directory))
            advance(lesson.settings.epochs - len(model.card.curve))


def explored(study: Study, horizons: set[str]) -> BranchDataset:
    """The explored branches with the labels of some horizons. UserError where nothing was explored."""
    from controllers.dataset import from_rows, in_order
    from controllers.labels import with_horizon

    episodes = study.episodes(EXPLORE)
    if not episodes:
        raise UserError(f"{study.directory}: no explored branches to train on; run the explore stage first")
    families = {row.task: row.family for row in episodes}
    if study.config.exploration.mode == "tree":
        return _explored_tree(study, families, episodes, horizons)
    data = in_order(from_rows(iter_finished_decisions(study.directory, episodes), families))
    for horizon in sorted(horizons):
        data = with_horizon(data, horizon, episodes)
    return data


def _explored_tree(
    study: Study, families: Mapping[str, str], episodes: list[EpisodeRow], horizons: set[str]
) -> BranchDataset:
    """The branches of a tree, whose rows are kept in memory: labels of a longer horizon need them all at once."""
    from controllers.dataset import from_rows

    decisions = study.decisions(EXPLORE)
    data = from_rows(decisions, families)
    for horizon in sorted(horizons):
        votes = iter_rows(study.directory, VoteRow)
        data = with_tree_horizon(data, decisions, horizon, votes, episodes)
    return data


async def calibrate_all(study: Study, report: Reporter) -> None:
    """Thresholds of every certified condition, kept in thresholds.json as each is found."""
    found = read_thresholds(study.directory)
    missing = [name for name in study.config.certified if name not in found]
    with report.stage("calibrate", planned_discussions(study) * len(missing)) as advance:
        for name in missing:
            policy = controlled(study.config, name, controller_of(study, name))
            found[name] = await calibrate(study, policy, advance)
            write_json(study.directory / THRESHOLDS, {key: item.to_dict() for key, item in found.items()})


async def screen_all(study: Study, report: Reporter) -> None:
    """Bands of every screened condition, kept in screens.json as each is found."""
    found, thresholds = read_bands(study.directory), read_thresholds(study.directory)
    missing = [name for name in study.config.screened if name not in found]
    explored_branches = study.decisions(EXPLORE) if missing else []
    total = len(one_per_family(fold(study, "screening"), 0)) if missing else 0
    with report.stage("screen", total * len(missing)) as advance:
        for name in missing:
            policy = controlled(study.config, name, controller_of(study, name))
            found[name] = await fit_band(study, policy, thresholds[name], explored_branches, advance)
            write_bands(study.directory, found)


def screen_policy(study: Study, policy: Policy, found: dict[str, Thresholds]) -> Policy:
    """The condition `X+screen`; UserError if its band or thresholds are missing or do not fit it."""
    gate_policy(study, policy, found)
    bands = read_bands(source_run(study))
    if policy.name not in bands:
        raise UserError(
            f"{source_run(study) / SCREENS}: no band for {policy.name!r}; run the calibrate stage first"
        )
    fraction = study.config.screening.audit_fraction
    return screened(policy, found[policy.name], bands[policy.name], fraction)


def read_thresholds(directory: Path) -> dict[str, Thresholds]:
    """The thresholds of a run by condition; empty before calibration."""
    path = directory / THRESHOLDS
    if not path.is_file():
        return {}
    try:
        return {name: Thresholds.from_dict(item, f"{path}: {name}") for name, item in read_json(path).items()}
    except ValueError as error:
        raise UserError(str(error)) from error


def gate_policy(study: Study, policy: Policy, found: dict[str, Thresholds]) -> Policy:
    """The policy behind its gate; UserError if thresholds are missing or do not fit it."""
    path = source_run(study) / THRESHOLDS
    if policy.name not in found:
        raise UserError(f"{path}: no thresholds for {policy.name!r}; run the calibrate stage first")
    if found[policy.name].rounds < rounds_of(study):
        raise UserError(
            f"{path}: {policy.name} has thresholds for {found[policy.name].rounds} rounds, but this study's "
            f"discussions take up to {rounds_of(study)}; calibrate with tasks as long as these"
        )
    alpha = study.config.conformal.alpha
    if found[policy.name].alpha != float(exact_level(alpha)):
        raise UserError(
            f"{path}: {policy.name} was calibrated for alpha {found[policy.name].alpha:g}, but conformal.alpha is "
            f"{alpha:g}; calibrate again, or set conformal.alpha to what it was"
        )
    parts = describe_policy(study.config, policy, study.world_identity)
    units = {task.family for task in fold(study, "test")}
    from conformal import policy_hash

    try:
        check_use(found[policy.name], f"{path}: {policy.name}", policy_hash(parts), units, parts)
    except PolicyMismatch as error:
        raise UserError(str(error)) from error
    return gated(policy, found[policy.name], study.config.gate_of(policy.name))


def evaluation(study: Study) -> list[Work]:
    """Every condition on the held-out test tasks: baselines, `X`, and `X+gate` where certified."""
    found = read_thresholds(source_run(study))
    tasks, seeds = fold(study, "test"), study.config.test_seeds
    work: list[Work] = []
    for name in study.config.conditions:
        if is_baseline(name):
            work.append(Work(EVALUATE, baseline(study.config, name), tasks, seeds))
            continue
        for part in cast_of(study, name):
            policy = controlled(study.config, part.condition, part.controller)
            work.append(Work(EVALUATE, policy, part.tasks, seeds))
            if name in study.config.certified:
                work.append(Work(EVALUATE, gate_policy(study, policy, found), part.tasks, seeds))
            if name in study.config.screened:
                work.append(Work(EVALUATE, screen_policy(study, policy, found), part.tasks, seeds))
    return work


async def evaluate(study: Study, report: Reporter) -> None:
    """Hold every condition's discussions on the test tasks."""
    work = evaluation(study)
    with report.stage(EVALUATE, sum(item.size for item in work)) as advance:
        await hold(study, work, advance)
