"""Worlds whose branches are rows: recorded ones (replay) and those a language model makes (language).

The state is the public record alone, advanced from rows by the same function whoever made them, so a replayed
discussion is the recorded one bit for bit.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from sim.arrays import Bools, Floats, Ints, take
from sim.discussion.actions import NOBODY, Candidates
from sim.discussion.ending import Horizon, Votes, horizon_of
from sim.discussion.public import PublicView, Utterance, advance, opening, path_texts, step_code, step_text
from sim.records.rows import FULL_INFORMATION, BranchRow, VoteRow
from sim.tasks.task import HiddenProfileTask
from sim.worlds.protocol import Episodes


@dataclass(frozen=True)
class RowState:
    """A batch of discussions: their public record, and which task and seed each one is."""

    view: PublicView
    episodes: tuple[tuple[HiddenProfileTask, int], ...]
    full_information: bool

    @property
    def root(self) -> str:
        """Path of the opening."""
        return FULL_INFORMATION if self.full_information else ""


class RowWorld(ABC):
    """A World over rows; subclasses say where opening, branch and vote rows come from."""

    def __init__(self, horizon: Horizon, max_words: float, has_text: bool) -> None:
        """`has_text` puts transcripts and public tasks on the record, for controllers that read them."""
        self.horizon = horizon
        self.max_words = max_words
        self.has_text = has_text

    @abstractmethod
    async def opening_row(self, task: HiddenProfileTask, seed: int, root: str) -> BranchRow:
        """First beliefs; raises MissingBranch or WorldFailure."""

    @abstractmethod
    async def branch_row(self, state: RowState, row: int, action: int, speaker: int, path: str) -> BranchRow:
        """One branch of one discussion; `path` includes it."""

    @abstractmethod
    async def vote_row(self, state: RowState, row: int, path: str) -> VoteRow:
        """Final votes of one discussion."""

    async def open(self, episodes: Episodes, full_information: bool = False) -> RowState:
        """The state before any message."""
        pairs = tuple(zip(episodes.tasks, episodes.seeds.tolist(), strict=True))
        root = FULL_INFORMATION if full_information else ""
        rows = await asyncio.gather(*(self.opening_row(task, seed, root) for task, seed in pairs))
        view = opening(
            episodes.key,
            np.array([row.beliefs for row in rows]),
            horizon=horizon_of(self.horizon, episodes.tasks[0].n_agents),
            max_words=self.max_words,
            stale=np.array([row.stale for row in rows]),
            tasks=tuple(task.public() for task in episodes.tasks) if self.has_text else (),
        )
        return RowState(view, pairs, full_information)

    def view(self, state: RowState) -> PublicView:
        """The public record."""
        return state.view

    def select(self, state: RowState, rows: Ints | Bools) -> RowState:
        """Some discussions of the batch."""
        index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return replace(
            state, view=take(state.view, index), episodes=tuple(state.episodes[i] for i in index.tolist())
        )

    async def branch(self, state: RowState, candidates: Candidates) -> RowState:
        """Every admissible candidate, all at the same time; rows of others repeat their parent's beliefs."""
        # Paths do not say who held which clues: branches of the two kinds of discussion would be mixed up.
        assert not state.full_information, "discussions under full information are not recorded; vote at once"
        size, width = candidates.actions.shape
        parents = np.repeat(np.arange(size), width)
        flat = {name: getattr(candidates, name).reshape(-1) for name in ("actions", "speakers", "draws")}
        steps = step_code(flat["actions"], flat["speakers"], flat["draws"])
        paths = path_texts(state.view)
        wanted = [
            self.branch_row(
                state,
                int(parent),
                int(flat["actions"][at]),
                int(flat["speakers"][at]),
                "/".join(filter(None, (paths[parent], step_text(int(steps[at]))))),
            )
            for at, parent in enumerate(parents)
            if candidates.admissible.reshape(-1)[at]
        ]
        made = iter(await asyncio.gather(*wanted))
        before = take(state.view, parents)
        rows = [
            next(made) if offered else _unchanged(before, at)
            for at, offered in enumerate(candidates.admissible.reshape(-1))
        ]
        after = advance(
            before, flat["actions"], flat["speakers"], flat["draws"], _utterance(rows, self.has_text)
        )
        return RowState(after, tuple(state.episodes[i] for i in parents), state.full_information)

    async def final_votes(self, state: RowState) -> Votes:
        """Fresh, independent final answers."""
        paths = [path or state.root for path in path_texts(state.view)]
        rows = await asyncio.gather(*(self.vote_row(state, i, path) for i, path in enumerate(paths)))
        return Votes(
            choice=np.array([row.choice for row in rows]), beliefs=np.array([row.beliefs for row in rows])
        )


def _unchanged(view: PublicView, row: int) -> BranchRow:
    return BranchRow(
        "", 0, "", 0, "", NOBODY, 0, 0.0, 0.0, 0.0, view.beliefs[row].tolist(), view.stale[row].tolist()
    )


def _utterance(rows: list[BranchRow], has_text: bool) -> Utterance:
    def column(name: str) -> Floats:
        return np.array([getattr(row, name) for row in rows], dtype=np.float64)

    return Utterance(
        words=column("words"),
        novelty=column("novelty"),
        overlap=column("overlap"),
        beliefs=np.array([row.beliefs for row in rows], dtype=np.float64),
        stale=np.array([row.stale for row in rows], dtype=bool),
        texts=tuple(row.text for row in rows) if has_text else (),
    )
