"""Groups of several models: everybody speaks and believes by its own engine, servers fail one by one, tables add up."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from sim.discussion.seating import seated
from sim.errors import UserError
from sim.records.rows import BranchRow, CallRow, EpisodeRow, VoteRow
from sim.records.store import read_rows
from sim.report.build import build_report
from sim.studies.verbs import run_stages

Config = Callable[..., dict[str, Any]]
SMALL = (
    "world=language", "task.count=3", "split.train=0", "split.pilot=0", "split.calibration=0", "split.test=3",
    "world.horizon=2", "conditions=[hidden_pre,hidden_post]", "certified=[]", "test_seeds=[0,1]",
)  # fmt: skip
ROWS = (BranchRow, VoteRow, EpisodeRow)


class Server(BaseHTTPRequestHandler):
    """A model on a real socket that says its name. On demand its first messages fail (`failures`), or it answers
    so many requests and no more (`left`)."""

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Silence."""

    def do_GET(self) -> None:
        """The model served."""
        owner: Any = self.server
        entry = {"id": owner.name, "object": "model", "created": 0, "owned_by": "x"}
        self.reply({"object": "list", "data": [entry]})

    def do_POST(self) -> None:
        """A completion: sure of the label the server likes, or a text with its name."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        owner: Any = self.server
        owner.requests.append(body)
        if owner.left is not None:
            owner.left -= 1
            if owner.left < 0:
                self.close_connection = True
                return
        if owner.failures > 0 and body["max_tokens"] > 1:
            owner.failures -= 1
            self.reply({"error": {"message": "busy"}}, 503)
            return
        tops = [{"token": label, "logprob": -0.1 if label == owner.likes else -3.0} for label in "ABC"]
        content = [{**tops[0], "top_logprobs": tops, "bytes": None}] if body.get("logprobs") else None
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": owner.likes if content else f"I am {owner.name}."},
            "logprobs": {"content": content} if content else None,
        }
        usage = {"prompt_tokens": owner.cost, "completion_tokens": 1, "total_tokens": owner.cost + 1}
        self.reply(
            {
                "id": "x", "object": "chat.completion", "created": 0, "model": owner.name,
                "choices": [choice], "usage": usage,
            }
        )  # fmt: skip

    def reply(self, content: object, status: int = 200) -> None:
        """A JSON answer."""
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Running:
    """A server on a free port; it prefers one label, and every prompt costs so many tokens."""

    def __init__(self, name: str, likes: str, cost: int) -> None:
        make: Any = ThreadingHTTPServer
        self.server = make(("127.0.0.1", 0), Server)
        self.server.name, self.server.likes, self.server.cost = name, likes, cost
        self.server.requests, self.server.failures, self.server.left = [], 0, None
        self.port: int = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}/v1"

    def stop(self) -> None:
        """Nobody answers any more."""
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(autouse=True)
def _small_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the time of a small report is spent on pixels."""
    monkeypatch.setattr("sim.report.figures._DPI", 20)


@pytest.fixture(name="pair")
def _pair() -> Iterator[tuple[Running, Running]]:
    running = Running("first", "A", 10), Running("second", "C", 1000)
    yield running
    for one in running:
        one.stop()


def members(*servers: Running) -> list[str]:
    """Overrides that seat some servers, in turn."""
    described = [
        f"{one.server.name}:{{model:{{name:{one.server.name},id:x,context:4096}},urls:['{one.url}']}}"
        for one in servers
    ]
    order = ",".join(one.server.name for one in servers)
    return [
        "engine=openai_server", "engine.attempts=3", "engine.first_wait_s=0.01", "engine.patience_s=5",
        f"+seats.members={{{','.join(described)}}}", f"seats.order=[{order}]",
    ]  # fmt: skip


def table(directory: Path, name: str) -> pd.DataFrame:
    """A table of a report."""
    return pd.read_csv(directory / "tables" / f"{name}.csv")


def content(directory: Path) -> list[bytes]:
    """Every row that tables are made of, without order."""
    return sorted(msgspec.json.encode(row) for kind in ROWS for row in read_rows(directory, kind))


