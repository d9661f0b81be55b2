"""An engine whose answers are a function of the request: for tests of what asks, not of what answers, and for
trying a configuration out without any model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec

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


class ScriptedEngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing can be set."""


def echo(request: ChatRequest) -> str:
    """A line of what was shown, picked by the request's key; the like in JSON where a schema asks for it."""
    lines = [line.strip() for line in request.turns[-1].content.splitlines() if line.strip()]
    line = lines[request.key % len(lines)]
    if request.schema is None:
        return line
    return json.dumps(_example(request.schema, request.schema.get("$defs", {}), request.key, line))


def _example(what: Mapping[str, Any], defined: Any, key: int, line: str) -> object:
    """A value that a JSON schema allows; arrays are as short as may be."""
    if "$ref" in what:
        return _example(defined[what["$ref"].rpartition("/")[2]], defined, key, line)
    if "anyOf" in what:
        return _example(what["anyOf"][key % len(what["anyOf"])], defined, key, line)
    if "enum" in what:
        return what["enum"][key % len(what["enum"])]
    if what["type"] == "object":
        return {name: _example(part, defined, key, line) for name, part in what["properties"].items()}
    if what["type"] == "array":
        return [_example(what["items"], defined, key, line)] * what.get("minItems", 0)
    if what["type"] == "string":
        return line[: what.get("maxLength", len(line))]
    return {"boolean": False, "integer": 0, "null": None}.get(what["type"], 0.5)


def equally(request: ChooseRequest) -> tuple[float, ...]:
    """No label rather than another."""
    return tuple(1 / len(request.labels) for _ in request.labels)


class ScriptedEngine:
    """Implements `Engine`; `write` gives a text, `weigh` gives probabilities. Keeps every request it got."""

    def __init__(
        self,
        write: Callable[[ChatRequest], str] = echo,
        weigh: Callable[[ChooseRequest], tuple[float, ...]] = equally,
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
