"""The stages of a study: explore, train, calibrate, evaluate. Each reads what the one before left on disk.

A stage that is already done is not done again, so every stage can be run alone, killed and resumed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from conformal import PolicyMismatch, Thresholds
from conformal.thresholds import check_use
from controllers.llm import Asked
from controllers.protocol import Controller
from controllers.registry import make_controller
from sim.discussion.actions import NOBODY
from sim.errors import UserError
from sim.records.rows import CallRow
from sim.records.run_dir import write_json
from sim.studies.calibration import calibrate, planned_discussions
from sim.studies.conditions import (
    EXPLORE,
    baseline,
    controlled,
    describe_policy,
    explorer,
    gated,
    is_baseline,
)
from sim.studies.progress import Reporter
from sim.studies.rollout import Policy
from sim.studies.study import Study, Work, fold, hold
from sim.worlds.protocol import Episodes

EVALUATE = "evaluate"
CONTROLLER = "controller"
THRESHOLDS = "thresholds.json"


def controller_of(study: Study, condition: str) -> Controller:
    """The controller a condition runs; a learned one is read from this run, or from `from_run`."""
    name = study.config.variant(condition).controller
    folder = source_run(study) / CONTROLLER / name
    trained_here = None if study.config.from_run else study.config.training
    return make_controller(
        name, path=folder, engine=study.engine, training=trained_here, log=_proposal_log(study)
    )


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
    """Evaluate every branch along uniform paths of the training tasks."""
    work = Work(EXPLORE, explorer(study.config), fold(study, "train"), study.config.explore_seeds)
    with report.stage(EXPLORE, work.size) as advance:
        await hold(study, [work], advance)


def train(study: Study, report: Reporter) -> None:
    """Fit the learned controllers on the explored branches; the same branches give the same weights."""
    from controllers.dataset import from_rows
    from controllers.labels import with_horizon
    from controllers.mlp import save
    from controllers.training import train as fit

    episodes = study.episodes(EXPLORE)
    if not episodes:
        raise UserError(f"{study.directory}: no explored branches to train on; run the explore stage first")
    families = {row.task: row.family for row in episodes}
    settings = study.config.training
    data = with_horizon(from_rows(study.decisions(EXPLORE), families), settings.horizon, episodes)
    learned = study.config.learned
    with report.stage("train", len(learned)) as advance:
        for name in learned:
            if not (study.directory / CONTROLLER / name).exists():
                save(fit(data, settings, name), study.directory / CONTROLLER / name)
            advance(1)


async def calibrate_all(study: Study, report: Reporter) -> None:
    """Thresholds of every certified condition, kept in thresholds.json as each is found."""
    found = read_thresholds(study.directory)
    missing = [name for name in study.config.certified if name not in found]
    with report.stage("calibrate", planned_discussions(study) * len(missing)) as advance:
        for name in missing:
            policy = controlled(study.config, name, controller_of(study, name))
            found[name] = await calibrate(study, policy, advance)
            write_json(study.directory / THRESHOLDS, {key: item.to_dict() for key, item in found.items()})


def read_thresholds(directory: Path) -> dict[str, Thresholds]:
    """The thresholds of a run by condition; empty before calibration."""
    path = directory / THRESHOLDS
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return {name: Thresholds.from_dict(item, f"{path}: {name}") for name, item in content.items()}


def gate_policy(study: Study, policy: Policy, found: dict[str, Thresholds]) -> Policy:
    """The policy behind its gate; UserError if thresholds are missing or do not fit it."""
    path = source_run(study) / THRESHOLDS
    if policy.name not in found:
        raise UserError(f"{path}: no thresholds for {policy.name!r}; run the calibrate stage first")
    parts = describe_policy(study.config, policy, study.world_identity)
    units = {task.family for task in fold(study, "test")}
    from conformal import policy_hash

    try:
        check_use(found[policy.name], f"{path}: {policy.name}", policy_hash(parts), units, parts)
    except PolicyMismatch as error:
        raise UserError(str(error)) from error
    return gated(policy, found[policy.name])


def evaluation(study: Study) -> list[Work]:
    """Every condition on the held-out test tasks: baselines, `X`, and `X+gate` where certified."""
    found = read_thresholds(source_run(study))
    tasks, seeds = fold(study, "test"), study.config.test_seeds
    policies: list[Policy] = []
    for name in study.config.conditions:
        if is_baseline(name):
            policies.append(baseline(study.config, name))
            continue
        policy = controlled(study.config, name, controller_of(study, name))
        policies.append(policy)
        if name in study.config.certified:
            policies.append(gate_policy(study, policy, found))
    return [Work(EVALUATE, policy, tasks, seeds) for policy in policies]


async def evaluate(study: Study, report: Reporter) -> None:
    """Hold every condition's discussions on the test tasks."""
    work = evaluation(study)
    with report.stage(EVALUATE, sum(item.size for item in work)) as advance:
        await hold(study, work, advance)
