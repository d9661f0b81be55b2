"""The server client against a real HTTP server that misbehaves on demand."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sim.engines.limits import AdaptiveLimit
from sim.engines.models import ModelConfig, Template
from sim.engines.openai_server import OpenAIServerEngine, ServerEngineConfig
from sim.engines.protocol import (
    BadReply,
    ChatReply,
    ChatRequest,
    ChooseReply,
    ChooseRequest,
    EngineDown,
    EngineError,
    Turn,
)
from sim.errors import UserError

Answer = Callable[["Misbehaving", dict[str, Any]], None]
ASK = ChatRequest(
    (Turn("system", "Be brief."), Turn("user", "Say yes.")), max_tokens=7, key=5, affinity="t/0"
)
PICK = ChooseRequest((Turn("user", "Which?"),), ("A", "B", "C"), "t/0")


class Misbehaving(BaseHTTPRequestHandler):
    """Serves /v1/models and completions; the next entries of the server's script decide how."""

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Silence."""

    def do_GET(self) -> None:
        """The models served."""
        self.reply(
            {"object": "list", "data": [{"id": "tiny", "object": "model", "created": 0, "owned_by": "x"}]}
        )

    def do_POST(self) -> None:
        """A completion, by script."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server: Any = self.server
        server.requests.append(body)
        answer: Answer = server.script.pop(0) if server.script else well
        answer(self, body)

    def reply(self, content: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """A JSON answer."""
        self.raw(json.dumps(content).encode(), status, headers)

    def raw(self, data: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Any answer."""
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def completion(
    text: str | None, tops: dict[str, float] | None = None, finish: str = "stop"
) -> dict[str, Any]:
    """A completion as vLLM gives it."""
    logprobs = None
    if tops is not None:
        entries = [{"token": token, "logprob": value, "bytes": None} for token, value in tops.items()]
        logprobs = {"content": [{**entries[0], "top_logprobs": entries}], "refusal": None}
    return {
        "id": "1", "object": "chat.completion", "created": 0, "model": "tiny",
        "choices": [{"index": 0, "finish_reason": finish, "logprobs": logprobs,
                     "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13,
                  "prompt_tokens_details": {"cached_tokens": 8}},
    }  # fmt: skip


def well(handler: Misbehaving, body: dict[str, Any]) -> None:
    """What a healthy server answers."""
    labels = body.get("structured_outputs", {}).get("choice")
    if labels:
        share = [0.7, *([0.3 / (len(labels) - 1)] * (len(labels) - 1))]
        handler.reply(completion(labels[0], {a: math.log(p) for a, p in zip(labels, share, strict=True)}))
    else:
        handler.reply(completion("yes"))


def status(code: int, **headers: str) -> Answer:
    """An error status."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return lambda handler, body: handler.reply({"error": {"message": f"status {code}"}}, code, named)


def text(content: str | None, finish: str = "stop") -> Answer:
    """A given text."""
    return lambda handler, body: handler.reply(completion(content, finish=finish))


def tops(found: dict[str, float]) -> Answer:
    """Given log-probabilities."""
    return lambda handler, body: handler.reply(completion("A", found))


def reset(handler: Misbehaving, body: dict[str, Any]) -> None:
    """Close the connection without a word."""
    handler.connection.shutdown(socket.SHUT_RDWR)


def broken_json(handler: Misbehaving, body: dict[str, Any]) -> None:
    """Half an answer."""
    handler.raw(b'{"id": "1", "choices": [')


def stall(handler: Misbehaving, body: dict[str, Any]) -> None:
    """Say nothing until the client has given up."""
    time.sleep(1.0)


class Server(ThreadingHTTPServer):
    """Holds the script and what was asked."""

    daemon_threads = True
    script: list[Answer]
    requests: list[dict[str, Any]]


@pytest.fixture(name="server")
def _server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Misbehaving)
    server.script, server.requests = [], []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def engine(server: Server, **settings: Any) -> OpenAIServerEngine:
    """A client of the server, impatient."""
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    config = ServerEngineConfig(
        **{
            "urls": (url,),
            "timeout_s": 5.0,
            "attempts": 3,
            "first_wait_s": 0.02,
            "patience_s": 5.0,
            **settings,
        }
    )
    return OpenAIServerEngine(ModelConfig("tiny", "tiny", 4096), config)


def chat(server: Server, *script: Answer, request: ChatRequest = ASK, **settings: Any) -> ChatReply:
    """One text from a started engine, under a script that begins after the canary."""

    async def go() -> ChatReply:
        async with engine(server, **settings) as opened:
            server.script = list(script)
            server.requests.clear()
            return await opened.chat(request)

    return asyncio.run(go())


def choose(server: Server, *script: Answer) -> ChooseReply:
    """One choice from a started engine."""

    async def go() -> ChooseReply:
        async with engine(server) as opened:
            server.script = list(script)
            return await opened.choose(PICK)

    return asyncio.run(go())


def test_the_canary_records_what_it_found(server: Server) -> None:
    async def go() -> None:
        async with engine(server) as opened:
            found = opened.capabilities
            assert found.structured
            assert found.label_logprobs
            assert found.system_role
            assert not found.alternation
            assert found.cached_tokens
            assert not found.seeds

    asyncio.run(go())
    assert all(body["max_tokens"] >= 1 for body in server.requests)


def test_the_canary_notices_a_constraint_that_does_not_bind_and_a_refused_system_role(server: Server) -> None:
    server.script = [well, text("Z"), status(400), status(400)]

    async def go() -> None:
        async with engine(server) as opened:
            assert not opened.capabilities.structured
            assert not opened.capabilities.label_logprobs
            assert not opened.capabilities.system_role
            assert opened.capabilities.alternation
            server.requests.clear()
            await opened.chat(ASK)

    asyncio.run(go())
    assert [turn["role"] for turn in server.requests[0]["messages"]] == ["user"]
    assert server.requests[0]["messages"][0]["content"] == "Be brief.\n\nSay yes."


def test_a_request_sends_every_sampling_parameter_and_a_bound(server: Server) -> None:
    assert chat(server).text == "yes"
    body = server.requests[0]
    assert body["max_tokens"] == 7
    assert (body["temperature"], body["top_p"]) == (0.8, 0.95)
    assert {"top_k", "min_p", "repetition_penalty"} <= body.keys()
    assert "seed" not in body
    chat(server, seeds=True)
    assert server.requests[-1]["seed"] == 5


PASSING = {
    "overload": status(429, Retry_After="0.1"),
    "error": status(500),
    "unavailable": status(503),
    "reset": reset,
    "broken json": broken_json,
    "stall": stall,
}


@pytest.mark.parametrize("fault", PASSING)
def test_passing_faults_are_retried(server: Server, fault: str) -> None:
    patience: dict[str, Any] = {"timeout_s": 0.4} if fault == "stall" else {}
    reply = chat(server, PASSING[fault], PASSING[fault], **patience)
    assert reply.text == "yes"
    assert reply.usage.retries == 2
    assert reply.usage.cached_tokens == 8


@pytest.mark.parametrize(("fault", "words"), [(status(500), "status 500"), (status(429), "status 429")])
def test_retries_are_bounded(server: Server, fault: Answer, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        chat(server, *[fault] * 50)
    assert len(server.requests) == 3


def test_a_stalled_or_absent_server_is_down(server: Server) -> None:
    with pytest.raises(EngineDown, match="no answer"):
        chat(server, *[stall] * 50, timeout_s=0.4)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(EngineDown, match=rf"127\.0\.0\.1:{port}"):
        asyncio.run(_enter(engine(server, urls=(f"http://127.0.0.1:{port}/v1",), patience_s=1.0)))


async def _enter(opened: OpenAIServerEngine) -> None:
    async with opened:
        pass


def test_a_wrong_request_is_never_repeated(server: Server) -> None:
    with pytest.raises(EngineError, match="status 400"):
        chat(server, status(400))
    assert len(server.requests) == 1


def test_empty_text_and_a_cut_one_come_back_as_they_are(server: Server) -> None:
    assert chat(server, text(None)).text == ""
    assert chat(server, text("{", finish="length")).finish_reason == "length"


def test_label_probabilities_are_renormalised_in_the_order_of_the_labels(server: Server) -> None:
    found = choose(server, tops({" B": math.log(0.3), "A": math.log(0.1), "the": math.log(0.5)}))
    assert found.probabilities == pytest.approx((0.25, 0.75, 0.0))
    assert sum(choose(server).probabilities) == pytest.approx(1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (tops({"A": float("nan")}), "NaN"),
        (tops({"yes": -0.1}), "none of the labels"),
        (text("A"), "no log-prob"),
    ],
)
def test_a_choice_that_holds_none_is_a_bad_reply(server: Server, answer: Answer, words: str) -> None:
    with pytest.raises(BadReply, match=words):
        choose(server, answer)


def test_replicas_share_the_load_by_discussion(server: Server) -> None:
    second = Server(("127.0.0.1", 0), Misbehaving)
    second.script, second.requests = [], []
    threading.Thread(target=second.serve_forever, daemon=True).start()
    urls = tuple(f"http://127.0.0.1:{s.server_address[1]}/v1" for s in (server, second))

    async def go() -> None:
        async with engine(server, urls=urls) as opened:
            server.requests.clear()
            second.requests.clear()
            for _ in range(3):
                await asyncio.gather(
                    *(opened.choose(ChooseRequest(PICK.turns, ("A", "B"), f"t/{i}")) for i in range(12))
                )

    asyncio.run(go())
    assert len(server.requests) + len(second.requests) == 36
    assert len(server.requests) % 3 == 0
    assert server.requests
    assert second.requests
    second.shutdown()
    second.server_close()


def test_another_model_than_the_one_served_is_refused(server: Server) -> None:
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    other = OpenAIServerEngine(ModelConfig("big", "org/big", 4096), ServerEngineConfig((url,)))
    with pytest.raises(UserError, match=r"model\.name is 'big', but the server .* serves tiny"):
        asyncio.run(_enter(other))


def test_thinking_is_switched_off_with_every_request(server: Server) -> None:
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    model = ModelConfig("tiny", "tiny", 4096, template=Template(arguments={"enable_thinking": False}))

    async def go() -> None:
        async with OpenAIServerEngine(model, ServerEngineConfig((url,))) as opened:
            await opened.chat(ASK)
            await opened.choose(PICK)

    asyncio.run(go())
    assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in server.requests)


def test_a_missing_key_names_the_variable_and_no_secret(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(UserError, match="SOME_KEY is not set"):
        engine(server, key_variable="SOME_KEY")


def test_the_limit_gives_way_and_recovers() -> None:
    limit = AdaptiveLimit(8)
    limit.overloaded()
    assert limit.allowed == 4
    for _ in range(4):
        limit.succeeded()
    assert limit.allowed == 5

    async def crowd() -> int:
        most = 0

        async def one() -> None:
            nonlocal most
            async with limit.slot():
                most = max(most, limit.running)
                await asyncio.sleep(0)

        await asyncio.gather(*(one() for _ in range(40)))
        return most

    assert asyncio.run(crowd()) == 5
