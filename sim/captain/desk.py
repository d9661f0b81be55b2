"""The desk of one episode: every model call goes over it, is counted against one budget of tokens and entered
in the ledger with component, tokens, latency and price. It does not know what is asked.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from sim.captain.config import Price, Settings
from sim.engines.protocol import (
    ChatReply,
    ChatRequest,
    ChooseReply,
    ChooseRequest,
    Engine,
    EngineError,
    Turn,
    Usage,
)
from sim.randomness import keys
from sim.records.captain_rows import CaptainCallRow, Identity

Q = TypeVar("Q", ChatRequest, ChooseRequest)
R = TypeVar("R", ChatReply, ChooseReply)
_TEMPLATE_TOKENS = 32
_TOKENS_PER_BYTE = 0.5
_MILLION = 1_000_000


class BudgetSpent(EngineError):
    """The episode's tokens are spent: the call was not made. The method returns the best it has."""


@dataclass(frozen=True)
class Call:
    """What a call is for. `place` is unique within the episode and seeds the call's randomness."""

    component: str
    purpose: str
    place: str
    agent: str = ""


@dataclass
class Desk:
    """Model calls of one episode. `engines` are open, by the name of their backbone."""

    engines: Mapping[str, Engine]
    settings: Settings
    identity: Identity
    prices: Mapping[str, Price]
    log: Callable[[CaptainCallRow], None]
    spent: int = 0
    exhausted: bool = False
    calls: int = 0
    _held: int = 0
    _per_byte: float = _TOKENS_PER_BYTE

    def engine(self, component: str) -> Engine:
        """The backbone of a component: experts may have one of their own."""
        expert = self.settings.expert_backbone if component == "expert" else None
        return self.engines[expert or self.settings.backbone]

    def key(self, place: str) -> int:
        """The 64-bit seed of whatever is random at a place; conditions share it."""
        return int(keys("captain", self.identity.problem, self.identity.seed, place)[0])

    async def write(
        self, call: Call, turns: tuple[Turn, ...], max_tokens: int, schema: dict[str, object] | None = None
    ) -> ChatReply:
        """A text. Raises BudgetSpent before the call, or EngineError."""
        request = ChatRequest(
            turns,
            max_tokens,
            self.key(call.place),
            self.settings.temperature,
            self.settings.top_p,
            f"{self.identity.problem}/{call.component}",
            schema,
        )
        return await self.chat(call, request)

    async def chat(self, call: Call, request: ChatRequest) -> ChatReply:
        """A text for a request made elsewhere, on this desk's account; it can be stored whatever is in it."""
        reply = await self._served(call, request, request.max_tokens, self.engine(call.component).chat)
        return msgspec.structs.replace(reply, text=reply.text.encode(errors="replace").decode())

    async def choose(self, call: Call, request: ChooseRequest) -> ChooseReply:
        """Probabilities of labels. Raises BudgetSpent before the call, or EngineError."""
        return await self._served(call, request, 1, self.engine(call.component).choose)

    async def _served(self, call: Call, request: Q, most: int, send: Callable[[Q], Awaitable[R]]) -> R:
        """Hold back what a call may take at most, send it, and enter what it took.

        The prompt is estimated from its bytes, by the densest prompt seen so far, because engines do not
        count before they answer.
        """
        size = sum(len(turn.content.encode()) for turn in request.turns)
        held = math.ceil(size * self._per_byte) + _TEMPLATE_TOKENS + most
        if self.spent + self._held + held > self.settings.budget:
            self.exhausted = True
            raise BudgetSpent(
                f"{self.spent} of {self.settings.budget} tokens are spent; {call.purpose} needs {held}"
            )
        self._held += held
        prompt, model = msgspec.json.encode(request.turns), self.engine(call.component).capabilities.model
        try:
            reply = await send(request)
        except EngineError as error:
            self.enter(call, model, Usage(0, 0), "error", prompt, str(error))
            raise
        finally:
            self._held -= held
        used = reply.usage
        self.spent += used.prompt_tokens + used.completion_tokens
        self._per_byte = max(self._per_byte, (used.prompt_tokens - _TEMPLATE_TOKENS) / max(size, 1))
        self.enter(call, model, used, getattr(reply, "finish_reason", "stop"), prompt)
        return reply

    def enter(
        self, call: Call, model: str, used: Usage, finish: str = "stop", prompt: bytes = b"", error: str = ""
    ) -> None:
        """A line of the ledger. A model that the price table does not name has no price; it is not free."""
        rate = self.prices.get(model)
        paid = None if rate is None else _paid(used, rate)
        row = CaptainCallRow(
            episode=self.identity,
            number=self.calls,
            component=call.component,
            purpose=call.purpose,
            place=call.place,
            agent=call.agent,
            model=model,
            prompt_hash=hashlib.blake2b(prompt, digest_size=8).hexdigest() if prompt else "",
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            completion_tokens=used.completion_tokens,
            latency_s=used.latency_s,
            retries=used.retries,
            finish_reason=finish,
            price=paid,
            error=error,
        )
        self.calls += 1
        self.log(row)


def _paid(used: Usage, rate: Price) -> float:
    """US dollars."""
    return (used.prompt_tokens * rate.prompt + used.completion_tokens * rate.completion) / _MILLION
