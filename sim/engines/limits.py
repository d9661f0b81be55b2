"""How many requests may be in flight: one bound that gives way when a server is overloaded and recovers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class AdaptiveLimit:
    """Halves on overload (429, 503), grows by one after as many successes as are allowed in flight."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.allowed = most
        self.running = 0
        self._successes = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """A place in flight, waited for if there is none."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.running < self.allowed)
            self.running += 1
        try:
            yield
        finally:
            async with self._changed:
                self.running -= 1
                self._changed.notify_all()

    def overloaded(self) -> None:
        """The server asked for less."""
        self.allowed = max(1, self.allowed // 2)
        self._successes = 0

    def succeeded(self) -> None:
        """A request came through."""
        self._successes += 1
        if self._successes >= self.allowed and self.allowed < self.most:
            self.allowed += 1
            self._successes = 0
