"""A real HTTP server in the form of vLLM's that misbehaves on demand, for tests of who asks it."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Misbehaving", dict[str, Any]], None]


class Misbehaving(BaseHTTPRequestHandler):
    """Serves /v1/models and completions; the next entries of the server's script decide how."""

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Silence."""

    def do_GET(self) -> None:
        """The models served; or health, by the server's word on it."""
        server: Any = self.server
        if self.path == "/health":
            self.raw(b"", server.health)
            return
        self.reply(
            {"object": "list", "data": [{"id": "tiny", "object": "model", "created": 0, "owned_by": "x"}]}
        )

    def do_POST(self) -> None:
        """A completion, by script."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server: Any = self.server
        server.requests.append(body)
        answer: Answer = server.script.pop(0) if server.script else server.usual
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
    text: str | None, tops: dict[str, float] | None = None, finish: str = "stop", prompt_tokens: int = 11
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
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 2, "total_tokens": prompt_tokens + 2,
                  "prompt_tokens_details": {"cached_tokens": 8}},
    }  # fmt: skip


def well(handler: Misbehaving, body: dict[str, Any]) -> None:
    """What a healthy server answers; its template adds four tokens where thinking is switched off."""
    labels = body.get("structured_outputs", {}).get("choice")
    thinks = body.get("chat_template_kwargs", {}).get("enable_thinking", True)
    if labels:
        share = [0.7, *([0.3 / (len(labels) - 1)] * (len(labels) - 1))]
        handler.reply(completion(labels[0], {a: math.log(p) for a, p in zip(labels, share, strict=True)}))
    elif "response_format" in body:
        handler.reply(completion('{"answer": "A", "confidence": 0.7}'))
    else:
        handler.reply(completion("yes", prompt_tokens=11 if thinks else 15))


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


def to(chosen: Callable[[dict[str, Any]], bool], fault: Answer) -> Answer:
    """A server that answers some requests with a fault, each time they are asked, and the others well."""

    def answer(handler: Misbehaving, body: dict[str, Any]) -> None:
        (fault if chosen(body) else well)(handler, body)

    return answer


class Server(ThreadingHTTPServer):
    """Holds the script of the next answers, the answer to all others, its health, and what was asked."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Misbehaving)
        self.script: list[Answer] = []
        self.usual: Answer = well
        self.health = 200
        self.requests: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        """Base URL of its OpenAI-compatible interface."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def running() -> Iterator[Server]:
    """A server for the time of the block."""
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
