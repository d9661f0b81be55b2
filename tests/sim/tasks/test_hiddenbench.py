"""HiddenBench: families by shared facts, position baselines, and the hub at a pinned revision."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.errors import UserError
from sim.tasks import family_names, fetch_hiddenbench, load_hiddenbench, position_baselines

SAMPLE = Path(__file__).parents[4] / "shared" / "data" / "hiddenbench_sample.json"
REVISION = "0123456789abcdef" * 2 + "01234567"
Record = dict[str, Any]
Write = Callable[[object], Path]


def test_ids_become_text_and_shared_facts_make_families(records: list[Record], write: Write) -> None:
    tasks = load_hiddenbench(write(records))
    assert [task.id for task in tasks] == ["1", "2", "3", "4", "5", "6"]
    assert [task.family for task in tasks] == ["family-1"] * 3 + ["family-4", "family-5", "family-6"]
    assert all(task.evidence is None for task in tasks)


def test_a_shared_description_is_a_shared_fact(records: list[Record], write: Write) -> None:
    records[5]["description"] = records[3]["description"].upper()
    families = [task.family for task in load_hiddenbench(write(records))]
    assert families[3] == families[5] == "family-4"


def test_texts_without_words_join_nothing() -> None:
    assert family_names(["a", "b"], [["...", "one"], ["...", "two"]]) == ("family-a", "family-b")
    assert family_names(["a", "b"], [["One!"], ["one"]]) == ("family-a", "family-a")


def test_position_baselines_count_first_and_last(records: list[Record], write: Write) -> None:
    tasks = load_hiddenbench(write(records))
    assert position_baselines(tasks) == {"always_first": 1 / 6, "always_last": 4 / 6}
    with pytest.raises(UserError, match="0 tasks"):
        position_baselines(())


@pytest.mark.skipif(not SAMPLE.exists(), reason="the HiddenBench sample is not beside this checkout")
def test_published_sample() -> None:
    tasks = load_hiddenbench(SAMPLE)
    families = {task.id: task.family for task in tasks}
    assert len(tasks) == 20
    assert families["1"] == families["2"] == families["3"]
    assert len(set(families.values())) == 18
    assert position_baselines(tasks)["always_last"] == 0.5


@pytest.mark.parametrize("revision", ["main", "", "v1", "ABCDEF" * 7, REVISION[:12]])
def test_a_revision_that_can_change_is_refused(revision: str) -> None:
    with pytest.raises(UserError, match=r"'revision'.*40-digit") as caught:
        fetch_hiddenbench(revision)
    assert repr(revision) in str(caught.value)


class _Hub(http.server.BaseHTTPRequestHandler):
    """The two requests of the hub's protocol that a download makes, for one file at one revision."""

    content = b""

    def do_HEAD(self) -> None:
        expected = f"/datasets/YuxuanLi1225/HiddenBench/resolve/{REVISION}/data/benchmark.json"
        if self.path != expected:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("ETag", '"0123456789"')
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, *args: Any) -> None:
        """Stay silent."""


@pytest.fixture
def hub(records: list[Record], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(_Hub, "content", json.dumps(records).encode())
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_fetches_and_then_needs_no_hub(hub: str, tmp_path: Path) -> None:
    tasks = fetch_hiddenbench(REVISION, cache_dir=tmp_path, endpoint=hub)
    assert [task.id for task in tasks] == ["1", "2", "3", "4", "5", "6"]
    assert fetch_hiddenbench(REVISION, cache_dir=tmp_path, endpoint=_closed()) == tasks


def test_an_unknown_revision_is_one_line(hub: str, tmp_path: Path) -> None:
    other = REVISION[::-1]
    with pytest.raises(UserError, match=f"{other} cannot be fetched") as caught:
        fetch_hiddenbench(other, cache_dir=tmp_path, endpoint=hub)
    assert "\n" not in str(caught.value)


def test_an_unreachable_hub_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    with pytest.raises(UserError, match=r"cannot be fetched.*give its path") as caught:
        fetch_hiddenbench(REVISION, cache_dir=tmp_path, endpoint=_closed())
    assert "\n" not in str(caught.value)


def _closed() -> str:
    """The address of a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