def test_everybody_speaks_and_believes_by_its_own_server(
    config: Config, tmp_path: Path, pair: tuple[Running, Running]
) -> None:
    directory = run_stages(config(tmp_path, *SMALL, *members(*pair)), {}, ("evaluate",))
    calls = read_rows(directory, CallRow)
    assert {call.model for call in calls} == {"first", "second"}
    for call in calls:
        assert call.model == seated(["first", "second"], "both", call.task, call.seed, 4)[call.agent]
    for row in read_rows(directory, BranchRow):
        playing = seated(["first", "second"], "both", row.task, row.seed, 4)
        if row.speaker >= 0:
            assert row.text == f"I am {playing[row.speaker]}."
        costs = [call.prompt_tokens for call in calls if (call.task, call.seed, call.path) == (row.task, row.seed, row.path)
                 and call.purpose != "vote"]  # fmt: skip
        assert sum(costs) == row.prompt_tokens
    for one in pair:
        own = [call for call in calls if call.model == one.server.name]
        discussed = [body for body in one.server.requests if "letter Z" not in str(body["messages"])]
        assert len(discussed) == len(own) > 0
        assert {call.prompt_tokens for call in own} == {one.server.cost}


def test_tables_by_seat_and_member_add_up(
    config: Config, tmp_path: Path, pair: tuple[Running, Running]
) -> None:
    directory = run_stages(config(tmp_path, *SMALL, *members(*pair)), {}, ("evaluate",))
    build_report(directory)
    by_member = table(directory, "members").set_index(["condition", "member"])
    by_seat = table(directory, "seats")
    assert set(by_seat["seat"]) == {1, 2, 3, 4}
    assert by_seat.groupby(["condition", "member"])["n"].sum().to_dict() == by_member["n"].to_dict()
    for condition, messages in (("hidden_pre", 0), ("hidden_post", 2)):
        assert by_member.loc[condition]["messages"].sum() * 2 == pytest.approx(messages)
    assert (
        by_member["prompt_tokens"].xs("second", level=1)
        > 50 * by_member["prompt_tokens"].xs("first", level=1)
    ).all()
    episodes = [row for row in read_rows(directory, EpisodeRow) if row.condition == "hidden_post"]
    right = [
        row.votes[agent] == row.answer
        for row in episodes
        for agent, member in enumerate(seated(["first", "second"], "both", row.task, row.seed, 4))
        if member == "second"
    ]
    assert by_member.loc[("hidden_post", "second"), "vote_accuracy"] == pytest.approx(sum(right) / len(right))
    assert by_member.loc[("hidden_post", "second"), "belief_accuracy"] == pytest.approx(
        sum(right) / len(right)
    )


def test_a_busy_server_is_waited_for_and_one_that_dies_ends_the_run_resumably(
    config: Config, tmp_path: Path, pair: tuple[Running, Running]
) -> None:
    overrides = (*SMALL, *members(*pair))
    whole = run_stages(config(tmp_path / "whole", *overrides), {}, ("evaluate",))
    pair[1].server.left = 30
    with pytest.raises(UserError, match=rf"127.0.0.1:{pair[1].port}.*continue with resume="):
        run_stages(config(tmp_path / "cut", *overrides), {}, ("evaluate",))
    (cut,) = (tmp_path / "cut").iterdir()
    before = len(read_rows(cut, CallRow))
    assert 0 < before < len(read_rows(whole, CallRow))
    pair[1].server.left = None
    pair[0].server.failures = pair[1].server.failures = 2
    run_stages(config(tmp_path / "cut", *overrides, f"resume={cut}"), {}, ("evaluate",))
    assert content(cut) == content(whole)
    assert sum(call.retries for call in read_rows(cut, CallRow)[before:]) == 4


