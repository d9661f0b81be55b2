"""Calibration runs: which folds are run under which gate, for every conformal mode (METHOD 3, 4, 5, 10).

The arithmetic of thresholds is the conformal package's; here discussions are held and their scores laid out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformal import (
    LockstepGate,
    SequentialCalibrator,
    Thresholds,
    acceptance_thresholds,
    certify,
    fit,
    policy_hash,
    scale,
    trajectory,
)
from sim.arrays import Bools, Floats
from sim.config import StudyConfig
from sim.discussion.ending import Horizon, horizon_of
from sim.errors import UserError
from sim.records.rows import DecisionRow, EpisodeRow
from sim.studies.conditions import describe_policy
from sim.studies.gates import AnyGate, make_gate
from sim.studies.rollout import Policy, rollout
from sim.studies.study import Advance, Study, Tasks, Work, fold, hold
from sim.studies.trace import Trace
from sim.tasks import folds as cut_folds
from sim.tasks import one_per_family
from sim.worlds.protocol import batches

PILOT, CALIBRATE, SCALE = "pilot", "calibrate", "scale"


@dataclass(frozen=True)
class Scores:
    """Scores of the proposals (n, T), which rounds were reached (n, T), and the families (n)."""

    values: Floats
    reached: Bools
    units: tuple[str, ...]


def lay_out(episodes: Sequence[EpisodeRow], decisions: Sequence[DecisionRow], n_rounds: int) -> Scores:
    """Scores by round from the rows of one condition; a failed episode scores +inf from its failure on."""
    row_of = {(row.task, row.seed): i for i, row in enumerate(episodes)}
    values = np.full((len(episodes), n_rounds), np.nan)
    for row in decisions:
        regret = row.regrets[row.proposal]
        values[row_of[row.task, row.seed], row.round - 1] = np.inf if regret is None else regret
    for i, episode in enumerate(episodes):
        if episode.ending == "failed":
            values[i, episode.rounds :] = np.inf
    return Scores(values, ~np.isnan(values), tuple(row.family for row in episodes))


def rounds_of(study: Study) -> int:
    """Rounds that need a threshold: the longest horizon of any task of the study, since a test discussion may
    be longer than any of its calibration fold."""
    every = tuple(task for part in study.folds.values() for task in part)
    return longest_horizon(every, study.config.world.horizon)


def longest_horizon(tasks: Tasks, horizon: Horizon) -> int:
    """T of some tasks: the configured horizon, or else the longest default."""
    if isinstance(horizon, int):
        return horizon
    return max(horizon_of(horizon, task.n_agents) for task in tasks)


def calibration_work(study: Study, stage: str, policy: Policy, gate: AnyGate | None, tasks: Tasks) -> Work:
    """One discussion per task family under a policy and gate: the unit of calibration is the family."""
    chosen = one_per_family(tasks, study.config.split.seed)
    gated = policy if gate is None else replace(policy, gate=gate)
    return Work(stage, gated, chosen, (study.config.test_seeds[0],))


async def run_fold(
    study: Study, stage: str, policy: Policy, gate: AnyGate | None, tasks: Tasks, advance: Advance
) -> Scores:
    """Hold one calibration fold and lay out its scores."""
    await hold(study, [calibration_work(study, stage, policy, gate, tasks)], advance)
    return lay_out(study.episodes(stage, policy.name), study.decisions(stage, policy.name), rounds_of(study))


Calibrate = Callable[[Study, Policy, Advance], Awaitable[Thresholds]]


async def _pilot(study: Study, policy: Policy, advance: Advance) -> Thresholds:
    parts = describe_policy(study.config, policy, study.world_identity)
    alpha, key = study.config.conformal.alpha, policy_hash(parts)
    first = await run_fold(study, PILOT, policy, None, fold(study, "pilot"), advance)
    accepted = acceptance_thresholds(
        first.values, first.reached, alpha, units=first.units, policy_hash=key, policy=parts
    )
    gate = make_gate(accepted, study.config.gate_of(policy.name))
    second = await run_fold(study, CALIBRATE, policy, gate, fold(study, "calibration"), advance)
    return certify(second.values, second.reached, accepted, units=second.units, policy_hash=key)


async def _one_fold(study: Study, policy: Policy, advance: Advance) -> Thresholds:
    parts = describe_policy(study.config, policy, study.world_identity)
    scores = await run_fold(study, CALIBRATE, policy, None, fold(study, "calibration"), advance)
    return fit(
        study.config.conformal.mode,
        scores.values,
        scores.reached,
        study.config.conformal.alpha,
        units=scores.units,
        policy_hash=policy_hash(parts),
        policy=parts,
    )


async def _trajectory(study: Study, policy: Policy, advance: Advance) -> Thresholds:
    parts = describe_policy(study.config, policy, study.world_identity)
    tasks = fold(study, "calibration")
    base = await run_fold(study, CALIBRATE, policy, None, tasks, advance)
    sigma: Floats | None = None
    scale_units: tuple[str, ...] = ()
    if study.config.conformal.scaled and "train" in study.folds:
        training = await run_fold(study, SCALE, policy, None, study.folds["train"], advance)
        width = base.values.shape[1]
        sigma, scale_units = np.ones(width), training.units
        found = scale(training.values, training.reached)[:width]
        sigma[: len(found)] = found
    return trajectory(
        base.values,
        base.reached,
        study.config.conformal.alpha,
        units=base.units,
        sigma=sigma,
        scale_units=scale_units,
        policy_hash=policy_hash(parts),
        policy=parts,
    )


async def _sequential(study: Study, policy: Policy, advance: Advance) -> Thresholds:
    parts = describe_policy(study.config, policy, study.world_identity)
    tasks = fold(study, "calibration")
    rounds = rounds_of(study)
    calibrator = SequentialCalibrator(
        study.config.conformal.alpha, policy_hash=policy_hash(parts), policy=parts
    )
    for t, part in enumerate(cut_folds(tasks, rounds, study.config.split.seed), 1):
        gate = make_gate(calibrator.thresholds(rounds), study.config.gate_of(policy.name))
        scores = await run_fold(study, f"{CALIBRATE}-{t}", policy, gate, part, advance)
        calibrator.fit_round(t, scores.values[:, t - 1], units=scores.units, reached=scores.reached[:, t - 1])
    return calibrator.thresholds(rounds)


async def _lockstep(study: Study, policy: Policy, advance: Advance) -> Thresholds:
    parts = describe_policy(study.config, policy, study.world_identity)
    work = calibration_work(study, CALIBRATE, policy, None, fold(study, "calibration"))
    parts_of_fold = batches(work.tasks, work.seeds, study.batch_size)
    if len(parts_of_fold) != 1:
        raise UserError(
            f"conformal.mode is 'lockstep', but the calibration fold makes {len(parts_of_fold)} batches; it "
            "needs one (a larger world.batch and tasks of one shape), or choose mode 'pilot'"
        )
    gate = LockstepGate(study.config.conformal.alpha)
    await rollout(study.world, parts_of_fold[0], replace(policy, gate=gate), Trace(parts_of_fold[0]))
    advance(work.size)
    found = gate.thresholds(
        units=[task.family for task in work.tasks],
        policy_hash=policy_hash(parts),
        rounds=rounds_of(study),
    )
    return replace(found, policy=parts)


MODES: Mapping[str, Calibrate] = {
    "pilot": _pilot,
    "sequential": _sequential,
    "trajectory": _trajectory,
    "roundwise": _one_fold,
    "audit": _one_fold,
    "lockstep": _lockstep,
}


def folds_of(config: StudyConfig) -> tuple[str, ...]:
    """The folds in which calibrating a controller holds one discussion per task family."""
    if config.conformal.mode == "pilot":
        return ("pilot", "calibration")
    if config.conformal.mode == "trajectory" and config.conformal.scaled:
        return ("calibration", "train")
    return ("calibration",)


def planned_discussions(study: Study) -> int:
    """Discussions that calibrating one controller takes, for the progress bar."""
    folds = [study.folds[name] for name in folds_of(study.config) if name in study.folds]
    return sum(len(one_per_family(tasks, 0)) for tasks in folds)


async def calibrate(study: Study, policy: Policy, advance: Advance) -> Thresholds:
    """The thresholds of a controller's policy under the configured mode."""
    return await MODES[study.config.conformal.mode](study, policy, advance)
