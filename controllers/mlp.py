"""The learned controller: the intervention with the lowest predicted cost. Saved as safetensors with a JSON
card beside it; inference is numpy. How it was trained is `controllers.training`'s business.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from controllers.card import LAYOUT, ModelCard
from controllers.dataset import Numbers
from controllers.network import Network
from sim.arrays import Floats, Ints
from sim.discussion.actions import ACTION_NAMES, Candidates, parse_action
from sim.discussion.inputs import STATE_NAMES, state_vector
from sim.discussion.public import PublicView
from sim.discussion.state import Features
from sim.errors import UserError, shown

WEIGHTS_FILE = "mlp.safetensors"
CARD_FILE = "mlp.json"


@dataclass(frozen=True)
class MLP:
    """Proposes the admissible intervention of lowest predicted cost; ties to the first column.

    `mlp_vote` is the same network, trained and run with the vote on the menu.
    """

    network: Network
    card: ModelCard

    @property
    def name(self) -> str:
        """`mlp` or `mlp_vote`."""
        return self.card.name

    def predict(self, view: PublicView, features: Features, candidates: Candidates) -> Floats:
        """Predicted cost (B, C) of each candidate; +inf where it is inadmissible or was not trained on.

        With the default target it is ΔJ less its mean over the candidates, in units of J; else what the
        card's target says.
        """
        outputs = self.network(state_vector(view, features, candidates))
        padded = np.full((len(outputs), len(ACTION_NAMES)), np.inf)
        padded[:, [parse_action(name) for name in self.card.actions]] = outputs
        costs = np.take_along_axis(padded, candidates.actions, axis=1)
        costs[~candidates.admissible] = np.inf
        return _centred(costs) if self.card.training.target == "delta_centred" else costs

    async def propose(self, view: PublicView, features: Features, candidates: Candidates) -> Ints:
        """The proposals (B,). Raises UserError where none of the admissible interventions was trained on."""
        costs = self.predict(view, features, candidates)
        if np.isinf(costs).all(axis=1).any():
            raise UserError(
                f"controller {self.name}: it knows {', '.join(self.card.actions)}, and none of these is "
                "admissible; train it on this menu"
            )
        proposals: Ints = candidates.actions[np.arange(view.size), costs.argmin(1)]
        return proposals

    def describe(self) -> dict[str, object]:
        """Name, what it predicts, and the hash of everything that decides an output."""
        return {
            "name": self.name,
            "actions": list(self.card.actions),
            "layout": self.card.layout,
            "state_names": list(self.card.state_names),
            "target": self.card.training.target,
            "horizon": self.card.training.horizon,
            "weights": self.card.weights_hash,
        }


def _centred(costs: Floats) -> Floats:
    """Costs (B, C) less their mean over the finite ones."""
    known = np.isfinite(costs)
    total = np.where(known, costs, 0.0).sum(1, keepdims=True)
    centred: Floats = costs - total / np.maximum(known.sum(1, keepdims=True), 1)
    return centred


def save(model: MLP, folder: Path) -> None:
    """Write weights and card into a folder, replacing it; it appears whole or not at all."""
    from safetensors.numpy import save as to_bytes

    staging = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    (staging / WEIGHTS_FILE).write_bytes(to_bytes(model.network.tensors()))
    card = msgspec.json.format(msgspec.json.encode(model.card), indent=2)
    (staging / CARD_FILE).write_bytes(card)
    if folder.exists():
        shutil.rmtree(folder)
    staging.rename(folder)


def load(folder: Path) -> MLP:
    """The controller saved in a folder.

    Raises UserError naming the file where it is missing or damaged, reads another state layout than this
    version computes, or has weights that are not the card's.
    """
    card = _read_card(folder / CARD_FILE)
    path = folder / WEIGHTS_FILE
    tensors = _read_tensors(path)
    layers = card.training.depth + 1
    names = [f"{depth}.{part}" for depth in range(layers) for part in ("weight", "bias")]
    if sorted(tensors) != sorted(names):
        raise UserError(f"{path}: holds {shown(sorted(tensors))}; the card asks for {layers} layers")
    network = Network(
        columns=np.array(card.training.columns(), np.int64),
        mean=np.array(card.mean),
        scale=np.array(card.scale),
        weights=tuple(tensors[f"{depth}.weight"] for depth in range(layers)),
        biases=tuple(tensors[f"{depth}.bias"] for depth in range(layers)),
    )
    if network.digest() != card.weights_hash:
        raise UserError(f"{path}: weights are not those of {CARD_FILE}; keep both files of one training run")
    return MLP(network, card)


def _read_card(path: Path) -> ModelCard:
    try:
        card = msgspec.json.decode(path.read_bytes(), type=ModelCard)
    except OSError as problem:
        raise UserError(f"{path}: no model card: {problem.strerror}; train a controller first") from problem
    except msgspec.DecodeError as problem:
        raise UserError(f"{path}: not a model card: {problem}") from problem
    if card.layout != LAYOUT:
        raise UserError(f"{path}: layout is {card.layout}; this version reads {LAYOUT}: train it again")
    if card.state_names != STATE_NAMES:
        odd = sorted(set(card.state_names) ^ set(STATE_NAMES)) or ["the order of the columns"]
        raise UserError(
            f"{path}: state_names differ from this version's state vector in {shown(odd)}; train it again"
        )
    return card


def _read_tensors(path: Path) -> dict[str, Numbers]:
    from safetensors import SafetensorError
    from safetensors.numpy import load as from_bytes

    try:
        return from_bytes(path.read_bytes())
    except OSError as problem:
        raise UserError(f"{path}: no weights: {problem.strerror}; train a controller first") from problem
    except SafetensorError as problem:
        raise UserError(f"{path}: not a safetensors file: {problem}") from problem
