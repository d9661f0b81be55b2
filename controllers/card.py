"""The settings of a training run and the card that is kept beside every checkpoint. Plain data: no torch."""

from __future__ import annotations

from typing import Literal

import msgspec

from controllers.dataset import Statistics
from sim.discussion.inputs import STATE_GROUPS, STATE_NAMES
from sim.errors import UserError
from sim.parsing import typed

LAYOUT = 1
"""Version of the checkpoint layout and of what the state vector's columns mean."""

Group = Literal["belief", "information", "cost"]
Target = Literal["delta_centred", "delta", "objective", "soft_labels", "hard_argmin", "expected_regret"]
Horizon = Literal["one_step", "rollout", "task_accuracy"]


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an MLP is trained (METHOD 8). The default target regresses J centred over the admissible branches:
    it estimates a conditional mean, so noise in the realised branches does not bias it, and it spends nothing
    on what all branches share."""

    target: Target = "delta_centred"
    horizon: Horizon = "one_step"
    groups: tuple[Group, ...] = ("belief", "information", "cost")
    hidden: int = 64
    depth: int = 2
    """Number of hidden layers."""
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    epochs: int = 60
    patience: int = 10
    """Epochs without a better validation loss before training stops."""
    batch_size: int = 256
    tau: float = 0.05
    """Temperature of `soft_labels`, in units of J."""
    entropy: float = 0.002
    """Weight of the entropy bonus of `expected_regret`."""
    validation: float = 0.2
    """Share of the task families held out for early stopping."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("hidden", "depth", "epochs", "patience", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"training.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("learning_rate", "tau"):
            if not getattr(self, name) > 0:
                raise UserError(f"training.{name} is {getattr(self, name)}; it must be positive")
        for name in ("weight_decay", "entropy"):
            if not getattr(self, name) >= 0:
                raise UserError(f"training.{name} is {getattr(self, name)}; it must be at least 0")
        if not 0 < self.validation < 1:
            raise UserError(f"training.validation is {self.validation}; it must lie strictly between 0 and 1")
        if not self.groups or len(set(self.groups)) < len(self.groups):
            raise UserError(f"training.groups is {list(self.groups)}; name each group once, at least one")
        if self.horizon == "task_accuracy" and self.target == "delta":
            raise UserError(
                "training.target is 'delta' with horizon 'task_accuracy': a mistake minus J means nothing; "
                "use objective or delta_centred"
            )

    def columns(self) -> list[int]:
        """The columns of the state vector that are used, in order."""
        return [i for i, name in enumerate(STATE_NAMES) if STATE_GROUPS[name] in self.groups]


class CurvePoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One epoch of a learning curve."""

    epoch: int
    """1-based."""
    learning_rate: float
    train_loss: float
    """Mean over the epoch's batches, while the weights moved."""
    validation_loss: float
    validation_regret: float | None
    """Mean cost of the proposal minus that of the best labelled branch, on the validation tasks; null where
    no decision has two labelled branches."""


class Validation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The kept weights on the validation tasks, and what they are held against: regret among the
    labelled branches, of a uniform draw and of the best single intervention of the training tasks."""

    families: int
    decisions: int
    best_epoch: int
    loss: float
    regret: float | None
    uniform_regret: float | None
    constant_regret: float | None
    constant_action: str
    unlabelled_decisions: int
    """Decisions, training and validation, that carried too few labels to be learned from."""


class ModelCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint is: what it reads, what it predicts, what it was trained on and how it went."""

    layout: int
    name: str
    actions: tuple[str, ...]
    """The interventions predicted, in the order of the outputs."""
    state_names: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    """Standardisation of the columns used; a constant column has scale 1."""
    training: Training
    train_tasks: tuple[str, ...]
    validation_tasks: tuple[str, ...]
    statistics: Statistics
    validation: Validation
    curve: tuple[CurvePoint, ...]
    weights_hash: str
    versions: dict[str, str]


def parse_training(settings: object) -> Training:
    """Training settings from parsed config. Raises UserError naming the field."""
    try:
        return typed(settings, Training, strict=False)
    except UserError as problem:
        text = str(problem)
        raise UserError(text if text.startswith("training.") else f"training: {text}") from problem
