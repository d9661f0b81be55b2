"""Branch data sets for offline learning (METHOD 8): what every evaluated branch cost, as arrays.

Built from decision records or arrays, in memory or as memory-mapped files, so that a million branches train
within a laptop's memory. Knows nothing of networks; holds no private clue and no answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from sim.arrays import Bools, Ints
from sim.discussion.actions import ACTIONS
from sim.discussion.inputs import STATE_NAMES
from sim.errors import UserError, shown
from sim.randomness import keys, text_keys
from sim.records.rows import DecisionRow

Singles: TypeAlias = npt.NDArray[np.float32]
Numbers: TypeAlias = npt.NDArray[Any]

ONE_STEP = "one_step"
_CHUNK = 16_384
_INDEX_FILE = "dataset.json"


@dataclass(frozen=True)
class BranchDataset:
    """R decisions over the A interventions of `actions`.

    x (R, D): state vectors, columns as STATE_NAMES; mask (R, A): evaluated and admissible; objective (R,):
    J(s_t); objectives (R, A): J of each branch, NaN where mask is false; task (R,): index into `tasks` and
    `families`; seed and round (R,), rounds 1-based; executed (R,): the intervention committed, as an index
    into `actions`, or -1. `labels` holds further costs per branch (R, A), lower better and NaN where unknown,
    by horizon (`rollout`, `task_accuracy`).
    """

    actions: tuple[str, ...]
    tasks: tuple[str, ...]
    families: tuple[str, ...]
    x: Singles
    mask: Bools
    objective: Singles
    objectives: Singles
    task: npt.NDArray[np.int32]
    seed: Ints
    round: npt.NDArray[np.int16]
    executed: npt.NDArray[np.int8]
    labels: Mapping[str, Singles] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = len(self.x)
        if self.x.ndim != 2 or self.x.shape[1] != len(STATE_NAMES):
            raise UserError(f"dataset: x has shape {self.x.shape}; it must be (R, {len(STATE_NAMES)})")
        for name, array in (("mask", self.mask), ("objectives", self.objectives), *self.labels.items()):
            if array.shape != (rows, len(self.actions)):
                raise UserError(
                    f"dataset: {name} has shape {array.shape}; it must be {(rows, len(self.actions))}"
                )
        for name in ("objective", "task", "seed", "round", "executed"):
            if getattr(self, name).shape != (rows,):
                raise UserError(
                    f"dataset: {name} has shape {getattr(self, name).shape}; it must be ({rows},)"
                )
        if len(self.tasks) != len(self.families):
            raise UserError("dataset: give one family per task")

    @property
    def size(self) -> int:
        """Number of decisions R."""
        return len(self.x)

    def with_label(self, horizon: str, costs: npt.NDArray[np.floating]) -> BranchDataset:
        """The data set with another label column (R, A): lower is better, NaN where unknown."""
        return replace(self, labels={**self.labels, horizon: costs.astype(np.float32)})

    def costs(self, horizon: str) -> Singles:
        """The costs (R, A) of a horizon; UserError where the data set has no such label."""
        if horizon == ONE_STEP:
            return self.objectives
        if horizon not in self.labels:
            known = ", ".join((ONE_STEP, *self.labels))
            raise UserError(
                f"training.horizon is {horizon!r}; this data set has {known}: add it with with_label"
            )
        return self.labels[horizon]


class Statistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a data set holds, for the model card."""

    decisions: int
    branches: int
    tasks: int
    families: int
    seeds: int
    decisions_by_round: dict[str, int]
    best_share: dict[str, float]
    """How often each intervention was the best of those admissible."""
    mean_objective: dict[str, float]
    """Mean J of each intervention's branches."""
    uniform_regret: float
    """Mean regret of a uniform draw among the realised branches."""


def statistics(data: BranchDataset) -> Statistics:
    """The summary of a data set. Raises UserError for an empty one."""
    if not data.size:
        raise UserError("dataset: it holds no decision; explore at least one training task")
    costs = np.where(data.mask, data.objectives, np.inf)
    best = costs.argmin(1)
    counted = data.mask.sum(1)
    excess = np.where(data.mask, data.objectives - costs.min(1, keepdims=True), 0.0)
    rounds, per_round = np.unique(data.round, return_counts=True)
    return Statistics(
        decisions=data.size,
        branches=int(counted.sum()),
        tasks=len(np.unique(data.task)),
        families=len({data.families[task] for task in np.unique(data.task).tolist()}),
        seeds=len(np.unique(data.seed)),
        decisions_by_round={str(r): n for r, n in zip(rounds.tolist(), per_round.tolist(), strict=True)},
        best_share={name: float((best == a).mean()) for a, name in enumerate(data.actions)},
        mean_objective={
            name: float(data.objectives[data.mask[:, a], a].mean(dtype=np.float64))
            for a, name in enumerate(data.actions)
            if data.mask[:, a].any()
        },
        uniform_regret=float((excess.sum(1, dtype=np.float64) / counted).mean()),
    )


