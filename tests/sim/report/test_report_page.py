"""The page as a file: self-contained, inert data, recorded text that stays text, and clues in messages."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import msgspec
import pandas as pd
import pytest

from sim.records.rows import BranchRow
from sim.report.build import build_report
from sim.report.clues import mention_finder
from sim.report.discussions import discussion_chunks, pack
from sim.report.page import SCRIPTS, STYLES, table_content
from sim.report.source import read_run

HOSTILE = (
    "</script><script>window.hacked = true</script><img src=x onerror=alert(1)> & \"quoted\" 'text' <!-- "
)


class Elements(HTMLParser):
    """Start tags with their attributes, and the text of every script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag == "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts.append((self.tags[-1][1], data))

    def handle_endtag(self, tag: str) -> None:
        self._inside = False


def unpacked(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


@pytest.fixture
def hostile_page(worked_example: Any) -> str:
    """A page of a run in which every recorded text is an attack."""
    changed = {"text": HOSTILE, "error": HOSTILE}
    worked_example.rows = [
        msgspec.structs.replace(row, **{k: v for k, v in changed.items() if getattr(row, k, "")})
        for row in worked_example.rows
    ]
    worked_example.tasks.clear()
    worked_example.task("a", name=HOSTILE, description=HOSTILE, hidden_information=(HOSTILE, HOSTILE))
    worked_example.task("b", "Oak Lane")
    config = f"notice: {json.dumps(HOSTILE)}\n"
    return build_report(worked_example.write(config=config)).page.read_text()


def test_hostile_text_adds_no_element(hostile_page: str) -> None:
    page = Elements(hostile_page)
    assert not [attributes for tag, attributes in page.tags if tag == "img"]
    assert len([tag for tag, _ in page.tags if tag == "script"]) == 3
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert hostile_page.count("window.hacked") == 1, "the notice, escaped, and nowhere else in the clear"
    assert "&lt;script&gt;window.hacked" in hostile_page


def test_hostile_text_survives_in_the_data(hostile_page: str) -> None:
    scripts = {attributes.get("id"): text for attributes, text in Elements(hostile_page).scripts}
    chunk = unpacked(scripts["chunk-0-0"] or "")
    assert chunk["a"]["task"]["name"] == HOSTILE
    assert chunk["a"]["branches"]["0"]["route@0"]["text"] == HOSTILE
    assert unpacked(scripts["index"] or "")["notice"] == HOSTILE


def test_the_policy_allows_exactly_the_pages_own_script_and_style(hostile_page: str) -> None:
    policy = next(a["content"] for tag, a in Elements(hostile_page).tags if a.get("http-equiv")) or ""
    assert "default-src 'none'" in policy
    script = next(
        text for attributes, text in Elements(hostile_page).scripts if attributes.get("type") == "module"
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    style = re.search(r"<style>(.*?)</style>", hostile_page, re.DOTALL)
    assert style is not None
    assert base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode() in policy


def test_the_page_loads_nothing(hostile_page: str) -> None:
    for _, attributes in Elements(hostile_page).tags:
        assert not set(attributes) & {"src", "srcset", "action", "data"}
        assert (attributes.get("href") or "#").startswith("#")


def test_scripts_write_text_as_text_only() -> None:
    folder = resources.files("sim.report") / "static"
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|https?://(?!www\.w3\.org/2000/svg)|fetch\("
    for name in SCRIPTS + STYLES:
        assert not re.findall(forbidden, (folder / name).read_text()), name


def test_packing_is_reproducible_and_exact() -> None:
    content = {"text": "naïve ☃ </script>", "numbers": [1, 0.25, None]}
    assert pack(content) == pack(content)
    assert base64.b64decode(pack(content))[4:8] == bytes(4), "no time of day in the gzip header"
    assert unpacked(pack(content)) == content
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", pack(content))


def test_missing_and_infinite_cells_are_told_apart() -> None:
    content = table_content(
        pd.DataFrame({"a": [float("nan"), float("inf"), 0.5], "b": ["x", None, "z"], "n": [1, 2, 3]})
    )
    assert content == {"columns": ["a", "b", "n"], "rows": [[None, "x", 1], ["inf", None, 2], [0.5, "z", 3]]}


def test_a_document_holds_paths_taken_and_not_taken(worked_example: Any) -> None:
    chunks = discussion_chunks(read_run(worked_example.write()))
    document = unpacked(chunks.packed[chunks.chunk_of["a"]])["a"]
    assert set(document["branches"]["0"]) == {
        "", "full_info", "free@0", "route@0", "seek_evidence@1", "route@0/route@0", "route@0/seek_evidence@1",
        "seek_evidence@1/route@0", "seek_evidence@1/seek_evidence@1",
    }  # fmt: skip
    gate = next(e for e in document["episodes"] if e["condition"] == "rules+gate")
    assert [d["executed"] for d in gate["decisions"]] == [1, 0]
    assert gate["decisions"][0]["regrets"] == [0.1, 0.0]
    assert gate["decisions"][0]["admissible"] == [False, True]


def test_a_budget_keeps_whole_chunks_and_says_what_is_left_out(run_writer: Callable[[str], Any]) -> None:
    run = run_writer("large")
    for i in range(40):
        run.episode("rules", f"t{i:02}", 0, (0, 0), rounds=1, path="route@0")
        run.decision("rules", f"t{i:02}", 1, [0.2, 0.1])
        run.branch(f"t{i:02}", "route@0", text="word " * 4000)
    chunks = discussion_chunks(read_run(run.write()), budget=1)
    assert 0 < len(chunks.chunk_of) < 40
    held = [task for text in chunks.packed for task in unpacked(text)]
    assert held == sorted(chunks.chunk_of)


def test_unknown_tasks_are_shown_with_numbered_options(worked_example: Any) -> None:
    worked_example.tasks.clear()
    chunks = discussion_chunks(read_run(worked_example.write()))
    assert unpacked(chunks.packed[0])["a"]["task"]["options"] == ["option 1", "option 2"]


@pytest.mark.parametrize(
    ("text", "novelty", "expected"),
    [
        ("Careful: Elm Street floods every spring.", 0.0, [0]),
        ("They say it floods in spring; and a tram stop, a new one, is coming.", 0.0, [0, 1]),
        ("Elm Street is cheap.", 0.0, []),
        ("", 0.8, [1]),
        ("", 0.2, []),
    ],
)
def test_clues_are_found_by_their_distinctive_words(
    worked_example: Any, text: str, novelty: float, expected: list[int]
) -> None:
    branch = BranchRow("a", 0, "route@1", 1, "route", 1, 0, 5.0, novelty, 0.0, [[0.5, 0.5]], [False], text)
    assert mention_finder(worked_example.tasks[0])(branch) == expected
