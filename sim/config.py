"""The configuration of a study as typed, frozen objects; what `conf/` holds is parsed into these once.

A wrong key or value is one line naming it. Nothing here opens a world or touches a disk.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from controllers.card import Training, parse_training
from sim.discussion.ending import DecisionRule, Each, Horizon, Stop
from sim.discussion.objective import Objective
from sim.discussion.seating import Rotation
from sim.errors import UserError, shown
from sim.parsing import typed
from sim.worlds.cognitive import Cognition
from sim.worlds.language import LanguageSettings

BASELINES = ("hidden_pre", "hidden_post", "full_info")
GATE_SUFFIX = "+gate"
SCREEN_SUFFIX = "+screen"
DRAW_MARK = "#"
"""Between a condition and the draw of its training tasks."""
FOLD_MARK = "-without-"
"""Between a condition and the part of the test tasks that one of its networks has not seen."""
LEARNED = ("mlp", "mlp_vote")
Fold = Literal["train", "pilot", "calibration", "test"]
GateKind = Literal["replace", "sample"]
SAMPLED_MODES = ("pilot", "sequential", "roundwise")
"""Modes in which the executed branch may be drawn from the conformal set."""
_NOT_IDENTITY = ("output", "resume", "progress", "plan", "throughput", "logger")


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
    screening: int | float = 0
    seed: int = 0
    swap: bool = False
    """Calibration and test fold trade places: two runs then calibrate each other's half (METHOD 8)."""


class CognitiveWorldConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="cognitive"
):
    """Synthetic agents; `novelty` is measured on the clues' texts, or drawn where tasks have none."""

    horizon: Horizon = None
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

    horizon: Horizon = None
    in_flight: int = 8
    settings: LanguageSettings = LanguageSettings()

    def __post_init__(self) -> None:
        _check_horizon(self.horizon)
        if self.in_flight < 1:
            raise UserError(f"world.in_flight is {self.in_flight}; it must be at least 1")


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model of a mixed group, and what serves it: an engine of its own, or else the study's engine, with
    these servers if any are named."""

    model: dict[str, Any]
    urls: tuple[str, ...] = ()
    engine: dict[str, Any] | None = None

    def served(self, engine: Mapping[str, Any]) -> Mapping[str, Any]:
        """The configuration of its engine, where `engine` is the study's."""
        chosen = engine if self.engine is None else self.engine
        return {**chosen, "urls": list(self.urls)} if self.urls else chosen


class SeatsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which models sit in a language group, by seat; without an order all seats are the study's model.

    Members that are not in the order are not started.
    """

    members: dict[str, Member] = msgspec.field(default_factory=dict)
    order: tuple[str, ...] = ()
    """Members by seat; `sim.discussion.seating` says how it is rotated, repeated and cut."""
    rotate: Rotation = "both"

    def __post_init__(self) -> None:
        for name in self.order:
            if name not in self.members:
                raise UserError(
                    f"seats.order names {shown(name)}, which is no member; it must be one of "
                    + (", ".join(self.members) or "seats.members, which is empty")
                )


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
    gate: GateKind = "replace"
    """A refused proposal is replaced by the best branch; or every execution is drawn from the conformal set."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise UserError(f"conformal.alpha is {self.alpha}; the miscoverage level must lie in (0, 1)")


class ScreeningConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Screened certification (METHOD 7): how often a pruned branch may matter, and how that is calibrated."""

    alpha_s: float = 0.01
    band: Literal["procedure", "union"] = "procedure"
    audit_fraction: float = 0.1
    """Share of the decisions that are evaluated in full all the same, to observe coverage."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha_s < 1:
            raise UserError(f"screening.alpha_s is {self.alpha_s}; it must lie in (0, 1), well below alpha")
        if not 0 <= self.audit_fraction <= 1:
            raise UserError(f"screening.audit_fraction is {self.audit_fraction}; it must lie in [0, 1]")


class ExplorationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which branches are evaluated to learn from: all at every state of one path (`one_step`), or every branch
    of every branch down to `depth` rounds (`tree`; null: to the end)."""

    mode: Literal["one_step", "tree"] = "one_step"
    behaviour: str = "random"
    """The controller that picks the branch committed; a tree notes its picks and expands them all."""
    depth: int | None = None
    folds: tuple[Fold, ...] = ("train",)

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth < 1:
            raise UserError(
                f"exploration.depth is {self.depth}; give at least 1, or null for whole discussions"
            )
        if self.depth is not None and self.mode == "one_step":
            raise UserError(
                f"exploration.depth is {self.depth}, but mode one_step explores whole discussions; set depth=null"
            )


class Learner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a learned condition is trained on, where that is not the whole train fold (METHOD 8's protocols)."""

    families: int | None = None
    """So many task families, drawn at random; null: all of them."""
    draws: int = 1
    """Independent draws of the families, each a condition of its own, `name#draw`, trained from its own seed."""
    drawn_from: Literal["train", "train_and_test"] = "train"
    """From which folds; test tasks that were drawn are left out of that draw's evaluation."""
    test_tasks: Literal["none", "other_folds", "all"] = "none"
    """Test tasks trained on beside them: `other_folds` cuts the test fold by family and evaluates each part
    with a model that has not seen it (cross-fitting); `all` is trained on the very tasks it is evaluated on."""
    folds: int | None = None
    """Parts of `other_folds`; null: one per family (leave one family out)."""
    training: dict[str, Any] = msgspec.field(default_factory=dict)
    """Training settings that differ from the study's."""
    from_run: str | None = None
    """Take the trained controller of another run instead; nothing is trained."""

    def __post_init__(self) -> None:
        for name, least in (("families", 1), ("draws", 1), ("folds", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"learner.{name} is {value}; it must be at least {least}")
        if self.folds is not None and self.test_tasks != "other_folds":
            raise UserError("learner.folds cuts the test fold; it needs test_tasks=other_folds")
        if self.families is None and (self.draws > 1 or self.drawn_from != "train"):
            raise UserError("learner.families is null; give the number of families of a draw")
        if self.drawn_from != "train" and self.test_tasks != "none":
            raise UserError(
                f"learner.test_tasks is {self.test_tasks!r} with drawn_from {self.drawn_from!r}; draw from the "
                "train fold, or use test_tasks=none"
            )


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition that differs from the study's defaults: another router, menu, stop rule, gate or training
    (an ablation)."""

    controller: str
    routing: str | None = None
    without: tuple[str, ...] | None = None
    vote: bool | None = None
    stop: Stop | None = None
    gate: GateKind | None = None
    learner: Learner | None = None

    def __post_init__(self) -> None:
        if self.learner is not None and self.controller not in LEARNED:
            raise UserError(
                f"a variant of {self.controller!r} has a learner; only {' and '.join(LEARNED)} are trained"
            )


class Throughput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens a second that one GPU reads (outside the prefix cache) and writes, with many requests in flight, for
    a model of one billion active parameters; a larger one is slower in proportion."""

    prefill: float = 200_000
    decode: float = 40_000

    def __post_init__(self) -> None:
        for name in ("prefill", "decode"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"throughput.{name} is {getattr(self, name)}; give tokens a second, above 0")


class LoggerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether and where finished runs are tracked; `timeout_s` bounds what a job spends on it."""

    kind: Literal["none", "wandb"] = "none"
    mode: Literal["offline", "online"] = "offline"
    project: str = "consilience"
    entity: str | None = None
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < math.inf:
            raise UserError(f"logger.timeout_s is {self.timeout_s}; it must be positive")


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
    exploration: ExplorationConfig
    explore_seeds: tuple[int, ...]
    test_seeds: tuple[int, ...]
    conditions: tuple[str, ...]
    certified: tuple[str, ...]
    screened: tuple[str, ...] = ()
    screening: ScreeningConfig = ScreeningConfig()
    seats: SeatsConfig = SeatsConfig()
    decision: DecisionRule = "plurality"
    """How final votes become the group's decision."""
    variants: dict[str, Variant] = msgspec.field(default_factory=dict)
    contrasts: dict[str, tuple[str, str]] = msgspec.field(default_factory=dict)
    """Paired comparisons to tabulate: label -> (condition, the one it is compared with)."""
    arms: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """Runs of their own that differ from this configuration: name -> {dotted key: value}."""
    transfer: bool = False
    """Evaluate in every arm what was trained in the others, too."""
    exhaustive: bool = True
    record: Literal["branches", "decisions", "episodes"] = "branches"
    reference: str = "hidden_post"
    from_run: str | None = None
    replay: str | None = None
    notice: str = ""
    output: str = "runs"
    resume: str | None = None
    progress: bool = True
    plan: bool = False
    throughput: Throughput = Throughput()
    logger: LoggerConfig = LoggerConfig()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.name):
            raise UserError(f"name is {self.name!r}; use letters, digits, '_', '-' and '.' only")
        if not self.output:
            raise UserError("output is empty; name the folder where run directories are made")
        for field in ("conditions", "certified", "explore_seeds", "test_seeds"):
            values = getattr(self, field)
            if len(set(values)) < len(values):
                raise UserError(f"{field} is {list(values)}; every entry may stand there once")
        self._check_screened()
        stray = [name for name in self.certified if name not in self.conditions]
        if stray:
            raise UserError(
                f"certified names {stray[0]!r}, which is not among conditions ({', '.join(self.conditions)}); add "
                "it there, or say what is to be certified: certified=[...], or certified=[] for nothing"
            )
        if not self.conditions or not self.test_seeds:
            raise UserError("conditions and test_seeds must each name at least one")
        for name in self.conditions:
            if any(mark in name for mark in (GATE_SUFFIX, SCREEN_SUFFIX, DRAW_MARK, "/")):
                raise UserError(
                    f"conditions names {name!r}; '+gate', '#' and '/' stand for something in a name"
                )
        self._check_contrasts()
        self._check_certified()
        if self.transfer and not self.arms:
            raise UserError("transfer is on, but there are no arms to transfer between")

    def _check_contrasts(self) -> None:
        known = {*self.conditions, *(name + GATE_SUFFIX for name in self.certified)}
        for label, pair in self.contrasts.items():
            if pair[0] == pair[1]:
                raise UserError(f"contrasts.{label} compares {pair[0]!r} with itself; name two conditions")
            for name in pair:
                if name not in known:
                    raise UserError(
                        f"contrasts.{label} names {name!r}, which is no condition of this study; it must be "
                        f"one of {', '.join(sorted(known))}"
                    )

    def _check_certified(self) -> None:
        for name in self.certified:
            variant = self.variant(name)
            learner = variant.learner or Learner()
            if learner.draws > 1 or learner.test_tasks != "none" or learner.drawn_from != "train":
                raise UserError(
                    f"certified names {name!r}, which is several models or has seen test tasks; certify a "
                    "condition with one model trained on the train fold"
                )
            if self.gate_of(name) == "sample" and self.conformal.mode not in SAMPLED_MODES:
                raise UserError(
                    f"{name!r} has gate 'sample' with conformal.mode {self.conformal.mode!r}; it needs one of "
                    + ", ".join(SAMPLED_MODES)
                )

    def _check_screened(self) -> None:
        for name in self.screened:
            if name not in self.certified:
                raise UserError(f"screened names {name!r}, which is not among certified; add it there too")
            if self.variant(name).controller in ("greedy", "best_of_4_free"):
                raise UserError(f"screened names {name!r}, which needs every branch evaluated; leave it out")
            if self.gate_of(name) != "replace" or self.conformal.mode == "audit":
                raise UserError(f"screened names {name!r}, whose gate does not replace by the best branch")
        if self.screened and self.screening.alpha_s >= self.conformal.alpha:
            raise UserError(
                f"screening.alpha_s is {self.screening.alpha_s}; accepting blindly gives alpha = "
                f"{self.conformal.alpha} already, so it must lie well below"
            )

    def variant(self, condition: str) -> Variant:
        """What a condition runs: its entry in `variants`, else the controller of that name. A draw of a
        condition (`name#3`) runs what the condition does."""
        name = condition.partition(DRAW_MARK)[0]
        return self.variants.get(name, Variant(name))

    def training_of(self, condition: str) -> Training:
        """The training settings of a condition. UserError naming a setting of its learner that is wrong."""
        learner = self.variant(condition).learner
        changes = learner.training if learner else {}
        return parse_training({**msgspec.to_builtins(self.training), **changes})

    def gate_of(self, condition: str) -> GateKind:
        """What a condition's gate does."""
        return self.variant(condition).gate or self.conformal.gate

    @property
    def learned(self) -> tuple[str, ...]:
        """The learned controllers that this study trains or reads from another run."""
        named = {self.variant(condition).controller for condition in self.conditions}
        return tuple(sorted(named & set(LEARNED)))

    @property
    def trained(self) -> tuple[str, ...]:
        """The conditions whose controllers this study trains itself."""
        return tuple(
            name
            for name in self.conditions
            if (variant := self.variant(name)).controller in LEARNED
            and not (self.from_run if variant.learner is None else variant.learner.from_run)
        )


def _check_horizon(horizon: Horizon) -> None:
    messages = horizon.each if isinstance(horizon, Each) else horizon
    if messages is not None and messages < 1:
        raise UserError(f"world.horizon is {messages}; give at least 1, or null for 8 (2N where N > 4)")


def parse(data: Mapping[str, Any]) -> StudyConfig:
    """The typed configuration; UserError with the path of the first wrong key or value."""
    return typed(data, StudyConfig, "config")


def identity_hash(data: Mapping[str, Any]) -> str:
    """Hash of what decides a study's results: the configuration without where and how it is written."""
    kept = {key: value for key, value in data.items() if key not in _NOT_IDENTITY}
    encoded = msgspec.json.encode(kept, order="sorted")
    return hashlib.blake2b(encoded, digest_size=5).hexdigest()