def test_a_group_of_the_studys_own_model_is_the_study_itself(config: Config, tmp_path: Path) -> None:
    """Rows and calls are the same bytes, but for how long a call took."""
    alone = run_stages(config(tmp_path, *SMALL, "engine=scripted"), {}, ("evaluate",))
    own = ("+model@seats.members.own.model=smollm2_135m", "seats.order=[own]", "name=group")
    group = run_stages(config(tmp_path, *SMALL, "engine=scripted", *own), {}, ("evaluate",))
    assert content(alone) == content(group)
    first, second = (
        [msgspec.structs.replace(row, latency_s=0.0) for row in read_rows(path, CallRow)]
        for path in (alone, group)
    )
    assert first == second
    build_report(alone)
    assert not (alone / "tables" / "members.csv").exists()


def test_a_group_replays_without_any_model(config: Config, tmp_path: Path) -> None:
    """Tables of a replay hold what was kept: accuracies of votes, but neither tokens nor, here, branches."""
    pair = ("seats=laptop", "engine=scripted")
    recorded = run_stages(config(tmp_path / "first", *SMALL, *pair), {}, ("evaluate",))
    again = (f"replay={recorded}", "record=decisions")
    replayed = run_stages(config(tmp_path / "again", *SMALL, *pair, *again), {}, ("evaluate",))
    for run in (recorded, replayed):
        build_report(run)
    first, second = (table(run, "members") for run in (recorded, replayed))
    assert first["vote_accuracy"].tolist() == second["vote_accuracy"].tolist()
    assert first["prompt_tokens"].min() > 0
    assert second[["prompt_tokens", "belief_accuracy", "messages"]].isna().all(axis=None)


def test_a_member_whose_server_gives_up_fails_the_discussion_and_counts_as_wrong(
    config: Config, tmp_path: Path, pair: tuple[Running, Running]
) -> None:
    """503 to every message of one server: nobody is dropped, and the failure is listed."""
    pair[1].server.failures = 10**6
    directory = run_stages(config(tmp_path, *SMALL, *members(*pair)), {}, ("evaluate",))
    build_report(directory)
    lost = [row for row in read_rows(directory, EpisodeRow) if row.ending == "failed"]
    assert lost
    assert all(row.condition == "hidden_post" and "status 503" in row.error for row in lost)
    found = table(directory, "members").set_index(["condition", "member"])
    assert found.loc["hidden_post"]["n"].tolist() == [12, 12]
    assert found.loc["hidden_post"]["messages"].notna().all()


def test_prompted_controllers_ask_the_studys_own_model(
    config: Config, tmp_path: Path, pair: tuple[Running, Running]
) -> None:
    chair = Running("chair", "A", 5)
    study = (
        *SMALL, *members(*pair), f"engine.urls=[{chair.url}]", "model.name=chair", "conditions=[llm]", "reference=llm",
    )  # fmt: skip
    try:
        directory = run_stages(config(tmp_path, *study), {}, ("evaluate",))
    finally:
        chair.stop()
    calls = read_rows(directory, CallRow)
    assert {call.model for call in calls if call.purpose == "proposal"} == {"chair"}
    assert {call.model for call in calls if call.purpose != "proposal"} == {"first", "second"}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("seats.order=[nobody]",), "seats.order names 'nobody', which is no member"),
        (("seats=laptop", "seats.order=[strong,nobody]"), "it must be one of strong, weak"),
        (("seats=laptop", "seats.rotate=sometimes"), "seats.rotate"),
        (("seats=laptop", "world=cognitive"), "choose world=language, or seats=one_model"),
        (
            ("seats=laptop", "seats.members.strong.model.context=0"),
            "seats.members.strong: .*model.context is 0",
        ),
        (("seats=laptop", "seats.members.strong.urls=[http://x]"), "choose engine=openai_server"),
        (
            ("seats=qwen3_ladder", "seats.rotate=none"),
            "seats.order names 5 members, but task .* has 4 agents",
        ),
    ],
)
def test_a_wrong_group_is_one_line(
    overrides: tuple[str, ...], words: str, config: Config, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        run_stages(config(tmp_path / "runs", *SMALL, *overrides), {}, ("evaluate",))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()
