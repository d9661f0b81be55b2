"""Recorded discussions in the form the page reads: one document per task, packed into compressed chunks.

A document holds the task, its branches by seed and path (conditions share them), and each condition's
decisions. Numbers are rounded for display; tables are made elsewhere, from the rows themselves.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from sim.discussion.inputs import STATE_NAMES
from sim.records.rows import BranchRow, DecisionRow, EpisodeRow, VoteRow
from sim.report.clues import mention_finder
from sim.report.frames import join, opening_path, prefixes, vote_path
from sim.report.source import EVALUATION, Run, shown_tasks
from sim.tasks.task import HiddenProfileTask

SIGNALS = (
    "uncertainty", "disagreement", "evidence_gain", "redundancy", "premature_consensus", "coverage_proxy",
    "cost",
)  # fmt: skip
_SIGNAL_COLUMNS = [STATE_NAMES.index(name) for name in SIGNALS]
_CHUNK_BYTES = 300_000
BUDGET_BYTES = 24_000_000
"""What a page may hold of discussions, so that it stays quick to open."""

Document: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Chunks:
    """Packed documents, and which chunk holds each task. Tasks beyond the page's budget are in none."""

    packed: tuple[str, ...]
    chunk_of: Mapping[str, int]


@dataclass(frozen=True)
class _TaskRows:
    """The evaluation rows of one task."""

    episodes: list[EpisodeRow]
    decisions: dict[tuple[str, int], dict[int, DecisionRow]]
    """By condition and seed, then by round: the last one written."""
    branches: dict[tuple[int, str], BranchRow]
    votes: dict[tuple[int, str], VoteRow]


def pack(content: object) -> str:
    """JSON, gzipped without a date, in base64: text that no HTML parser can misread."""
    return base64.b64encode(gzip.compress(msgspec.json.encode(content), compresslevel=6, mtime=0)).decode()


def discussion_chunks(run: Run, budget: int = BUDGET_BYTES) -> Chunks:
    """The evaluation's discussions, tasks in order of their ids, as many as fit into the budget (bytes)."""
    packed: list[str] = []
    chunk_of: dict[str, int] = {}
    waiting: dict[str, Document] = {}
    size = 0
    for task, document in _documents(run):
        waiting[task] = document
        chunk_of[task] = len(packed)
        size += len(msgspec.json.encode(document))
        if size >= _CHUNK_BYTES:
            packed.append(pack(waiting))
            waiting, size = {}, 0
            if sum(map(len, packed)) > budget:
                return Chunks(tuple(packed), chunk_of)
    return Chunks((*packed, pack(waiting)) if waiting else tuple(packed), chunk_of)


def _documents(run: Run) -> Iterator[tuple[str, Document]]:
    rows = _by_task(run)
    for task in sorted(rows):
        yield task, _document(rows[task], run.tasks.get(task))


def _by_task(run: Run) -> dict[str, _TaskRows]:
    evaluated = [row for row in run.episodes if row.stage == EVALUATION]
    found = {task: _TaskRows([], {}, {}, {}) for task in shown_tasks({row.task for row in evaluated})}
    for episode in evaluated:
        if episode.task in found:
            found[episode.task].episodes.append(episode)
    for decision in run.iter_decisions():
        if decision.stage == EVALUATION and decision.task in found:
            mine = found[decision.task].decisions
            mine.setdefault((decision.condition, decision.seed), {})[decision.round] = decision
    for branch in run.branches:
        if branch.task in found:
            found[branch.task].branches[branch.seed, branch.path] = branch
    for vote in run.votes:
        if vote.task in found:
            found[vote.task].votes[vote.seed, vote.path] = vote
    return found


def _document(rows: _TaskRows, task: HiddenProfileTask | None) -> Document:
    mentions = mention_finder(task) if task else lambda branch: []
    shown: dict[str, dict[str, Document]] = {}
    episodes = []
    for episode in rows.episodes:
        by_round = rows.decisions.get((episode.condition, episode.seed), {})
        decisions = [by_round[number] for number in sorted(by_round)]
        here = shown.setdefault(str(episode.seed), {})
        for path in _paths(episode, decisions):
            branch = rows.branches.get((episode.seed, path))
            if branch is not None and path not in here:
                here[path] = _branch(branch, mentions(branch))
        vote = rows.votes.get((episode.seed, vote_path(episode)))
        episodes.append(_episode(episode, decisions, vote))
    return {"task": _task(rows.episodes[0], task), "branches": shown, "episodes": episodes}


def _paths(episode: EpisodeRow, decisions: list[DecisionRow]) -> list[str]:
    """Paths a discussion shows: its opening, its own steps, and every candidate beside them."""
    beside = [join(d.path, name) for d in decisions for name in d.candidates]
    return [opening_path(episode.condition), *prefixes(episode.path), *beside]


def _task(episode: EpisodeRow, task: HiddenProfileTask | None) -> Document:
    """The task's texts, or numbered options where tasks.json does not know it."""
    if task is None:
        options = [f"option {i + 1}" for i in range(episode.n_options)]
        return {"name": episode.task, "description": "", "shared": [], "hidden": [], "options": options}
    return {
        "name": task.name,
        "description": task.description,
        "shared": task.shared_information,
        "hidden": task.hidden_information,
        "options": task.possible_answers,
    }


def _branch(row: BranchRow, mentions: list[int]) -> Document:
    """A branch for display; beliefs in thousandths, per agent, false fields left out."""
    content: Document = {
        "speaker": row.speaker,
        "action": row.action,
        "words": round(row.words, 2),
        "novelty": round(row.novelty, 3),
        "overlap": round(row.overlap, 3),
        "beliefs": [[round(1000 * p) for p in belief] for belief in row.beliefs],
    }
    optional = {
        "text": row.text,
        "stale": [agent for agent, stale in enumerate(row.stale) if stale],
        "mentions": mentions,
        "tokens": [row.prompt_tokens, row.completion_tokens] if row.prompt_tokens else None,
    }
    return content | {name: value for name, value in optional.items() if value}


def _episode(row: EpisodeRow, decisions: list[DecisionRow], vote: VoteRow | None) -> Document:
    return {
        "condition": row.condition,
        "seed": row.seed,
        "path": row.path,
        "answer": row.answer,
        "decision": row.decision,
        "votes": row.votes,
        "vote_beliefs": [[round(1000 * p) for p in belief] for belief in vote.beliefs] if vote else None,
        "ending": row.ending,
        "error": row.error,
        "final_objective": _rounded(row.final_objective),
        "decisions": [_decision(decision) for decision in decisions],
    }


def _decision(row: DecisionRow) -> Document:
    return {
        "round": row.round,
        "path": row.path,
        "candidates": row.candidates,
        "objective": _rounded(row.objective),
        "objectives": [_rounded(value) for value in row.objectives],
        "regrets": [_rounded(value) for value in row.regrets],
        "proposal": row.proposal,
        "malformed": row.malformed,
        "executed": row.executed,
        "threshold": _rounded(row.threshold),
        "certified": row.certified,
        "admissible": row.admissible_set,
        "signals": _signals(row),
    }


def _signals(row: DecisionRow) -> list[float] | None:
    """The state's signals; none where the state was recorded in another layout."""
    if len(row.state) != len(STATE_NAMES):
        return None
    return [round(row.state[column], 3) for column in _SIGNAL_COLUMNS]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