def subset(data: BranchDataset, rows: Bools | Ints) -> BranchDataset:
    """Some decisions of a data set, in memory; the index of tasks is kept."""
    arrays = {name: getattr(data, name)[rows] for name in _LAYOUT}
    return replace(data, **arrays, labels={name: costs[rows] for name, costs in data.labels.items()})


def in_order(data: BranchDataset) -> BranchDataset:
    """The decisions of an exploration along single paths by task, seed and round, each once: the last one given.

    What is learned must not depend on the order in which batches were written, nor on a crash between them.
    """
    names = sorted(range(len(data.tasks)), key=data.tasks.__getitem__)
    rank = np.empty(len(names), np.int32)
    rank[names] = np.arange(len(names), dtype=np.int32)
    task = rank[data.task]
    order = np.lexsort((data.round, data.seed, task))
    key = np.stack([task, data.seed, data.round])[:, order]
    last = np.append((key[:, 1:] != key[:, :-1]).any(0), True)[: len(order)]
    sorted_data = subset(replace(data, task=task), order[last])
    return replace(
        sorted_data,
        tasks=tuple(data.tasks[at] for at in names),
        families=tuple(data.families[at] for at in names),
    )


def of_tasks(data: BranchDataset, names: Iterable[str]) -> BranchDataset:
    """The decisions of some tasks. Raises UserError for a task the data set does not hold."""
    wanted = set(names)
    unknown = wanted - set(data.tasks)
    if unknown:
        raise UserError(f"dataset: it holds no task {shown(min(unknown))}")
    chosen = np.array([name in wanted for name in data.tasks])
    return subset(data, chosen[data.task])


def split_families(data: BranchDataset, share: float, seed: int) -> tuple[Ints, Ints]:
    """Rows for training and for validation; a family of tasks is never divided.

    `share` of the families present (at least one, never all) validate; they are drawn by a hash of their
    names. Raises UserError where there are fewer than two families.
    """
    present = sorted({data.families[task] for task in np.unique(data.task).tolist()})
    if len(present) < 2:
        raise UserError(
            f"training.validation: the data hold {len(present)} task families; early stopping needs at least "
            "two, one of them for validation"
        )
    count = min(max(1, round(share * len(present))), len(present) - 1)
    order = np.argsort(keys("validation", seed, text_keys(present)), kind="stable")
    held = {present[place] for place in order[:count].tolist()}
    validates = np.array([family in held for family in data.families])[data.task]
    return np.flatnonzero(~validates), np.flatnonzero(validates)


_LAYOUT: dict[str, tuple[str, str]] = {
    "x": ("<f4", "state"),
    "mask": ("|b1", "actions"),
    "objective": ("<f4", ""),
    "objectives": ("<f4", "actions"),
    "task": ("<i4", ""),
    "seed": ("<i8", ""),
    "round": ("<i2", ""),
    "executed": ("|i1", ""),
}
"""Array -> (dtype, second axis)."""


def from_rows(
    rows: Iterable[DecisionRow],
    families: Mapping[str, str],
    actions: tuple[str, ...] = ACTIONS,
    folder: Path | None = None,
) -> BranchDataset:
    """The data set of some decision records, read once and in chunks.

    `families` gives the family of each task. With a `folder` the arrays are written there and memory-mapped,
    so memory does not grow with the records. Raises UserError naming the record where a task has no family,
    a candidate is no intervention of `actions`, or the state vector has another layout.
    """
    index = _TaskIndex(families)
    chunks = (_chunk(part, index, actions) for part in _batched(rows, _CHUNK))
    if folder is None:
        arrays = _joined(list(chunks), len(actions))
    else:
        arrays = _written(chunks, folder, len(actions))
        index_text = {"actions": actions, "tasks": index.tasks, "families": index.families}
        (folder / _INDEX_FILE).write_bytes(msgspec.json.encode(index_text))
    return BranchDataset(actions, tuple(index.tasks), tuple(index.families), labels={}, **arrays)


