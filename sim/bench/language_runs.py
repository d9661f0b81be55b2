"""Explorations as the toolkit holds them, with their requests kept, and the same requests sent raw."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import msgspec

from sim.config import StudyConfig
from sim.engines.openai_server import OpenAIServerEngine
from sim.engines.protocol import Capabilities, ChatReply, ChatRequest, ChooseReply, ChooseRequest
from sim.records.rows import BranchRow, EpisodeRow
from sim.records.store import RunStore, read_rows
from sim.studies.opening import new_run, opened
from sim.studies.progress import Reporter
from sim.studies.stages import explore
from sim.worlds.language import LanguageWorld

_LOOK_S = 0.25


@dataclass
class KeepingEngine:
    """An engine that keeps the requests made of it, in the order in which they were made."""

    engine: OpenAIServerEngine
    requests: list[ChatRequest | ChooseRequest] = field(default_factory=list)

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine."""
        return self.engine.capabilities

    async def chat(self, request: ChatRequest) -> ChatReply:
        """As the engine."""
        self.requests.append(request)
        return await self.engine.chat(request)

    async def choose(self, request: ChooseRequest) -> ChooseReply:
        """As the engine."""
        self.requests.append(request)
        return await self.engine.choose(request)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The engine is closed by whoever opened it."""


@dataclass(frozen=True)
class Exploration:
    """One exploration: wall seconds, evaluated branches with their tokens, the bodies of its requests in order,
    and the number of requests in flight every quarter of a second."""

    seconds: float
    branches: int
    prompt_tokens: int
    completion_tokens: int
    bodies: tuple[bytes, ...]
    in_flight: tuple[int, ...]


def explored(data: Mapping[str, Any]) -> Exploration:
    """Hold the explore stage of a study in a new run directory. Raises RuntimeError if a discussion failed."""
    directory, config = new_run(data, lambda config: None)
    with RunStore(directory) as store:
        seconds, bodies, in_flight = asyncio.run(_explored(directory, config, store))
    failed = [row.error for row in read_rows(directory, EpisodeRow) if row.error]
    if failed:
        raise RuntimeError(f"{len(failed)} discussions failed, the first: {failed[0]}")
    rows = [row for row in read_rows(directory, BranchRow) if row.round]
    return Exploration(
        seconds,
        len(rows),
        sum(row.prompt_tokens for row in rows),
        sum(row.completion_tokens for row in rows),
        bodies,
        in_flight,
    )


async def _explored(
    directory: Path, config: StudyConfig, store: RunStore
) -> tuple[float, tuple[bytes, ...], tuple[int, ...]]:
    async with opened(directory, config, store) as study:
        world = study.world
        if not isinstance(world, LanguageWorld):
            raise TypeError("the language bench needs a language world")
        engine: OpenAIServerEngine = study.engine
        keeping = KeepingEngine(engine)
        world.engine = keeping
        with _watched(engine) as in_flight:
            started = time.perf_counter()
            await explore(study, Reporter(shown=False))
            seconds = time.perf_counter() - started
        bodies = tuple(msgspec.json.encode(engine.body_of(request)) for request in keeping.requests)
    return seconds, bodies, tuple(in_flight)


@contextmanager
def _watched(engine: OpenAIServerEngine) -> Iterator[list[int]]:
    """Looks at the number of requests in flight for the time of the block."""
    seen: list[int] = []

    async def look() -> None:
        with suppress(asyncio.CancelledError):
            for _ in range(1_000_000):
                seen.append(engine.in_flight)
                await asyncio.sleep(_LOOK_S)

    looking = asyncio.get_running_loop().create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()


def replayed_raw(url: str, bodies: Sequence[bytes], concurrency: int) -> float:
    """Wall seconds to send requests in their order, so many at a time, and to receive every answer.

    Raises httpx2.HTTPStatusError where one is refused.
    """
    return asyncio.run(_replayed_raw(url, bodies, concurrency))


async def _replayed_raw(url: str, bodies: Sequence[bytes], concurrency: int) -> float:
    waiting = iter(bodies)
    limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    headers = {"Content-Type": "application/json"}
    async with httpx2.AsyncClient(timeout=600, limits=limits, headers=headers) as client:

        async def work() -> None:
            for body in waiting:
                reply = await client.post(f"{url}/chat/completions", content=body)
                reply.raise_for_status()

        started = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        return time.perf_counter() - started
