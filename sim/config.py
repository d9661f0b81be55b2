"""The configuration of a study as typed, frozen objects; what `conf/` holds is parsed into these once.

A wrong key or value is one line naming it. Nothing here opens a world or touches a disk.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from controllers.card import Training
from sim.discussion.ending import Stop
from sim.discussion.objective import Objective
from sim.errors import UserError
from sim.worlds.cognitive import Cognition
from sim.worlds.language import LanguageSettings

BASELINES = ("hidden_pre", "hidden_post", "full_info")
_NOT_IDENTITY = ("output", "resume", "progress", "logger")


class TaskConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the tasks come from; fields that a source does not use stay null."""

    source: Literal["travel", "method", "demo", "file", "hub"]
    count: int | None = None
    seed: int = 0
    level: str | None = None
    n_agents: int = 4
    n_options: int = 3
    n_shared: int = 4
    path: str | None = None
    revision: str | None = None

    def __post_init__(self) -> None:
        if self.source in ("travel", "method") and (self.count is None or self.count < 1):
            raise UserError(f"task.count is {self.count}; give the number of tasks to generate, at least 1")
        if self.source == "file" and not self.path:
            raise UserError("task.path is missing; give the path of a task file in HiddenBench's form")
        if self.source == "hub" and not self.revision:
            raise UserError("task.revision is missing; pin the revision of the data set to download")


class SplitConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many task families (a number), or which share of them (a fraction), each fold gets."""

    train: int | float
    pilot: int | float
    calibration: int | float
    test: int | float
    seed: int = 0


class CognitiveWorldConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="cognitive"
):
    """Synthetic agents; `novelty` is measured on the clues' texts, or drawn where tasks have none."""

    horizon: int | None = None
    batch: int = 2048
    novelty: Literal["measured", "drawn"] = "measured"
    cognition: Cognition = Cognition()

    def __post_init__(self) -> None:
        _check_horizon(self.horizon)
        if self.batch < 1:
            raise UserError(f"world.batch is {self.batch}; it must be at least 1")


class LanguageWorldConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="language"
):
    """Language-model agents; `in_flight` discussions run at the same time."""

    horizon: int | None = None
    in_flight: int = 8
    settings: LanguageSettings = LanguageSettings()

    def __post_init__(self) -> None:
        _check_horizon(self.horizon)
        if self.in_flight < 1:
            raise UserError(f"world.in_flight is {self.in_flight}; it must be at least 1")


class MenuConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which interventions are admissible."""

    vote: bool = False
    without: tuple[str, ...] = ()


class RoutingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who an intervention is addressed to."""

    name: str = "action_conditional"


class ConformalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which certificate, at which level of miscoverage."""

    mode: Literal["pilot", "sequential", "trajectory", "roundwise", "lockstep", "audit"] = "pilot"
    alpha: float = 0.1
    scaled: bool = True
    """Mode `trajectory`: scale each round by the base policy's scores on the training fold (else by 1)."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise UserError(f"conformal.alpha is {self.alpha}; the miscoverage level must lie in (0, 1)")


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition that differs from the study's defaults: another router, menu or stop rule (an ablation)."""

    controller: str
    routing: str | None = None
    without: tuple[str, ...] | None = None
    vote: bool | None = None
    stop: Stop | None = None


class StudyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One study: tasks, world, policies, certificate, and what to compare. The root of `conf/`."""

    name: str
    seed: int
    task: TaskConfig
    split: SplitConfig
    world: CognitiveWorldConfig | LanguageWorldConfig
    engine: dict[str, Any]
    model: dict[str, Any]
    objective: Objective
    routing: RoutingConfig
    menu: MenuConfig
    stop: Stop
    training: Training
    conformal: ConformalConfig
    explore_seeds: tuple[int, ...]
    test_seeds: tuple[int, ...]
    conditions: tuple[str, ...]
    certified: tuple[str, ...]
    variants: dict[str, Variant] = msgspec.field(default_factory=dict)
    exhaustive: bool = True
    record: Literal["branches", "decisions", "episodes"] = "branches"
    reference: str = "hidden_post"
    from_run: str | None = None
    replay: str | None = None
    notice: str = ""
    output: str = "runs"
    resume: str | None = None
    progress: bool = True
    logger: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.name):
            raise UserError(f"name is {self.name!r}; use letters, digits, '_', '-' and '.' only")
        for field in ("conditions", "certified", "explore_seeds", "test_seeds"):
            values = getattr(self, field)
            if len(set(values)) < len(values):
                raise UserError(f"{field} is {list(values)}; every entry may stand there once")
        stray = [name for name in self.certified if name not in self.conditions]
        if stray:
            raise UserError(f"certified names {stray[0]!r}, which is not among conditions; add it there too")
        if not self.conditions or not self.test_seeds:
            raise UserError("conditions and test_seeds must each name at least one")

    def variant(self, condition: str) -> Variant:
        """What a condition runs: its entry in `variants`, else the controller of that name."""
        return self.variants.get(condition, Variant(condition))

    @property
    def learned(self) -> tuple[str, ...]:
        """The learned controllers among the conditions."""
        named = {self.variant(condition).controller for condition in self.conditions}
        return tuple(sorted(named & {"mlp", "mlp_vote"}))


def _check_horizon(horizon: int | None) -> None:
    if horizon is not None and horizon < 1:
        raise UserError(f"world.horizon is {horizon}; give at least 1, or null for 8 (2N where N > 4)")


def parse(data: Mapping[str, Any]) -> StudyConfig:
    """The typed configuration; UserError with the path of the first wrong key or value."""
    try:
        return msgspec.convert(data, StudyConfig, strict=True)
    except msgspec.ValidationError as error:
        raise UserError(f"config: {_readable(str(error))}") from error


def _readable(message: str) -> str:
    """msgspec's message with the config path first: `conformal.alpha: Expected ...`."""
    found = re.fullmatch(r"(?s)(.*) - at `(?:\$\.?)?(.*)`", message)
    return f"{found[2]}: {found[1]}" if found and found[2] else message


def identity_hash(data: Mapping[str, Any]) -> str:
    """Hash of what decides a study's results: the configuration without where and how it is written."""
    kept = {key: value for key, value in data.items() if key not in _NOT_IDENTITY}
    encoded = msgspec.json.encode(kept, order="sorted")
    return hashlib.blake2b(encoded, digest_size=5).hexdigest()
