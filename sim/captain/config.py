"""The configuration of a captain study as typed, frozen objects; `conf/captain.yaml` is parsed into these once.

A condition is a method with the settings in which it differs. Nothing here opens an engine or a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from sim.captain.sandbox import ExecutorName, Limits
from sim.config import ConformalConfig
from sim.discussion.ending import Stop
from sim.discussion.objective import Objective
from sim.errors import UserError, shown
from sim.parsing import typed

Speaker: TypeAlias = Literal["rules", "llm", "round_robin", "random", "controlled"]
Scenario: TypeAlias = Literal[
    "mathematics", "programming", "data_analysis", "science", "information_retrieval"
]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
MOST_MEMBERS = 8
"""So that every member, every first answer, "none of these" and the executor have a letter of their own."""


class Control(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `controlled` speaker policy: the communication controller, its router and its certificate.

    `exhaustive` evaluates every branch of the talk, which thresholds need and calibration measures.
    """

    controller: str = "rules"
    routing: str = "action_conditional"
    objective: Objective = Objective()
    stop: Stop = Stop()
    vote: bool = False
    exhaustive: bool = False
    rounds: Positive = 4
    max_words: Positive = 60
    path: str | None = None
    """Folder of a trained controller."""
    thresholds: str | None = None
    """Thresholds calibrated on the talks of other problems."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a method may do and spend; `budget` is in tokens, prompt and completion together."""

    budget: Positive = 60_000
    rounds: Positive = 5
    talk_rounds: Positive = 8
    rechecks: Annotated[int, msgspec.Meta(ge=0)] = 1
    team_size: Annotated[int, msgspec.Meta(ge=1, le=MOST_MEMBERS)] = 4
    top_k: Positive = 3
    retriever: Literal["auto", "embedding", "bm25"] = "auto"
    similarity: dict[str, float] = msgspec.field(default_factory=lambda: {"embedding": 0.3, "bm25": 0.6})
    speaker: Speaker = "rules"
    agents: bool = True
    tools: bool = True
    reflector: bool = True
    plant: bool = False
    tests_visible: bool = False
    backbone: str = "default"
    expert_backbone: str | None = None
    reply_tokens: Positive = 768
    field_tokens: Positive = 96
    temperature: float = 0.7
    top_p: float = 0.95
    executor: ExecutorName = "auto"
    limits: Limits = Limits()
    control: Control = Control()

    def __post_init__(self) -> None:
        if set(self.similarity) != {"embedding", "bm25"}:
            raise UserError("captain.similarity needs exactly two thresholds: embedding and bm25")


class ProblemsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where problems come from: the built-in sets, or a path in a published form.

    `count` takes the first so many of each scenario; `corpus` is what information retrieval searches.
    """

    source: Literal["builtin", "humaneval", "math", "dabench", "scibench", "gaia"]
    scenarios: tuple[Scenario, ...] = ()
    path: str | None = None
    corpus: str | None = None
    count: int | None = None
    levels: tuple[int, ...] = ()


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars per million tokens."""

    prompt: float
    completion: float


class Condition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the tables: a method, and the settings in which it differs from the study's."""

    method: str
    settings: dict[str, Any] = {}


_USUAL = {name: {"method": name} for name in ("single", "captain")}


class Backbone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A language model beside the default one."""

    engine: dict[str, Any]
    model: dict[str, Any]


class CaptainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One captain study. The root of `conf/captain.yaml`."""

    name: str
    seeds: tuple[int, ...]
    captain: Settings
    problems: ProblemsConfig
    prices: dict[str, Price]
    engine: dict[str, Any]
    model: dict[str, Any]
    conditions: dict[str, Condition]
    reference: str
    conformal: ConformalConfig = ConformalConfig()
    backbones: dict[str, Backbone] = {}
    library: str | None = None
    tools: str | None = None
    in_flight: Positive = 4
    problem: str | None = None
    calibrate: str | None = None
    notice: str = ""
    output: str = "runs"
    resume: str | None = None
    progress: bool = True
    logger: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.name):
            raise UserError(f"name is {shown(self.name)}; use letters, digits, '_', '-' and '.' only")
        if self.problem is not None and not self.problem.strip():
            raise UserError("problem is empty; give the problem as text, or problem=null for a study")
        if not self.conditions or not self.seeds:
            raise UserError("conditions and seeds must each name at least one")
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"seeds is {list(self.seeds)}; every seed may stand there once")
        if self.reference not in self.conditions:
            raise UserError(
                f"reference is {shown(self.reference)}; it must be one of {', '.join(self.conditions)}"
            )
        for name in self.conditions:
            settings = self.settings_of(name)
            for backbone in {settings.backbone, settings.expert_backbone or "default"} - {"default"}:
                if backbone not in self.backbones:
                    raise UserError(
                        f"conditions.{name}: backbone {shown(backbone)} is not among backbones; describe it there"
                    )

    def settings_of(self, condition: str) -> Settings:
        """The settings of a condition: the study's with its own in their place."""
        own = self.conditions[condition].settings
        merged = _merged(msgspec.to_builtins(self.captain), own)
        return typed(merged, Settings, f"conditions.{condition}.settings")


def _merged(base: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    return base | {
        key: _merged(base[key], value)
        if isinstance(value, Mapping) and isinstance(base.get(key), dict)
        else value
        for key, value in own.items()
    }


def parse(data: Mapping[str, Any]) -> CaptainConfig:
    """The typed configuration; UserError with the path of the first wrong key or value."""
    conditions = data.get("conditions") or _USUAL
    reference = data.get("reference") or next(iter(conditions))
    return typed({**data, "conditions": conditions, "reference": reference}, CaptainConfig, "config")
