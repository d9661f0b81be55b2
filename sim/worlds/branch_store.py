"""Evaluated branches and final votes by (task, seed, path): each is made once, whoever asks for it.

Conditions that share a path share its branches, concurrent askers wait for one answer, and what a run has on
disk is never made again. Nothing here knows how a branch is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias, TypeVar

from sim.records.rows import BranchRow, VoteRow

Key: TypeAlias = tuple[str, int, str]
R = TypeVar("R", BranchRow, VoteRow)


class BranchStore:
    """Rows in memory; `on_new` is told of every row made, before anybody sees it, so that it can be kept."""

    def __init__(
        self,
        branches: Iterable[BranchRow] = (),
        votes: Iterable[VoteRow] = (),
        on_new: Callable[[BranchRow | VoteRow], None] = lambda row: None,
    ) -> None:
        self._branches = {(row.task, row.seed, row.path): row for row in branches}
        self._votes = {(row.task, row.seed, row.path): row for row in votes}
        self._making: dict[tuple[str, Key], asyncio.Future[BranchRow | VoteRow]] = {}
        self._on_new = on_new

    def find_branch(self, key: Key) -> BranchRow | None:
        """The branch at a path, if it was evaluated."""
        return self._branches.get(key)

    def find_votes(self, key: Key) -> VoteRow | None:
        """The final votes at a path, if they were taken."""
        return self._votes.get(key)

    async def branch(self, key: Key, make: Callable[[], Awaitable[BranchRow]]) -> BranchRow:
        """The branch at a path, made if it is not there."""
        return await self._once("branch", key, self._branches, make)

    async def votes(self, key: Key, make: Callable[[], Awaitable[VoteRow]]) -> VoteRow:
        """The final votes at a path, taken if they are not there."""
        return await self._once("votes", key, self._votes, make)

    async def _once(self, kind: str, key: Key, rows: dict[Key, R], make: Callable[[], Awaitable[R]]) -> R:
        while key not in rows and (kind, key) in self._making:
            await asyncio.wait([self._making[kind, key]])
        if key in rows:
            return rows[key]
        future: asyncio.Future[BranchRow | VoteRow] = asyncio.get_running_loop().create_future()
        self._making[kind, key] = future
        try:
            row = await make()
            self._on_new(row)
            rows[key] = row
            return row
        finally:
            del self._making[kind, key]
            future.cancel()
