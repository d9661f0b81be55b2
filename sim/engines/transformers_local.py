"""A language model in this process, with transformers; enough for small models on a laptop.

Requests that wait together run as one batch. The prefix they share is computed once and its key-value cache
is kept for later requests, so that agents, branches and rounds of a discussion share work.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec

from sim.engines.models import ModelConfig
from sim.engines.protocol import (
    Capabilities,
    ChatReply,
    ChatRequest,
    ChooseReply,
    ChooseRequest,
)
from sim.errors import UserError


class LocalEngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the local engine runs; `batch` bounds the requests of one forward pass."""

    batch: int = 32
    threads: int | None = None
    kept_prefixes: int = 16

    def __post_init__(self) -> None:
        if self.batch < 1 or self.kept_prefixes < 1:
            raise UserError("engine.batch and engine.kept_prefixes must be at least 1")


@dataclass
class _Waiting:
    """A request with the future of its reply."""

    request: ChatRequest | ChooseRequest
    reply: asyncio.Future[Any]


class TransformersEngine:
    """Implements `Engine` on a local checkpoint, hub id, or the packaged SmolLM2."""

    def __init__(self, model: ModelConfig, config: LocalEngineConfig) -> None:
        self._model = model
        self._config = config
        self._waiting: list[_Waiting] = []
        self._running: asyncio.Task[None] | None = None
        self._worker = ThreadPoolExecutor(1, "transformers")
        self._runner: Any = None
        self._capabilities: Capabilities | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What was found at start-up."""
        if self._capabilities is None:
            raise RuntimeError("the engine is not started; use it as an async context manager")
        return self._capabilities

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._runner = await loop.run_in_executor(self._worker, self._load)
        template = self._runner.template
        self._capabilities = Capabilities(
            model=self._model.name,
            revision=self._runner.revision,
            seeds=True,
            structured=False,
            label_logprobs=True,
            system_role=template.system_role,
            alternation=template.alternation,
            thinking_switch=template.thinking_switch,
            cached_tokens=True,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            self._running.cancel()
        for item in self._waiting:
            item.reply.cancel()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._runner = None

    async def chat(self, request: ChatRequest) -> ChatReply:
        """Generate a text; requests waiting together share forward passes."""
        reply: ChatReply = await self._submit(request)
        return reply

    async def choose(self, request: ChooseRequest) -> ChooseReply:
        """Label probabilities from the logits at the answer's first token, renormalised over the labels."""
        reply: ChooseReply = await self._submit(request)
        return reply

    def _load(self) -> Any:
        from sim.engines.transformers_runner import Runner

        return Runner(self._model, self._config)

    async def _submit(self, request: ChatRequest | ChooseRequest) -> Any:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(request, reply))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._drain())
        return await reply

    async def _drain(self) -> None:
        """Serve what waits, batch by batch: all of one kind that were asked before the batch starts."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        while batch := self._next_batch():
            requests = [item.request for item in batch]
            try:
                outcomes = await loop.run_in_executor(self._worker, self._runner.serve, requests)
            except asyncio.CancelledError:
                for item in batch:
                    item.reply.cancel()
                raise
            except Exception as error:  # told to everybody who waits for this batch
                outcomes = [error] * len(batch)
            for item, outcome in zip(batch, outcomes, strict=True):
                _settle(item.reply, outcome)
            await asyncio.sleep(0)

    def _next_batch(self) -> list[_Waiting]:
        """The oldest requests of one kind that somebody still waits for; empty where nothing waits."""
        wanted = [item for item in self._waiting if not item.reply.done()]
        kind = type(wanted[0].request) if wanted else None
        batch = [item for item in wanted if type(item.request) is kind][: self._config.batch]
        taken = {id(item) for item in batch}
        self._waiting = [item for item in wanted if id(item) not in taken]
        return batch


def _settle(reply: asyncio.Future[Any], outcome: Any) -> None:
    """Give a request its reply or its error, unless whoever asked has gone."""
    if reply.done():
        return
    if isinstance(outcome, Exception):
        reply.set_exception(outcome)
    else:
        reply.set_result(outcome)
