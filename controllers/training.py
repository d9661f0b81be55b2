"""Offline training of the MLP on branch data sets (METHOD 8). The only module here that loads torch.

Seeded and bit-deterministic on a CPU: one thread, deterministic algorithms, its own generators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from controllers.card import LAYOUT, CurvePoint, ModelCard, Target, Training, Validation
from controllers.dataset import BranchDataset, Singles, split_families, statistics
from controllers.mlp import MLP
from controllers.network import Network
from sim.arrays import Bools, Floats, Ints
from sim.discussion.actions import ACTION_NAMES, VOTE
from sim.discussion.inputs import STATE_NAMES
from sim.errors import UserError

Loss: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(outputs, costs, known), each (n, A) -> loss of each decision (n,); unknown costs are 0."""

_EVALUATION_ROWS = 16_384


def train(
    data: BranchDataset, settings: Training, name: str = "mlp", on_epoch: Callable[[], None] = lambda: None
) -> MLP:
    """A controller trained on the branches of `data`, stopped early on task families it did not train on.

    `mlp` learns every intervention explored but the vote; `mlp_vote` the vote too. `on_epoch` is called after
    every epoch. Raises UserError where the data hold no label for the horizon, too few for the target, no
    branch of a vote for `mlp_vote`, or fewer than two task families.
    """
    table = _Table(data, settings, vote=name.endswith("_vote"))
    train_rows, validation_rows = split_families(data, settings.validation, settings.seed)
    mean, scale = standardisation(data.x, train_rows, settings.columns())
    batches = _Batches(table, mean, scale, table.labelled(train_rows), table.labelled(validation_rows))
    with deterministic(settings.seed):
        layers, curve = fit(batches, settings, on_epoch)
    network = Network(
        columns=np.array(settings.columns(), np.int64),
        mean=mean,
        scale=scale,
        weights=tuple(layer.weight.detach().numpy().T.copy() for layer in layers),
        biases=tuple(layer.bias.detach().numpy().copy() for layer in layers),
    )
    present = [np.unique(data.task[rows]) for rows in (train_rows, validation_rows)]
    card = ModelCard(
        layout=LAYOUT,
        name=name,
        actions=table.actions,
        state_names=STATE_NAMES,
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        training=settings,
        train_tasks=tuple(data.tasks[task] for task in present[0].tolist()),
        validation_tasks=tuple(data.tasks[task] for task in present[1].tolist()),
        statistics=statistics(data),
        validation=_validation(table, batches, curve),
        curve=tuple(curve),
        weights_hash=network.digest(),
        versions={"torch": str(torch.__version__), "numpy": np.__version__},
    )
    return MLP(network, card)


def fit(
    batches: _Batches, settings: Training, on_epoch: Callable[[], None]
) -> tuple[list[nn.Linear], list[CurvePoint]]:
    """The training loop: AdamW on a cosine schedule, keeping the weights of lowest validation loss."""
    torch.manual_seed(settings.seed)
    model = mlp(batches.n_inputs, batches.n_outputs, settings)
    loss_of = losses(settings)[settings.target]
    optimiser = torch.optim.AdamW(
        model.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.epochs)
    order = torch.Generator().manual_seed(settings.seed)
    curve: list[CurvePoint] = []
    best, kept = float("inf"), {key: value.clone() for key, value in model.state_dict().items()}
    for epoch in range(1, settings.epochs + 1):
        total = 0.0
        for x, costs, known in batches.shuffled(order, settings.batch_size):
            losses_now = loss_of(model(x), costs, known)
            optimiser.zero_grad()
            torch.autograd.backward(losses_now.mean())
            optimiser.step()
            total += float(losses_now.detach().sum())
        rate = float(schedule.get_last_lr()[0])
        schedule.step()
        validation_loss, regret = evaluate(model, loss_of, batches)
        if not math.isfinite(total + validation_loss):
            raise UserError(
                f"training: the loss is no longer finite in epoch {epoch}; lower training.learning_rate, which is "
                f"{settings.learning_rate}"
            )
        curve.append(CurvePoint(epoch, rate, total / len(batches.train_rows), validation_loss, regret))
        on_epoch()
        if validation_loss < best:
            best, kept = validation_loss, {key: value.clone() for key, value in model.state_dict().items()}
        elif epoch - best_epoch(curve) >= settings.patience:
            break
    model.load_state_dict(kept)
    return [layer for layer in model if isinstance(layer, nn.Linear)], curve


