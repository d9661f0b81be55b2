"""Client of vLLM servers, one or many replicas, and of any OpenAI-compatible endpoint.

One retry layer, bounded in time; typed errors; capabilities found by a canary at start-up. A key comes from the
environment and is never logged.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx2
import msgspec
import openai
from openai import AsyncOpenAI
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, stop_after_delay

from sim.engines.limits import AdaptiveLimit
from sim.engines.models import ModelConfig
from sim.engines.protocol import (
    BadReply,
    Capabilities,
    ChatReply,
    ChatRequest,
    ChooseReply,
    ChooseRequest,
    EngineDown,
    EngineError,
    Turn,
    Usage,
)
from sim.engines.turns import folded
from sim.engines.url_file import PREFIX, awaited_urls, current_urls
from sim.engines.wire import Completion, decoded
from sim.errors import UserError, shown
from sim.randomness import text_key

_UNAVAILABLE = 503
_OVERLOADED = (429, _UNAVAILABLE)
_SCHEMES = ("http://", "https://", PREFIX)
_HEALTH_TIMEOUT_S = 10.0
_MOST_LOGPROBS = 20
_LONGEST_WAIT_S = 20.0
_AS_JSON = {"Content-Type": "application/json"}
_CANARY = (Turn("user", "Reply with the letter Z."),)


class ServerEngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the servers are and how patient to be; `seeds` only where the server is known to survive them."""

    urls: tuple[str, ...] = ()
    """Base URLs, or `file:<path>` of a file that a server in a job publishes its URLs in."""
    wait_s: float = 3600.0
    """How long to wait for such a file."""
    key_variable: str | None = None
    in_flight: int = 128
    timeout_s: float = 120.0
    attempts: int = 8
    patience_s: float = 240.0
    first_wait_s: float = 0.5
    seeds: bool = False

    def __post_init__(self) -> None:
        for url in self.urls:
            if not url.startswith(_SCHEMES):
                raise UserError(
                    f"engine.urls names {shown(url)}; a URL starts with http:// or https://, such as "
                    f"{shown('http://' + url)}, and the file of a server with {PREFIX}"
                )
        if self.in_flight < 1 or self.attempts < 1:
            raise UserError("engine.in_flight and engine.attempts must be at least 1")
        if self.timeout_s <= 0 or self.patience_s <= 0:
            raise UserError("engine.timeout_s and engine.patience_s must be positive")


