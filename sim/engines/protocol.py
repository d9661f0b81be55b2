"""The Engine protocol: what a language model must offer, whoever serves it.

An engine knows nothing of discussions: it turns messages into text, or into probabilities over labels. Every
request carries a bound on its tokens; an engine that gives up raises a typed error, never a guess.
"""

from __future__ import annotations

from types import TracebackType
from typing import Literal, Protocol, Self

import msgspec

Role = Literal["system", "user", "assistant"]


class Turn(msgspec.Struct, frozen=True):
    """One turn of a chat."""

    role: Role
    content: str


class ChatRequest(msgspec.Struct, frozen=True):
    """A text to generate. `key` is a 64-bit seed for engines that can use one; requests of one `affinity`
    share a prefix and go to one replica; `schema` binds the reply to a JSON schema where the engine can."""

    turns: tuple[Turn, ...]
    max_tokens: int
    key: int
    temperature: float = 0.8
    top_p: float = 0.95
    affinity: str = ""
    schema: dict[str, object] | None = None


class ChooseRequest(msgspec.Struct, frozen=True):
    """One of several labels to choose; the reply is the probability of each."""

    turns: tuple[Turn, ...]
    labels: tuple[str, ...]
    affinity: str = ""


class Usage(msgspec.Struct, frozen=True):
    """What a request took; `cached_tokens` is None where the engine does not say."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    latency_s: float = 0.0
    retries: int = 0
    replica: int = 0


class ChatReply(msgspec.Struct, frozen=True):
    """A generated text; `finish_reason` is `stop`, or `length` where the token bound cut it."""

    text: str
    finish_reason: str
    usage: Usage


class ChooseReply(msgspec.Struct, frozen=True):
    """Probabilities of the labels, in their order; they sum to 1."""

    probabilities: tuple[float, ...]
    usage: Usage


class Capabilities(msgspec.Struct, frozen=True):
    """What an engine was found able to do at start-up; recorded with every run, assumed nowhere."""

    model: str
    revision: str | None
    seeds: bool
    structured: bool
    label_logprobs: bool
    system_role: bool
    alternation: bool
    thinking_switch: bool
    cached_tokens: bool


class EngineError(Exception):
    """An engine gave up on a request after its bounded retries; the message says what happened last."""


class EngineDown(EngineError):
    """The engine itself is gone: nothing will succeed until it is back; the run can be resumed."""


class BadReply(EngineError):
    """The engine answered, but not what was asked for: an unoffered label, NaN, an empty text."""


class Engine(Protocol):
    """An open engine; use it as an async context manager."""

    @property
    def capabilities(self) -> Capabilities:
        """What was found at start-up."""
        ...

    async def chat(self, request: ChatRequest) -> ChatReply:
        """Generate a text. Raises EngineError."""
        ...

    async def choose(self, request: ChooseRequest) -> ChooseReply:
        """Probabilities of labels. Raises EngineError."""
        ...

    async def __aenter__(self) -> Self:
        """Start and probe the engine."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release it."""
        ...