def open_dataset(folder: Path) -> BranchDataset:
    """A data set written by `from_rows`, memory-mapped. Raises UserError where the folder holds none."""
    try:
        index = msgspec.json.decode((folder / _INDEX_FILE).read_bytes(), type=dict[str, tuple[str, ...]])
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _LAYOUT}
        return BranchDataset(index["actions"], index["tasks"], index["families"], labels={}, **arrays)
    except (OSError, KeyError, msgspec.DecodeError) as problem:
        raise UserError(f"{folder}: not a branch data set: {problem}") from problem


class _TaskIndex:
    """Numbers tasks in order of appearance."""

    def __init__(self, families: Mapping[str, str]) -> None:
        self._family_of = families
        self._number: dict[str, int] = {}
        self.tasks: list[str] = []
        self.families: list[str] = []

    def __call__(self, task: str) -> int:
        if task not in self._number:
            if task not in self._family_of:
                raise UserError(f"dataset: task {shown(task)} has no family; give the family of every task")
            self._number[task] = len(self.tasks)
            self.tasks.append(task)
            self.families.append(self._family_of[task])
        return self._number[task]


def _batched(rows: Iterable[DecisionRow], size: int) -> Iterator[list[DecisionRow]]:
    source = iter(rows)
    while part := list(islice(source, size)):
        yield part


def _chunk(rows: list[DecisionRow], index: _TaskIndex, actions: tuple[str, ...]) -> dict[str, Numbers]:
    """The arrays of some records."""
    objectives = np.full((len(rows), len(actions)), np.nan, np.float32)
    executed = np.full(len(rows), -1, np.int8)
    for at, row in enumerate(rows):
        columns = _columns(row, actions)
        for column, value in zip(columns, row.objectives, strict=True):
            if value is not None:
                objectives[at, column] = value
        executed[at] = columns[row.executed]
    return {
        "x": np.array([row.state for row in rows], np.float32),
        "mask": ~np.isnan(objectives),
        "objective": np.array([row.objective for row in rows], np.float32),
        "objectives": objectives,
        "task": np.array([index(row.task) for row in rows], np.int32),
        "seed": np.array([row.seed for row in rows], np.int64),
        "round": np.array([row.round for row in rows], np.int16),
        "executed": executed,
    }


def intervention(candidate: str) -> str:
    """The name of a candidate's intervention: `route` of `route@2`."""
    return candidate.partition("#")[0].partition("@")[0]


def _columns(row: DecisionRow, actions: tuple[str, ...]) -> list[int]:
    """The intervention of each candidate, as an index into `actions`."""
    where = f"dataset: task {shown(row.task)}, seed {row.seed}, round {row.round}"
    if len(row.state) != len(STATE_NAMES):
        raise UserError(f"{where}: state has {len(row.state)} entries; it must have {len(STATE_NAMES)}")
    names = [intervention(candidate) for candidate in row.candidates]
    for candidate, name in zip(row.candidates, names, strict=True):
        if name not in actions:
            raise UserError(f"{where}: candidate {candidate!r} is none of {', '.join(actions)}")
    if len(set(names)) < len(names):
        raise UserError(f"{where}: candidates {row.candidates} repeat an intervention; give one draw of each")
    return [actions.index(name) for name in names]


def _joined(chunks: list[dict[str, Numbers]], n_actions: int) -> dict[str, Numbers]:
    return {
        name: np.concatenate([np.empty(_shape(name, 0, n_actions), dtype), *(c[name] for c in chunks)])
        for name, (dtype, _) in _LAYOUT.items()
    }


def _shape(name: str, rows: int, n_actions: int) -> tuple[int, ...]:
    second = _LAYOUT[name][1]
    return (rows, {"state": len(STATE_NAMES), "actions": n_actions}[second]) if second else (rows,)


def _written(chunks: Iterable[dict[str, Numbers]], folder: Path, n_actions: int) -> dict[str, Numbers]:
    """Write chunks as they come into one .npy file per array, then map the files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _INDEX_FILE).unlink(missing_ok=True)
    files = {name: (folder / f"{name}.npy").open("wb") for name in _LAYOUT}
    rows = 0
    try:
        for name, file in files.items():
            _write_header(file, name, 0, n_actions)
        for chunk in chunks:
            rows += len(chunk["task"])
            for name, file in files.items():
                file.write(np.ascontiguousarray(chunk[name]).astype(_LAYOUT[name][0]).tobytes())
        for name, file in files.items():
            file.seek(0)
            _write_header(file, name, rows, n_actions)
    finally:
        for file in files.values():
            file.close()
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r" if rows else None) for name in _LAYOUT}


def _write_header(file: BinaryIO, name: str, rows: int, n_actions: int) -> None:
    """numpy pads the header so that the first axis can grow in place."""
    shape = _shape(name, rows, n_actions)
    header = {"descr": _LAYOUT[name][0], "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