def best_epoch(curve: list[CurvePoint]) -> int:
    """The epoch (1-based) of lowest validation loss, the first of equals."""
    return min(curve, key=lambda point: (point.validation_loss, point.epoch)).epoch


def mlp(n_inputs: int, n_outputs: int, settings: Training) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    widths = [n_inputs, *[settings.hidden] * settings.depth]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(settings.hidden, n_outputs))


def losses(settings: Training) -> dict[Target, Loss]:
    """METHOD 8's targets. Outputs are costs: lower is better, also where they are read as logits."""
    return {
        "objective": _squared,
        "delta": _squared,
        "delta_centred": lambda outputs, costs, known: _squared(
            outputs - _mean(outputs, known), costs - _mean(costs, known), known
        ),
        "soft_labels": lambda outputs, costs, known: (
            -(_policy(costs / settings.tau, known) * _log_policy(outputs, known)).sum(1)
        ),
        "hard_argmin": lambda outputs, costs, known: nn.functional.nll_loss(
            _log_policy(outputs, known),
            costs.masked_fill(~known, torch.inf).argmin(1),
            reduction="none",
        ),
        "expected_regret": lambda outputs, costs, known: (
            _policy(outputs, known)
            * (costs - costs.masked_fill(~known, torch.inf).amin(1, keepdim=True)).where(known, 0.0)
            + settings.entropy * _policy(outputs, known) * _log_policy(outputs, known)
        ).sum(1),
    }


def _squared(outputs: Tensor, costs: Tensor, known: Tensor) -> Tensor:
    return ((outputs - costs).square() * known).sum(1) / known.sum(1)


def _mean(values: Tensor, known: Tensor) -> Tensor:
    return (values * known).sum(1, keepdim=True) / known.sum(1, keepdim=True)


def _policy(costs: Tensor, known: Tensor) -> Tensor:
    return torch.softmax((-costs).masked_fill(~known, -torch.inf), 1)


def _log_policy(costs: Tensor, known: Tensor) -> Tensor:
    """Log-probabilities ∝ exp(-cost) over the known branches; 0 elsewhere, where no probability lies."""
    return torch.log_softmax((-costs).masked_fill(~known, -torch.inf), 1).masked_fill(~known, 0.0)


