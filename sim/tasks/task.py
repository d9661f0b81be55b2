"""A hidden-profile task, its public part, and what makes one valid.

This module knows nothing of files, generators or discussions. A task that exists is valid: every rule is
checked when it is built.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from sim.errors import UserError, shown

MIN_AGENTS = 2
MIN_OPTIONS = 2
LARGEST_EVIDENCE = 100.0
"""Odds of e^100 leave no doubt; sums over clues of much larger numbers overflow in the agents."""
_CENTRED_WITHIN = 1e-6
_SURROGATE = re.compile("[\ud800-\udfff]")


class PublicTask(msgspec.Struct, frozen=True):
    """What every agent, controller and feature may see of a task (METHOD 0): no private clue, no answer."""

    id: str
    name: str
    description: str
    shared_information: tuple[str, ...]
    possible_answers: tuple[str, ...]
    n_agents: int


class HiddenProfileTask(msgspec.Struct, frozen=True):
    """One hidden-profile task: HiddenBench's seven fields, its family and the optional evidence of its clues.

    `hidden_information` holds one private clue per agent. Tasks that share facts share a `family`, which a
    split never divides. `evidence` has one row per clue (shared ones first, then private ones) and one column
    per option: log-odds, centred over the options of each row.

    Raises UserError naming task, field and value if a rule of `problems` is broken.
    """

    id: str
    name: str
    description: str
    shared_information: tuple[str, ...]
    hidden_information: tuple[str, ...]
    possible_answers: tuple[str, ...]
    correct_answer: str
    family: str
    evidence: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        problem = next(problems(self), None)
        if problem is not None:
            raise UserError(f"task {shown(self.id)}: {problem}")

    @property
    def n_agents(self) -> int:
        """Number of agents N: one per private clue."""
        return len(self.hidden_information)

    @property
    def n_options(self) -> int:
        """Number of options K."""
        return len(self.possible_answers)

    @property
    def n_shared(self) -> int:
        """Number of shared clues S."""
        return len(self.shared_information)

    @property
    def answer_index(self) -> int:
        """Position of the correct answer among the options, from 0."""
        return self.possible_answers.index(self.correct_answer)

    @property
    def clues(self) -> tuple[str, ...]:
        """All S + N clues, shared ones first, in the order of the rows of `evidence`."""
        return self.shared_information + self.hidden_information

    def evidence_array(self) -> npt.NDArray[np.float64]:
        """Log-odds of each clue, shape (S + N, K). Raises UserError where the task carries none."""
        if self.evidence is None:
            raise UserError(
                f"task {shown(self.id)}: field 'evidence': None; cognitive agents need log-odds: "
                "one row per clue and one column per option; or let a language model speak: world=language"
            )
        return np.array(self.evidence, dtype=np.float64)

    def public(self) -> PublicTask:
        """The task without private clues, answer, family or evidence."""
        return PublicTask(
            id=self.id,
            name=self.name,
            description=self.description,
            shared_information=self.shared_information,
            possible_answers=self.possible_answers,
            n_agents=self.n_agents,
        )


def problems(task: HiddenProfileTask) -> Iterator[str]:
    """What is wrong with a task, most basic first, each as "field ...: value; what would be right"."""
    yield from _text_problems(task)
    yield from _list_problems(task)
    yield from _option_problems(task)
    if task.evidence is not None:
        yield from _evidence_problems(task, task.evidence)


def _text_problems(task: HiddenProfileTask) -> Iterator[str]:
    for field in ("id", "name", "description", "correct_answer", "family"):
        value = getattr(task, field)
        if not isinstance(value, str):
            yield f"field '{field}': {shown(value)} is not a text; give a string"
        elif not value.strip():
            yield f"field '{field}': {shown(value)} is empty; give a text"
        elif _broken(value):
            yield f"field '{field}': {shown(value)} has half a surrogate pair; give whole characters"


def _list_problems(task: HiddenProfileTask) -> Iterator[str]:
    needed = (
        ("shared_information", 1, "shared clue"),
        ("hidden_information", MIN_AGENTS, "private clues, one per agent"),
        ("possible_answers", MIN_OPTIONS, "options"),
    )
    for field, least, what in needed:
        value = getattr(task, field)
        if not isinstance(value, tuple):
            yield f"field '{field}': {shown(value)} is not a list of texts"
            continue
        for place, text in enumerate(value, start=1):
            if not isinstance(text, str):
                yield f"field '{field}': entry {place} is {shown(text)}; every entry must be a text"
            elif not text.strip():
                yield f"field '{field}': entry {place} is {shown(text)}, an empty text; fill it or drop it"
            elif _broken(text):
                yield f"field '{field}': entry {place} is {shown(text)}, with half a surrogate pair; give whole characters"
        if len(value) < least:
            yield f"field '{field}': {shown(list(value))} has {len(value)}; give at least {least} {what}"


def _broken(text: str) -> bool:
    """Whether a text cannot be written: JSON's escapes can name half a surrogate pair."""
    return _SURROGATE.search(text) is not None


def _plain(option: str) -> str:
    """What a reader sees of an option: no case, no spacing, no invisible marks, one form of each letter."""
    normal = unicodedata.normalize("NFKC", option)
    seen = "".join(character for character in normal if unicodedata.category(character) != "Cf")
    return " ".join(seen.split()).casefold()


def _option_problems(task: HiddenProfileTask) -> Iterator[str]:
    seen: dict[str, str] = {}
    for option in task.possible_answers:
        plain = _plain(option)
        if plain in seen:
            yield (
                f"field 'possible_answers': {shown(option)} and {shown(seen[plain])} are the same option; "
                "every option must be different"
            )
        seen[plain] = option
    if task.correct_answer not in task.possible_answers:
        yield (
            f"field 'correct_answer': {shown(task.correct_answer)} is not among possible_answers "
            f"{shown(list(task.possible_answers))}; give one of them, letter by letter"
        )


def _evidence_problems(task: HiddenProfileTask, rows: tuple[tuple[float, ...], ...]) -> Iterator[str]:
    n_clues, n_options = task.n_shared + task.n_agents, task.n_options
    if len(rows) != n_clues:
        yield (
            f"field 'evidence': {len(rows)} rows; give {n_clues}, one per clue "
            f"({task.n_shared} shared, then {task.n_agents} private)"
        )
    for place, row in enumerate(rows, start=1):
        if len(row) != n_options:
            yield f"field 'evidence': row {place} has {len(row)} numbers; give {n_options}, one per option"
        elif not all(map(math.isfinite, row)):
            yield f"field 'evidence': row {place} is {shown(list(row))}; give finite numbers (log-odds)"
        elif max(map(abs, row)) > LARGEST_EVIDENCE:
            yield (
                f"field 'evidence': row {place} is {shown(list(row))}; log-odds lie between "
                f"-{LARGEST_EVIDENCE:g} and {LARGEST_EVIDENCE:g}"
            )
        elif abs(sum(row)) > _CENTRED_WITHIN:
            yield (
                f"field 'evidence': row {place} is {shown(list(row))} with mean {sum(row) / n_options:.6g}; "
                "log-odds are centred: subtract the mean"
            )