class OpenAIServerEngine:
    """Implements `Engine`; requests of one affinity go to one replica."""

    def __init__(self, model: ModelConfig, config: ServerEngineConfig) -> None:
        """Raises UserError where no URL is given, or the key's variable is not set."""
        self._model = model
        self._config = config
        self._limit = AdaptiveLimit(config.in_flight)
        self._urls = _urls(model, config)
        self._clients = [self._client(url) for url in self._urls]
        self._left: list[AsyncOpenAI] = []
        self._capabilities: Capabilities | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What the canary found."""
        if self._capabilities is None:
            raise RuntimeError("the engine is not started; use it as an async context manager")
        return self._capabilities

    async def __aenter__(self) -> Self:
        try:
            served = await self._retried(0, lambda client: client.models.list())
            names = [entry.id for entry in served.data]
            if self._model.endpoint is None and self._served not in names:
                raise UserError(
                    f"model.name is {self._served!r}, but the server at {self._clients[0].base_url} serves "
                    f"{', '.join(names)}; start it with scripts/serve.py model=<the same>"
                )
            self._capabilities = await self._probed()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def chat(self, request: ChatRequest) -> ChatReply:
        """Generate a text. Raises EngineError after bounded retries, EngineDown if nobody answers."""
        reply, usage = await self._completion(self.body_of(request), request.affinity)
        return ChatReply(reply.text, reply.finish_reason, usage)

    async def choose(self, request: ChooseRequest) -> ChooseReply:
        """Label probabilities of one constrained token. Raises BadReply where the reply holds none."""
        reply, usage = await self._completion(self.body_of(request), request.affinity)
        return ChooseReply(reply.label_probabilities(request.labels), usage)

    def body_of(self, request: ChatRequest | ChooseRequest) -> dict[str, Any]:
        """What is sent for a request."""
        if isinstance(request, ChooseRequest):
            return self._body(request.turns, 1) | self._one_of(request.labels)
        body = self._body(request.turns, request.max_tokens)
        body |= {"temperature": request.temperature, "top_p": request.top_p}
        if self.capabilities.seeds:
            body["seed"] = request.key % 2**31
        if request.schema is not None and self.capabilities.structured:
            schema = {"name": "answer", "schema": request.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    @property
    def in_flight(self) -> int:
        """Requests that the servers are working on now."""
        return self._limit.running

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return self._limit.allowed

    @property
    def _served(self) -> str:
        return self._model.id if self._model.endpoint else self._model.name

    def _client(self, url: str) -> AsyncOpenAI:
        endpoint = self._model.endpoint
        variable = self._config.key_variable or (endpoint.key_variable if endpoint else None)
        key = os.environ.get(variable) if variable else "none"
        if not key:
            raise UserError(f"the environment variable {variable} is not set; export the key of {url}")
        return AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=self._config.timeout_s)

    def _body(self, turns: Sequence[Turn], max_tokens: int) -> dict[str, Any]:
        native = self._capabilities is None or self._capabilities.system_role
        spoken = list(turns) if native else folded(turns)
        arguments = self._model.template.arguments
        return {
            "model": self._served,
            "messages": _messages(spoken),
            "max_tokens": max_tokens,
            **self._model.sampling.sent(),
            **({"chat_template_kwargs": dict(arguments)} if arguments else {}),
        }

    def _one_of(self, labels: Sequence[str]) -> dict[str, Any]:
        constraint = {"structured_outputs": {"choice": list(labels)}} if self._model.endpoint is None else {}
        asked = min(_MOST_LOGPROBS, max(5, len(labels)))
        return {"temperature": 1.0, "top_p": 1.0, "logprobs": True, "top_logprobs": asked, **constraint}

    async def _completion(self, body: Mapping[str, Any], affinity: str) -> tuple[Completion, Usage]:
        content = msgspec.json.encode(body)
        replica = text_key(affinity) % len(self._clients)
        started = time.perf_counter()
        tries = 0

        async def once(client: AsyncOpenAI) -> Completion:
            nonlocal tries
            tries += 1
            async with self._limit.slot() as bursts_before:
                try:
                    response = await client.post(
                        "/chat/completions",
                        cast_to=httpx2.Response,
                        content=content,
                        options={"headers": _AS_JSON},
                    )
                except openai.APIStatusError as error:
                    if error.status_code in _OVERLOADED:
                        self._limit.overloaded(bursts_before)
                    raise
            reply = decoded(response.content)
            if not reply.choices:
                raise BadReply("the server's reply holds no choice")
            self._limit.succeeded()
            return reply

        reply = await self._retried(replica, once)
        latency = time.perf_counter() - started
        return reply, reply.taken(latency, tries - 1, replica)

    async def _retried(self, replica: int, ask: Callable[[AsyncOpenAI], Awaitable[Any]]) -> Any:
        stop = stop_after_attempt(self._config.attempts) | stop_after_delay(self._config.patience_s)
        try:
            async for attempt in AsyncRetrying(
                stop=stop,
                wait=self._wait,
                retry=retry_if_exception(self._transient),
                before_sleep=self._follow,
                reraise=True,
            ):
                client = self._clients[replica % len(self._clients)]
                with attempt:
                    return await ask(client)
        except openai.APIConnectionError as error:
            raise EngineDown(f"{client.base_url}: no answer ({_cause(error)}) after all retries") from error
        except openai.APIStatusError as error:
            said = f"{client.base_url}: status {error.status_code}: {_words(error)}"
            if error.status_code >= 500 and await self._is_dead(client):
                raise EngineDown(f"{said}; its health check says that its engine is dead") from error
            raise EngineError(said) from error
        except (openai.OpenAIError, ValueError) as error:
            raise EngineError(f"{client.base_url}: {type(error).__name__}: {error}") from error
        raise AssertionError("unreachable: every attempt returns or raises")

    async def _is_dead(self, client: AsyncOpenAI) -> bool:
        """Whether a vLLM server says that the engine behind it is dead, or does not answer any more."""
        if self._model.endpoint is not None:
            return False
        url = client.base_url.join("/health")
        try:
            await client.get(str(url), cast_to=httpx2.Response, options={"timeout": _HEALTH_TIMEOUT_S})
        except openai.APIConnectionError:
            return True
        except openai.APIStatusError as error:
            return error.status_code == _UNAVAILABLE
        return False

    def _transient(self, error: BaseException) -> bool:
        """Whether to ask again: never after a 4xx that says the request itself is wrong."""
        if isinstance(error, openai.APIStatusError):
            return error.status_code in _OVERLOADED or error.status_code >= 500 or error.status_code == 408
        return isinstance(
            error, openai.APIConnectionError | openai.APIResponseValidationError | BadReply | ValueError
        )

    def _follow(self, state: RetryCallState) -> None:
        """After a failed try: go where the servers are by now, if a file says so; a requeued one has moved."""
        urls = current_urls(self._config.urls)
        if urls and urls != self._urls:
            self._left += self._clients
            self._urls, self._clients = urls, [self._client(url) for url in urls]

    def _wait(self, state: RetryCallState) -> float:
        """What the server asks for in Retry-After, else doubling; never more than the bound."""
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, openai.APIStatusError):
            asked = error.response.headers.get("retry-after", "")
            if asked.replace(".", "", 1).isdigit():
                return min(float(asked), _LONGEST_WAIT_S)
        return min(self._config.first_wait_s * 2.0 ** (state.attempt_number - 1), _LONGEST_WAIT_S)

    async def _probed(self) -> Capabilities:
        """One small request per question, so that nothing is assumed (FIELD)."""
        _, usage = await self._completion(self._body(_CANARY, 1), "canary")
        structured, logprobs = await self._probe_choice()
        return Capabilities(
            model=self._model.name,
            revision=self._model.revision,
            seeds=self._config.seeds,
            structured=structured,
            label_logprobs=logprobs,
            system_role=await self._accepts(Turn("system", "Be brief."), *_CANARY),
            alternation=not await self._accepts(*_CANARY, *_CANARY),
            thinking_switch=await self._thinking_switch(),
            cached_tokens=usage.cached_tokens is not None,
        )

    async def _probe_choice(self) -> tuple[bool, bool]:
        """Whether a constraint binds although the prompt asks for something else, and label probabilities come."""
        body = self._body(_CANARY, 1) | self._one_of(("A", "B"))
        try:
            reply, _ = await self._completion(body, "canary")
        except EngineError:
            return False, False
        said = reply.text.strip()
        try:
            reply.label_probabilities(("A", "B"))
        except BadReply:
            return said in ("A", "B"), False
        return said in ("A", "B"), True

    async def _accepts(self, *turns: Turn) -> bool:
        body = self._body(turns, 1)
        body["messages"] = _messages(turns)
        try:
            await self._completion(body, "canary")
        except EngineDown:
            raise
        except EngineError:
            return False
        return True

    async def _thinking_switch(self) -> bool:
        """Whether `enable_thinking` changes the prompt, seen by its length; a vendor's endpoint has no template."""
        if self._model.endpoint is not None:
            return False
        lengths = []
        for thinking in (True, False):
            arguments = {**self._model.template.arguments, "enable_thinking": thinking}
            body = self._body(_CANARY, 1) | {"chat_template_kwargs": arguments}
            try:
                _, usage = await self._completion(body, "canary")
            except EngineDown:
                raise
            except EngineError:
                return False
            lengths.append(usage.prompt_tokens)
        return lengths[0] != lengths[1]

    async def _close(self) -> None:
        await asyncio.gather(*(client.close() for client in [*self._left, *self._clients]))


def _urls(model: ModelConfig, config: ServerEngineConfig) -> tuple[str, ...]:
    urls = awaited_urls(config.urls, config.wait_s) or ((model.endpoint.url,) if model.endpoint else ())
    if not urls:
        raise UserError("engine.urls is empty; give the URL that scripts/serve.py printed")
    return urls


def _messages(turns: Sequence[Turn]) -> list[dict[str, str]]:
    return [{"role": turn.role, "content": turn.content} for turn in turns]


def _cause(error: BaseException) -> str:
    cause = error.__cause__ or error
    return str(cause) or type(cause).__name__


def _words(error: openai.APIStatusError) -> str:
    return " ".join(str(error.message).split())[:300]