def evaluate(model: nn.Module, loss_of: Loss, batches: _Batches) -> tuple[float, float | None]:
    """Mean loss on the validation rows, and the mean regret of the argmin where regret is defined."""
    rows, loss, regret, compared = batches.validation_rows, 0.0, 0.0, 0
    with torch.no_grad():
        for part in np.array_split(rows, -(-len(rows) // _EVALUATION_ROWS)):
            x, costs, known = batches.take(part)
            outputs = model(x)
            loss += float(loss_of(outputs, costs, known).double().sum())
            chosen = outputs.masked_fill(~known, torch.inf).argmin(1, keepdim=True)
            excess = costs.gather(1, chosen)[:, 0] - costs.masked_fill(~known, torch.inf).amin(1)
            regret += float(excess.double().sum())
            compared += int((known.sum(1) > 1).sum())
    return loss / len(rows), regret / compared if compared else None


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """One thread and deterministic algorithms inside; torch's global state as it was, outside."""
    threads, algorithms = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(algorithms)


def standardisation(x: Singles, rows: Ints, columns: list[int]) -> tuple[Floats, Floats]:
    """Mean and standard deviation (d,) of some columns over some rows; a constant column gets scale 1."""
    total, squares = np.zeros(len(columns)), np.zeros(len(columns))
    for part in np.array_split(rows, -(-len(rows) // _EVALUATION_ROWS)):
        block = x[part][:, columns].astype(np.float64)
        total += block.sum(0)
        squares += np.square(block).sum(0)
    mean = total / len(rows)
    deviation = np.sqrt(np.maximum(squares / len(rows) - np.square(mean), 0.0))
    return mean, np.where(deviation > 1e-6, deviation, 1.0)


class _Table:
    """The labels of one training run: costs and which are known (R, A), over the interventions explored."""

    def __init__(self, data: BranchDataset, settings: Training, vote: bool) -> None:
        costs = data.costs(settings.horizon)
        explored = np.flatnonzero(data.mask.any(0))
        votes = np.array([data.actions[column] == ACTION_NAMES[VOTE] for column in explored.tolist()])
        if vote and not votes.any():
            raise UserError("training: no vote was explored; explore with menu.vote=true to train mlp_vote")
        explored = explored if vote else explored[~votes]
        self.data = data
        self.columns = settings.columns()
        self.actions = tuple(data.actions[column] for column in explored.tolist())
        self.known: Bools = (data.mask & ~np.isnan(costs))[:, explored]
        baseline = data.objective[:, None] if settings.target == "delta" else np.float32(0.0)
        self.costs: Singles = np.where(self.known, costs[:, explored] - baseline, np.float32(0.0))
        self.least = 1 if settings.target in ("objective", "delta") else 2
        self.settings = settings

    def labelled(self, rows: Ints) -> Ints:
        """The rows with labels enough for the target. Raises UserError where there are none."""
        kept: Ints = rows[self.known[rows].sum(1) >= self.least]
        if not kept.size:
            raise UserError(
                f"training.target {self.settings.target!r} with horizon {self.settings.horizon!r} needs "
                f"{self.least} labelled branches per decision, and no decision of the training or the "
                "validation tasks has them; use target objective, or explore full trees"
            )
        return kept


class _Batches:
    """Standardised inputs with their labels, a batch at a time: only a batch is ever in memory."""

    def __init__(
        self, table: _Table, mean: Floats, scale: Floats, train_rows: Ints, validation_rows: Ints
    ) -> None:
        self._table = table
        self._mean, self._scale = mean.astype(np.float32), scale.astype(np.float32)
        self.train_rows, self.validation_rows = train_rows, validation_rows
        self.n_inputs, self.n_outputs = len(table.columns), len(table.actions)

    def take(self, rows: Ints) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs (n, d), costs and known (n, A) of some rows."""
        x = (self._table.data.x[rows][:, self._table.columns] - self._mean) / self._scale
        return (
            torch.from_numpy(x),
            torch.from_numpy(self._table.costs[rows]),
            torch.from_numpy(self._table.known[rows]),
        )

    def shuffled(self, order: torch.Generator, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """One epoch over the training rows in a fresh order."""
        for part in torch.split(torch.randperm(len(self.train_rows), generator=order), size):
            yield self.take(self.train_rows[part.numpy()])


def _validation(table: _Table, batches: _Batches, curve: list[CurvePoint]) -> Validation:
    """How the kept weights do on the validation tasks, beside a uniform draw and the best constant."""
    rows, kept = batches.validation_rows, curve[best_epoch(curve) - 1]
    costs = np.where(table.known, table.costs, np.nan).astype(np.float64)
    seen = table.known[batches.train_rows]
    totals = table.costs[batches.train_rows].sum(0, dtype=np.float64)
    constant = int(np.where(seen.any(0), totals / np.maximum(seen.sum(0), 1), np.inf).argmin())
    compared = costs[rows[table.known[rows].sum(1) > 1]]
    regret = compared - np.nanmin(compared, axis=1, keepdims=True)
    return Validation(
        families=len({table.data.families[task] for task in np.unique(table.data.task[rows]).tolist()}),
        decisions=len(rows),
        best_epoch=kept.epoch,
        loss=kept.validation_loss,
        regret=kept.validation_regret,
        uniform_regret=float(np.nanmean(regret, axis=1).mean()) if len(regret) else None,
        constant_regret=float(np.nanmean(regret[:, constant])) if len(regret) else None,
        constant_action=table.actions[constant],
        unlabelled_decisions=table.data.size - len(rows) - len(batches.train_rows),
    )
