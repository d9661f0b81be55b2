"""Where servers are, by a file: published whole, awaited with a bound, followed by a client when they move."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sim.engines.models import ModelConfig
from sim.engines.openai_server import OpenAIServerEngine, ServerEngineConfig
from sim.engines.protocol import ChatRequest, Turn
from sim.engines.url_file import awaited_urls, current_urls, published
from sim.errors import UserError

URL = "http://127.0.0.1:1/v1"


@contextmanager
def served(name: str) -> Iterator[str]:
    """The URL of a server that answers everything with its own name, for the time of the block."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({"object": "list", "data": [{"id": "tiny", "object": "model"}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            choice = {"message": {"content": name}, "finish_reason": "stop"}
            self.reply({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})

        def reply(self, content: dict[str, object]) -> None:
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_file_is_there_while_somebody_serves(tmp_path: Path) -> None:
    path = tmp_path / "urls.json"
    entry = f"file:{path}"
    assert current_urls([entry]) is None
    with published(path, [URL, "http://b/v1"]):
        assert current_urls([entry, "http://c/v1"]) == (URL, "http://b/v1", "http://c/v1")
    assert current_urls([entry]) is None
    assert list(tmp_path.iterdir()) == []
    assert awaited_urls([URL], 0) == (URL,)


def test_a_file_that_comes_in_time_is_found(tmp_path: Path) -> None:
    path = tmp_path / "urls.json"
    timer = threading.Timer(0.2, lambda: path.write_text(json.dumps([URL])))
    timer.start()
    assert awaited_urls([f"file:{path}"], 30) == (URL,)
    timer.join()


def test_waiting_ends(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.json: no server published its URL there in 0\.1 s"):
        awaited_urls([URL, f"file:{tmp_path / 'absent.json'}"], 0.1)


@pytest.mark.parametrize("content", ["{", "{}", "[]", "[1]", '"http://a"'])
def test_a_file_of_something_else_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "urls.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"engine\.urls: .*urls\.json"):
        current_urls([f"file:{path}"])


def test_a_client_follows_a_server_that_moved(tmp_path: Path) -> None:
    path = tmp_path / "urls.json"
    config = ServerEngineConfig((f"file:{path}",), attempts=20, first_wait_s=0.01, patience_s=30)
    request = ChatRequest(
        (Turn("user", "Who?"),), max_tokens=4, temperature=1.0, top_p=1.0, key=0, affinity="a"
    )

    async def asked() -> list[str]:
        with served("first") as url, published(path, [url]):
            engine = await OpenAIServerEngine(ModelConfig("tiny", "tiny", 128), config).__aenter__()
            said = [(await engine.chat(request)).text]
        try:
            with served("second") as url, published(path, [url]):
                said.append((await engine.chat(request)).text)
        finally:
            await engine.__aexit__(None, None, None)
        return said

    assert asyncio.run(asked()) == ["first", "second"]
