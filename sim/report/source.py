"""What a report is made from: the records of one run directory, read once. Only this module reads files.

A run directory of any age and state is welcome: what is missing is empty here and said to be missing by the
tables. Nothing is computed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from conformal import Thresholds
from sim.errors import UserError, shown
from sim.records.rows import BranchRow, CallRow, DecisionRow, EpisodeRow, VoteRow
from sim.records.run_dir import (
    CONFIG,
    FAILED,
    FINISHED,
    INTERRUPTED,
    PROVENANCE,
    RUNNING,
    STATUS,
    UNKNOWN,
    read_config,
    state_of,
)
from sim.records.store import episode_key, iter_finished_decisions, iter_rows, read_rows
from sim.tasks.files import load_recorded_tasks
from sim.tasks.task import HiddenProfileTask

EVALUATION = "evaluate"
"""The stage whose episodes the tables are about; calibration episodes serve the certificates only."""

CALIBRATION = "calibrate"
"""Stages whose names begin so hold the calibration folds; their scores let ties be randomised."""
GATE_SUFFIX = "+gate"
MOST_TASKS = 1_000
"""Test tasks that a page can show, so that it stays quick to build and to open."""
_CARD_PARTS = ("training", "train_tasks", "validation_tasks", "statistics", "validation", "curve")
_SAID = {RUNNING: "still running", INTERRUPTED: "interrupted"}


@dataclass(frozen=True)
class Status:
    """What status.json says: `running`, `finished`, `failed` or `interrupted`, with the error and its traceback."""

    state: str = UNKNOWN
    verb: str = ""
    error: str = ""
    traceback: str = ""

    @property
    def unfinished(self) -> str:
        """What to say of a run that has not come to its end; empty for any other."""
        if self.state == FAILED:
            return f"This run failed: {self.error}"
        if self.state in (RUNNING, INTERRUPTED):
            return f"This run is {_SAID[self.state]}: the numbers are of what was recorded so far."
        return ""


Curves: TypeAlias = Mapping[str, tuple[Mapping[str, float], ...]]
"""Learning curve of each trained controller by name, one entry per epoch."""

Cards: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Model card of each trained network by the name of its folder."""


@dataclass(frozen=True)
class Run:
    """One run directory: rows in the order of their keys, shown tasks by id, certificates by condition.

    Episodes are those of every stage; branches and votes those of the test tasks. Decisions, of which a study has
    most, are not held but read one after another. Model calls are read of groups of several models only.
    """

    name: str
    directory: Path
    status: Status
    episodes: tuple[EpisodeRow, ...]
    branches: tuple[BranchRow, ...]
    votes: tuple[VoteRow, ...]
    tasks: Mapping[str, HiddenProfileTask]
    certificates: Mapping[str, Thresholds]
    cards: Cards
    config: Mapping[str, Any]
    provenance: Mapping[str, Any]
    calls: tuple[CallRow, ...] = ()

    @property
    def curves(self) -> Curves:
        """The learning curves in the model cards."""
        return {name: tuple(card["curve"]) for name, card in self.cards.items()}

    def iter_decisions(self) -> Iterator[DecisionRow]:
        """The decisions of evaluation and calibration in the order written; a large exploration is passed over.
        Those of an attempt that crashed come before those of the one that finished."""
        return iter_finished_decisions(self.directory, (row for row in self.episodes if _reported(row.stage)))


def read_run(directory: str | Path, name: str | None = None) -> Run:
    """Everything recorded in a run directory. Raises UserError naming the file that cannot be read."""
    path = Path(directory)
    if not path.is_dir():
        raise UserError(
            f"{path}: is not a directory; give a run directory, such as runs/<study>-<hash>-<launch>"
        )
    config = read_config(path) if (path / CONFIG).exists() else {}
    made = _object(path / PROVENANCE)
    episodes = list({episode_key(row): row for row in read_rows(path, EpisodeRow)}.values())
    tested = {row.task for row in episodes if row.stage == EVALUATION}
    branches = (row for row in iter_rows(path, BranchRow) if row.task in tested)
    votes = (row for row in iter_rows(path, VoteRow) if row.task in tested)
    mixed = bool((config.get("seats") or {}).get("order"))
    calls = (row for row in iter_rows(path, CallRow) if row.task in tested) if mixed else ()
    return Run(
        name=name or path.name,
        directory=path,
        status=read_status(path),
        episodes=tuple(sorted(episodes, key=lambda e: (e.stage, e.condition, e.task, e.seed))),
        branches=tuple(sorted(branches, key=lambda b: (b.task, b.seed, b.path))),
        votes=tuple(sorted(votes, key=lambda v: (v.task, v.seed, v.path))),
        tasks=_tasks(path, made.get("data_hash"), set(shown_tasks(tested))),
        certificates=read_certificates(Path(config.get("from_run") or path) / "thresholds.json"),
        cards=read_cards(path / "controller"),
        config=config,
        provenance=made,
        calls=tuple(calls),
    )


def _reported(stage: str) -> bool:
    return stage == EVALUATION or stage.startswith(CALIBRATION)


def read_status(directory: Path) -> Status:
    """status.json of a run directory; `unknown` where there is none.

    A run that was killed without a last word is `interrupted`; one that this very process reports, at its end, is
    `finished`.
    """
    content = _object(directory / STATUS)
    state = state_of(content)
    return Status(
        state=FINISHED if state == RUNNING and content.get("pid") == os.getpid() else state,
        verb=str(content.get("verb", "")),
        error=str(content.get("error", "")),
        traceback=str(content.get("traceback", "")),
    )


def read_certificates(path: Path) -> dict[str, Thresholds]:
    """thresholds.json by certified condition (`X+gate`); the file names the controller `X`.

    Raises UserError naming file and condition where an entry is not what `Thresholds.to_dict` gives.
    """
    found: dict[str, Thresholds] = {}
    for name, entry in sorted(_object(path).items()):
        condition = name.removesuffix(GATE_SUFFIX) + GATE_SUFFIX
        if not isinstance(entry, dict):
            raise UserError(
                f"{path}: condition {shown(name)} holds {shown(entry)}; give the thresholds of each "
                "certified condition under its name"
            )
        found[condition] = Thresholds.from_dict(entry, f"{path}: {name}")
    return found


def read_cards(folder: Path) -> Cards:
    """The model cards beside the weights; empty where nothing was trained. UserError where one lacks a part."""
    cards = {path: _object(path) for path in sorted(folder.glob("*/*.json"))}
    for path, card in cards.items():
        for part in _CARD_PARTS:
            if part not in card:
                raise UserError(
                    f"{path}: has no {part!r}, so it is no model card; train the controller again"
                )
    return {path.parent.name: card for path, card in cards.items()}


def shown_tasks(tested: Iterable[str]) -> list[str]:
    """The test tasks whose discussions a page can show: the first by id."""
    return sorted(tested)[:MOST_TASKS]


def _tasks(directory: Path, recorded_hash: str | None, wanted: set[str]) -> dict[str, HiddenProfileTask]:
    path = directory / "tasks.json"
    tasks = load_recorded_tasks(path, recorded_hash) if path.exists() else ()
    return {task.id: task for task in tasks if task.id in wanted}


def _object(path: Path) -> dict[str, Any]:
    """The JSON object of a file, empty where there is no file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: not JSON ({error}); restore the file or rerun the stage that writes it"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds {shown(content)}; expected a JSON object")
    return content
