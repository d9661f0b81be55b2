"""A world that serves a recorded tree back, without any model: re-scoring, training, calibration, evaluation.

It raises MissingBranch where a policy leaves what was expanded.
"""

from __future__ import annotations

from typing import TypeVar

from sim.discussion.ending import Horizon
from sim.records.rows import BranchRow, VoteRow
from sim.tasks.task import HiddenProfileTask
from sim.worlds.branch_store import BranchStore
from sim.worlds.protocol import MissingBranch
from sim.worlds.row_world import RowState, RowWorld

R = TypeVar("R")


class ReplayWorld(RowWorld):
    """Recorded branches of any world; implements `World[RowState]`."""

    def __init__(self, store: BranchStore, horizon: Horizon, max_words: float, has_text: bool) -> None:
        super().__init__(horizon, max_words, has_text)
        self.store = store

    async def opening_row(self, task: HiddenProfileTask, seed: int, root: str) -> BranchRow:
        """The recorded opening; MissingBranch if there is none."""
        return _found(self.store.find_branch((task.id, seed, root)), "opening", task, seed, root)

    async def branch_row(self, state: RowState, row: int, action: int, speaker: int, path: str) -> BranchRow:
        """The recorded branch; MissingBranch if it was not expanded."""
        task, seed = state.episodes[row]
        return _found(self.store.find_branch((task.id, seed, path)), "branch", task, seed, path)

    async def vote_row(self, state: RowState, row: int, path: str) -> VoteRow:
        """The recorded final votes; MissingBranch if none were taken there."""
        task, seed = state.episodes[row]
        return _found(self.store.find_votes((task.id, seed, path)), "final votes", task, seed, path)


def _found(found: R | None, what: str, task: HiddenProfileTask, seed: int, path: str) -> R:
    if found is None:
        raise MissingBranch(
            f"task {task.id}, seed {seed}, path {path!r}: no {what} recorded there; explore deeper, or "
            "evaluate a policy that stays on recorded paths"
        )
    return found
