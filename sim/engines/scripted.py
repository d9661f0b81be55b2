"""An engine whose answers are a function of the request: for tests of what asks, not of what answers."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from sim.engines.protocol import Capabilities, ChatReply, ChatRequest, ChooseReply, ChooseRequest, Usage

SCRIPTED = Capabilities(
    model="scripted",
    revision=None,
    seeds=True,
    structured=True,
    label_logprobs=True,
    system_role=True,
    alternation=True,
    thinking_switch=True,
    cached_tokens=False,
)


class ScriptedEngine:
    """Implements `Engine`; `write` gives a text, `weigh` gives probabilities. Keeps every request it got."""

    def __init__(
        self,
        write: Callable[[ChatRequest], str],
        weigh: Callable[[ChooseRequest], tuple[float, ...]],
        capabilities: Capabilities = SCRIPTED,
    ) -> None:
        self._write = write
        self._weigh = weigh
        self._capabilities = capabilities
        self.requests: list[ChatRequest | ChooseRequest] = []

    @property
    def capabilities(self) -> Capabilities:
        """What the script claims."""
        return self._capabilities

    async def chat(self, request: ChatRequest) -> ChatReply:
        """The script's text."""
        self.requests.append(request)
        return ChatReply(self._write(request), "stop", _usage(request))

    async def choose(self, request: ChooseRequest) -> ChooseReply:
        """The script's probabilities."""
        self.requests.append(request)
        return ChooseReply(self._weigh(request), _usage(request))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def _usage(request: ChatRequest | ChooseRequest) -> Usage:
    return Usage(prompt_tokens=sum(len(turn.content.split()) for turn in request.turns), completion_tokens=1)
