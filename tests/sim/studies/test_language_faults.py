"""What becomes of a study whose server misbehaves: a real HTTP server, whole runs, every fault of the field.

A fault that passes costs a retry; an answer that says nothing leaves a stale belief, an empty message or an
abstention; a request that is given up fails its discussion, which is counted; a server that is gone stops the
run, which is resumed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from misbehaving_server import (
    Answer,
    Misbehaving,
    Server,
    broken_json,
    reset,
    stall,
    status,
    text,
    to,
    tops,
    well,
)

from sim.errors import UserError
from sim.launch import composed
from sim.records.rows import BranchRow, CallRow, DecisionRow, EpisodeRow, VoteRow
from sim.records.run_dir import read_status
from sim.records.store import read_rows
from sim.studies.verbs import run_stages

Config = Callable[..., dict[str, Any]]
SMALL = (
    "world=language", "engine=openai_server", "model=smollm2_135m", "model.name=tiny", "task=travel_few",
    "split=tiny", "split.train=2", "split.calibration=2", "split.test=2", "task.count=6", "world.horizon=2",
    "conformal=trajectory", "conformal.scaled=false", "conditions=[hidden_post,rules]", "certified=[]",
    "engine.first_wait_s=0.01", "engine.attempts=3", "engine.timeout_s=5", "engine.patience_s=5", "progress=false",
)  # fmt: skip
VERBAL = ("world.settings.elicitation=verbal", "world.settings.final_vote=verbal")
CALLS_OF_AN_EXPLORATION = 2 * (4 + 2 * 4 * (1 + 4) + 4)
"""Two tasks: four opening beliefs, two rounds of four branches with a message and four beliefs, four votes."""


@pytest.fixture(name="study")
def _study(server: Server, tmp_path: Path) -> Config:
    """Composes the small study against the server."""

    def make(*overrides: str, output: Path = tmp_path) -> dict[str, Any]:
        return composed(*SMALL, f"engine.urls=[{server.url}]", f"output={output}", *overrides)

    return make


def every(nth: int, fault: Answer) -> Answer:
    """A server that answers every nth request with a fault, and the others well."""
    numbers = count(1)

    def answer(handler: Misbehaving, body: dict[str, Any]) -> None:
        (fault if next(numbers) % nth == 0 else well)(handler, body)

    return answer


def asks_for_a_choice(body: dict[str, Any]) -> bool:
    """Whether a request asks a participant for one of the options: the canary knows no task."""
    return "structured_outputs" in body and "You take part" in body["messages"][0]["content"]


def asks_for_a_message(body: dict[str, Any]) -> bool:
    """Whether a request asks for a message to the group."""
    return "message to the group" in body["messages"][-1]["content"]


def check_whole(run: Path) -> None:
    """Every branch stands there once, every decision has its four, and no discussion failed."""
    branches = read_rows(run, BranchRow)
    keys = [(row.task, row.seed, row.path) for row in branches]
    assert len(set(keys)) == len(keys)
    assert read_status(run)["state"] == "finished"
    explored = [row for row in read_rows(run, EpisodeRow) if row.stage == "explore"]
    assert len(explored) == 2
    assert not [row.error for row in explored if row.error]
    at = {(row.task, row.seed, row.path) for row in branches}
    for decision in read_rows(run, DecisionRow):
        assert len(decision.candidates) == 4
        before = f"{decision.path}/" if decision.path else ""
        assert all((decision.task, decision.seed, before + step) in at for step in decision.candidates)


PASSING: dict[str, Answer] = {
    "overload": status(429, Retry_After="0.02"),
    "error": status(500),
    "unavailable": status(503),
    "reset": reset,
    "broken json": broken_json,
}


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_passes_costs_retries_and_nothing_else(
    server: Server, study: Config, fault: str
) -> None:
    server.usual = every(5, PASSING[fault])
    run = run_stages(study("engine.attempts=8"), {}, ("explore",))
    check_whole(run)
    calls = read_rows(run, CallRow)
    assert len(calls) == CALLS_OF_AN_EXPLORATION
    assert sum(call.retries for call in calls) > 10
    assert len(server.requests) >= len(calls) + sum(call.retries for call in calls)


def test_a_stall_is_waited_out_and_asked_again(server: Server, study: Config) -> None:
    server.usual = every(50, stall)
    run = run_stages(study("engine.timeout_s=0.5", "engine.attempts=8"), {}, ("explore",))
    check_whole(run)
    assert sum(call.retries for call in read_rows(run, CallRow)) >= 2


SILENT_CHOICES: dict[str, Answer] = {
    "NaN": tops({"A": float("nan"), "B": -0.1}),
    "an option not offered": tops({"E": -0.1, "yes": -3.0}),
    "no probabilities": text("A"),
}


@pytest.mark.parametrize("fault", SILENT_CHOICES)
def test_a_choice_that_says_nothing_is_a_stale_belief_and_an_abstention(
    server: Server, study: Config, fault: str
) -> None:
    server.usual = to(asks_for_a_choice, SILENT_CHOICES[fault])
    run = run_stages(study(), {}, ("explore",))
    check_whole(run)
    check_nothing_was_said(run)
    asked = [call for call in read_rows(run, CallRow) if call.purpose in ("belief", "vote")]
    assert asked
    assert all(call.finish_reason == "unparsable" and call.error for call in asked)


SILENT_TEXTS: dict[str, Answer] = {
    "empty": text(None),
    "refusal": text("I am sorry, but I cannot help with that."),
    "cut JSON": text('{"answer": "A", "confid', finish="length"),
    "invalid JSON": text('{"answer": A, "confidence": 0.9}'),
    "an option not offered": text('{"answer": "Z", "confidence": 0.9}'),
    "two options": text('{"answer": "AB", "confidence": 0.9}'),
    "confidence beyond one": text('{"answer": "A", "confidence": 90}'),
    "confidence that is no number": text('{"answer": "A", "confidence": NaN}'),
    "only a thought": text('<think>{"answer": "A", "confidence": 0.9}</think>'),
    "a thought without end": text('<think>Perhaps {"answer": "A", "confidence": 0.9}'),
}


@pytest.mark.parametrize("fault", SILENT_TEXTS)
def test_a_verbal_answer_that_says_nothing_is_a_stale_belief_and_an_abstention(
    server: Server, study: Config, fault: str
) -> None:
    server.usual = to(lambda body: "response_format" in body, SILENT_TEXTS[fault])
    run = run_stages(study(*VERBAL), {}, ("explore",))
    check_whole(run)
    check_nothing_was_said(run)


def check_nothing_was_said(run: Path) -> None:
    """No belief ever moved, nobody voted, nobody won, and nobody was left out."""
    for branch in read_rows(run, BranchRow):
        assert all(branch.stale)
        assert all(abs(share - 1 / 3) < 1e-9 for belief in branch.beliefs for share in belief)
    votes = read_rows(run, VoteRow)
    assert votes
    assert all(row.choice == [-1] * 4 for row in votes)
    assert all(row.decision == -1 and row.votes == [-1] * 4 for row in read_rows(run, EpisodeRow))


def test_an_empty_message_is_recorded_as_empty(server: Server, study: Config) -> None:
    server.usual = to(asks_for_a_message, text(None))
    run = run_stages(study(), {}, ("explore",))
    check_whole(run)
    said = [row for row in read_rows(run, BranchRow) if row.round > 0]
    assert {(row.text, row.words, row.novelty, row.overlap) for row in said} == {("", 0.0, 0.0, 1.0)}


def test_thoughts_and_the_speakers_name_are_not_published(server: Server, study: Config) -> None:
    thinking = "<think>I should hide it.\n</think>\n\nThe bridge is closed. <think>And now"
    server.usual = to(asks_for_a_message, text(thinking))
    run = run_stages(study(), {}, ("explore",))
    check_whole(run)
    assert {row.text for row in read_rows(run, BranchRow) if row.round} == {"The bridge is closed."}


def test_a_request_that_is_given_up_fails_its_discussion_which_is_counted_and_not_redone(
    server: Server, study: Config
) -> None:
    data = study()
    run_stages(data, {}, ("explore",))
    victim = next(body["messages"][0]["content"] for body in server.requests if asks_for_a_message(body))
    server.usual = to(
        lambda body: body["messages"][0]["content"] == victim and asks_for_a_message(body), status(400)
    )
    run = run_stages(study("name=again"), {}, ("explore",))
    assert read_status(run)["state"] == "finished"
    failed = [row for row in read_rows(run, EpisodeRow) if row.ending == "failed"]
    assert len(failed) == 1
    assert len(read_rows(run, EpisodeRow)) == 2
    assert "status 400" in failed[0].error
    asked = len(server.requests)
    run_stages({**data, "resume": str(run)}, {}, ("explore",))
    assert len([body for body in server.requests[asked:] if "You take part" in str(body)]) == 0


def test_a_dead_engine_behind_a_living_server_stops_the_run_resumable(server: Server, study: Config) -> None:
    dead = threading.Event()

    def dying(handler: Misbehaving, body: dict[str, Any]) -> None:
        if len(server.requests) > 40:
            server.health = 503
            dead.set()
        (status(500) if dead.is_set() else well)(handler, body)

    server.usual = dying
    with pytest.raises(UserError, match=r"its engine is dead; start the server again, then continue with"):
        run_stages(study(), {}, ("explore",))
    run = made_in(study())
    assert not [row for row in read_rows(run, EpisodeRow) if row.error], "no discussion is blamed for it"
    check_resumes(server, study, run)


def test_a_server_that_is_gone_stops_the_run_resumable(server: Server, study: Config) -> None:
    def leaving(handler: Misbehaving, body: dict[str, Any]) -> None:
        (reset if len(server.requests) > 40 else well)(handler, body)

    server.usual = leaving
    with pytest.raises(UserError, match=r"no answer \(.*\) after all retries; start the server again, then"):
        run_stages(study(), {}, ("explore",))
    check_resumes(server, study, made_in(study()))


def test_a_run_outlives_a_server_that_goes_and_comes_back(server: Server, study: Config) -> None:
    gone: list[float] = []

    def restarting(handler: Misbehaving, body: dict[str, Any]) -> None:
        if len(server.requests) > 40 and not gone:
            gone.append(time.monotonic())
        away = bool(gone) and time.monotonic() < gone[0] + 0.7
        (reset if away else well)(handler, body)

    server.usual = restarting
    run = run_stages(study("engine.attempts=12", "engine.patience_s=30"), {}, ("explore",))
    check_whole(run)
    calls = read_rows(run, CallRow)
    assert len(calls) == CALLS_OF_AN_EXPLORATION
    assert max(call.retries for call in calls) >= 4
    assert all(call.latency_s < 30 for call in calls)


def test_a_chairing_model_that_is_gone_stops_the_run_too(server: Server, study: Config) -> None:
    asks_the_chair = to(lambda body: "Seek evidence:" in str(body["messages"]), reset)
    server.usual = asks_the_chair
    with pytest.raises(UserError, match="start the server again"):
        run_stages(study("conditions=[llm]", "reference=llm"), {}, ("evaluate",))
    server.usual = well
    run = made_in(study())
    run_stages({**study(), "resume": str(run)}, {}, ("evaluate",))
    assert [row.error for row in read_rows(run, EpisodeRow)] == ["", ""]


def made_in(data: dict[str, Any]) -> Path:
    """The run directory in the output folder."""
    (made,) = [path.parent for path in Path(data["output"]).glob("*/config.yaml")]
    return made


def check_resumes(server: Server, study: Config, run: Path) -> None:
    """With a server that works the run goes on, keeps what was paid for, and asks only what is missing."""
    assert read_status(run)["state"] == "failed"
    before = read_rows(run, BranchRow)
    server.usual, server.health = well, 200
    server.requests.clear()
    run_stages({**study(), "resume": str(run)}, {}, ("explore",))
    check_whole(run)
    assert read_rows(run, BranchRow)[: len(before)] == before
    asked = [body for body in server.requests if "You take part" in str(body)]
    assert 0 < len(asked) < CALLS_OF_AN_EXPLORATION


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """A file system of its own with so much room."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small file system takes root")
@pytest.mark.parametrize("kilobytes", [36, 44, 56, 72])
def test_a_disk_that_fills_up_is_one_line_and_more_room_finishes_the_run(
    kilobytes: int, server: Server, study: Config, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", kilobytes) as disk:
        data = study(output=disk)
        with pytest.raises(UserError, match=r"No space left on device; free some space") as refused:
            run_stages(data, {}, ("explore",))
        assert "\n" not in str(refused.value)
        assert str(disk) in str(refused.value)
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        run = made_in(data)
        before = len(read_rows(run, BranchRow)) if (run / "branches.jsonl").exists() else 0
        server.requests.clear()
        run_stages({**data, "resume": str(run)}, {}, ("explore",))
        check_whole(run)
        messages = [body for body in server.requests if asks_for_a_message(body)]
        assert len(messages) <= 16 - max(0, before - 2)


def test_no_request_leaves_without_a_bound_on_its_tokens(server: Server, study: Config) -> None:
    """Over every kind of request there is: canary, messages, three kinds of beliefs, votes, proposals."""
    conditions = "conditions=[full_info,llm]"
    kinds = ("choice", "choice_cyclic", "verbal")
    for kind in kinds:
        vote = "verbal" if kind == "verbal" else "choice"
        more = (f"world.settings.elicitation={kind}", f"world.settings.final_vote={vote}", f"name={kind}")
        run_stages(study(conditions, "reference=full_info", *more), {}, ("evaluate",))
    settings = study()["world"]["settings"]
    longest = max(settings[name] for name in ("max_tokens", "verbal_tokens", "vote_tokens"))
    assert len(server.requests) > 200
    assert all(1 <= body["max_tokens"] <= longest for body in server.requests)
    assert {body["max_tokens"] for body in server.requests} == {
        1, settings["max_tokens"], settings["verbal_tokens"], settings["vote_tokens"]
    }  # fmt: skip


def test_a_refused_connection_is_one_line_with_the_address(study: Config) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port}.*no answer") as refused:
        run_stages(
            study(f"engine.urls=[http://127.0.0.1:{port}/v1]", "engine.patience_s=1"), {}, ("explore",)
        )
    assert "\n" not in str(refused.value)
