"""How many requests may be in flight: one bound that gives way when a server is overloaded and recovers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class AdaptiveLimit:
    """Halves on overload (429, 503), grows by one after as many successes as are allowed in flight.

    All requests that were in flight when it halved belong to one burst: it halves once for all of them.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.allowed = most
        self.running = 0
        self._bursts = 0
        self._successes = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[int]:
        """A place in flight, waited for if there is none; gives the number of bursts before it was taken."""
        async with self._changed:
            try:
                await self._changed.wait_for(lambda: self.running < self.allowed)
            except asyncio.CancelledError:
                self._changed.notify()  # the place may have been offered to this one: pass it on
                raise
            self.running += 1
        try:
            yield self._bursts
        finally:
            async with self._changed:
                self.running -= 1
                self._changed.notify(max(1, self.allowed - self.running))

    def overloaded(self, bursts_before: int) -> None:
        """The server asked a request for less; of a burst that was counted already, nothing more follows."""
        if bursts_before < self._bursts:
            return
        self._bursts += 1
        self.allowed = max(1, self.allowed // 2)
        self._successes = 0

    def succeeded(self) -> None:
        """A request came through."""
        self._successes += 1
        if self._successes >= self.allowed and self.allowed < self.most:
            self.allowed += 1
            self._successes = 0
