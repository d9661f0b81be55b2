"""What a study must be before its run directory is made: everything a user could have got wrong, found at once.

The types of `sim.config` check each value by itself; here values are held against each other and the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from conformal.ranks import exact_level
from controllers.registry import PROMPTED
from sim.config import BASELINES, GATE_SUFFIX, SCREEN_SUFFIX, LanguageWorldConfig, StudyConfig
from sim.engines.models import parse_model
from sim.errors import UserError, shown
from sim.parsing import check_seed
from sim.records.run_dir import read_config
from sim.studies.calibration import longest_horizon
from sim.studies.conditions import check_condition, is_baseline
from sim.studies.language import check_served
from sim.studies.study import Tasks
from sim.worlds.protocol import shape_of


def check_config(config: StudyConfig) -> None:
    """Raise UserError where seeds, conditions or the runs named by the configuration cannot be used."""
    for name, seed in _seeds(config):
        check_seed(name, seed)
    for condition in config.conditions:
        if not is_baseline(condition):
            check_condition(config, condition)
    for condition in config.certified:
        if is_baseline(condition):
            raise UserError(
                f"certified names {condition!r}, a baseline without proposals; certify controllers only"
            )
    _check_levels(config)
    _check_prompted(config)
    _check_reference(config)
    _check_seats(config)
    if isinstance(config.world, LanguageWorldConfig) and config.replay is None:
        check_served(config)
    if config.trained and not config.explore_seeds:
        raise UserError(
            f"explore_seeds is empty, but {config.trained[0]!r} learns from exploration; give at least one"
        )
    for run in _runs_read(config):
        read_config(Path(run))


def _seeds(config: StudyConfig) -> Iterator[tuple[str, int]]:
    yield "seed", config.seed
    yield "task.seed", config.task.seed
    yield "split.seed", config.split.seed
    yield "training.seed", config.training.seed
    for name in ("explore_seeds", "test_seeds"):
        for seed in getattr(config, name):
            yield f"{name}: an entry", seed


def _check_levels(config: StudyConfig) -> None:
    """Ranks are exact for levels that are fractions; one too near 0 or 1 is none."""
    for name, level in (
        ("conformal.alpha", config.conformal.alpha),
        ("screening.alpha_s", config.screening.alpha_s),
    ):
        try:
            exact_level(level)
        except ValueError as error:
            raise UserError(f"{name} is {level}; give a level from 0.000001 to 0.999999") from error


def _check_prompted(config: StudyConfig) -> None:
    """A prompted controller asks the model that speaks in the discussions; without one it has nobody to ask."""
    if isinstance(config.world, LanguageWorldConfig) and config.replay is None:
        return
    for condition in config.conditions:
        if config.variant(condition).controller in PROMPTED:
            raise UserError(
                f"conditions names {condition!r}, which asks a language model; choose world=language (and no "
                "replay), or leave it out"
            )


def _check_seats(config: StudyConfig) -> None:
    """Groups of several models are for language worlds; every seated member's model must be one."""
    if config.seats.order and not isinstance(config.world, LanguageWorldConfig):
        raise UserError("seats.order names language models; choose world=language, or seats=one_model")
    for name in config.seats.order:
        member = config.seats.members[name]
        try:
            parse_model(member.model)
        except UserError as error:
            raise UserError(f"seats.members.{name}: {error}") from error
        if member.urls and member.served(config.engine).get("kind") != "openai_server":
            raise UserError(
                f"seats.members.{name}.urls is {shown(list(member.urls))}, but its engine is no client of servers; "
                "choose engine=openai_server, or leave the urls out"
            )


def _check_reference(config: StudyConfig) -> None:
    known = {
        *BASELINES,
        *config.conditions,
        *(name + GATE_SUFFIX for name in config.certified),
        *(name + SCREEN_SUFFIX for name in config.screened),
    }
    if config.reference not in known:
        raise UserError(
            f"reference is {shown(config.reference)}; it must be a condition of this study: "
            + ", ".join(sorted(known))
        )


def _runs_read(config: StudyConfig) -> Iterator[str]:
    """Run directories that the study will read from."""
    learners = (config.variant(name).learner for name in config.conditions)
    for run in (config.from_run, config.replay, *(learner.from_run for learner in learners if learner)):
        if run is not None:
            yield run


def check_folds(config: StudyConfig, folds: Mapping[str, Tasks]) -> None:
    """Raise UserError where a group does not fit a task's seats, or the calibration fold cannot serve the
    certificate's mode."""
    _check_everybody_sits(config, folds)
    tasks = folds.get("calibration", ())
    if not (config.certified and tasks):
        return
    if config.conformal.mode == "sequential":
        _check_sequential(config, folds)
    if config.conformal.mode == "lockstep":
        _check_lockstep(config, tasks)


def _check_everybody_sits(config: StudyConfig, folds: Mapping[str, Tasks]) -> None:
    if config.seats.rotate != "none":
        return
    for task in (task for part in folds.values() for task in part):
        if len(config.seats.order) > task.n_agents:
            raise UserError(
                f"seats.order names {len(config.seats.order)} members, but task {task.id} has {task.n_agents} "
                "agents; leave some out, or let seats.rotate give everybody a turn"
            )


def _check_sequential(config: StudyConfig, folds: Mapping[str, Tasks]) -> None:
    every = tuple(task for part in folds.values() for task in part)
    rounds = longest_horizon(every, config.world.horizon)
    families = len({task.family for task in folds["calibration"]})
    if families < rounds:
        raise UserError(
            f"conformal.mode is 'sequential', which needs a fold for each of {rounds} rounds, but the "
            f"calibration fold has {families} task families; give split.calibration more, or use mode 'pilot'"
        )


def _check_lockstep(config: StudyConfig, tasks: Tasks) -> None:
    limit = getattr(config.world, "batch", 1)
    families, shapes = len({task.family for task in tasks}), len({shape_of(task) for task in tasks})
    if families > limit or shapes > 1:
        raise UserError(
            f"conformal.mode is 'lockstep', but the calibration fold has {families} families of {shapes} "
            f"shapes and world.batch is {limit}; it needs one batch of one shape, or choose mode 'pilot'"
        )
