"""A server with the face of vLLM and no model behind it: it starts at once, so that jobs can be tested by themselves.

Called as vLLM is: stand_in_server.py -m vllm.entrypoints.openai.api_server --host H --port P --served-model-name M.
"""

from __future__ import annotations

import http.server
import json
import math
import sys
from typing import Any


def option(name: str) -> str:
    """The value of an option."""
    return sys.argv[sys.argv.index(f"--{name}") + 1]


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The first label where labels are asked for, else a sentence that depends on the prompt."""
    labels = asked.get("structured_outputs", {}).get("choice")
    length = len(json.dumps(asked["messages"]))
    choice: dict[str, Any] = {"message": {"content": f"I know of {length} things."}, "finish_reason": "stop"}
    if labels:
        likely = [{"token": label, "logprob": math.log(1 / (2 + i))} for i, label in enumerate(labels)]
        choice["message"] = {"content": labels[0]}
        choice["logprobs"] = {"content": [{"top_logprobs": likely}]}
    return {"choices": [choice], "usage": {"prompt_tokens": length, "completion_tokens": 5}}


class Handler(http.server.BaseHTTPRequestHandler):
    """Health, the list of models, and chat completions."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer a health check or a question for models."""
        models = {"object": "list", "data": [{"id": option("served-model-name"), "object": "model"}]}
        self.reply(models if self.path.endswith("/models") else {})

    def do_POST(self) -> None:
        """Answer a chat completion."""
        self.reply(answer(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

    def reply(self, content: dict[str, Any]) -> None:
        """Send some JSON."""
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


if __name__ == "__main__":
    http.server.ThreadingHTTPServer((option("host"), int(option("port"))), Handler).serve_forever()
