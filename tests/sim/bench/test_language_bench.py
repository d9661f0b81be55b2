"""The language bench compares like with like: what it replays raw, and what its plain runners ask for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from misbehaving_server import Server, status, to

from sim.bench.config import BENCHES, BenchConfig, LanguageBench
from sim.bench.language_runs import Exploration, explored, replayed_raw
from sim.bench.plain_runners import PlainRunner, run_in_threads, run_sequentially
from sim.errors import UserError
from sim.launch import composed
from sim.tasks import HiddenProfileTask, generate_travel, write_tasks
from sim.worlds.language import LanguageSettings

ROUNDS = 2
TASKS: tuple[HiddenProfileTask, ...] = tuple(
    generate_travel("easy", 3, seed=1, n_agents=4, n_options=3, n_shared=4)
)


def of_the_discussions(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Requests without the canary's."""
    return [body for body in bodies if "You take part" in body["messages"][0]["content"]]


@pytest.fixture
def exploration(server: Server, tmp_path: Path) -> Exploration:
    """An exploration of the tasks against the stand-in; the server keeps what it was asked."""
    write_tasks(tmp_path / "tasks.json", TASKS)
    return explored(
        composed(
            "world=language", "engine=openai_server", f"engine.urls=[{server.url}]", "model=smollm2_135m",
            "model.name=tiny", f"world.horizon={ROUNDS}", "task=file", f"task.path={tmp_path / 'tasks.json'}",
            "split=few", "split.train=1.0", "split.calibration=0", "split.test=0", "conditions=[hidden_pre]",
            "reference=hidden_pre", "certified=[]", "conformal=trajectory", "stop.quorum=null",
            f"output={tmp_path / 'runs'}", "progress=false",
        )
    )  # fmt: skip


def test_what_is_replayed_raw_is_what_the_toolkit_sent(server: Server, exploration: Exploration) -> None:
    sent = Counter(msgspec.json.encode(body, order="sorted") for body in of_the_discussions(server.requests))
    server.requests.clear()
    assert replayed_raw(server.url, exploration.bodies, 8) > 0
    raw = Counter(msgspec.json.encode(body, order="sorted") for body in server.requests)
    assert raw == sent
    assert exploration.branches == len(TASKS) * ROUNDS * 4
    assert exploration.seconds > 0
    assert max(exploration.in_flight) <= 128


def test_plain_runners_ask_for_as_much_as_the_toolkit(server: Server, exploration: Exploration) -> None:
    def work() -> Counter[tuple[object, ...]]:
        """How many requests there are of each kind, by what they ask and how long their first turn is."""
        kinds: Counter[tuple[object, ...]] = Counter(
            (body["max_tokens"], body["messages"][0]["content"])
            for body in of_the_discussions(server.requests)
        )
        server.requests.clear()
        return kinds

    toolkit = work()
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    runner = PlainRunner(client, "tiny", LanguageSettings(), ROUNDS)
    assert run_sequentially(runner, TASKS) == exploration.branches
    assert work() == toolkit
    assert run_in_threads(runner, TASKS) == exploration.branches
    assert work() == toolkit


def test_a_refused_raw_request_is_an_error(server: Server, exploration: Exploration) -> None:
    server.usual = to(lambda body: body["max_tokens"] > 1, status(400))
    with pytest.raises(Exception, match="400 Bad Request"):
        replayed_raw(server.url, exploration.bodies, 4)


def test_a_wrong_size_or_name_is_named() -> None:
    data = composed(config_name="bench")
    assert msgspec.convert(data, BenchConfig).only == ()
    sizes = msgspec.convert(data["language"], LanguageBench)
    small = sizes.reduced()
    assert (small.tasks, small.repetitions) == (6, 1)
    with pytest.raises(UserError, match=r"language\.rounds is 0"):
        msgspec.structs.replace(sizes, rounds=0)
    with pytest.raises(UserError, match=f"only: 'gpu' is unknown; give some of {', '.join(BENCHES)}"):
        BenchConfig(("gpu",), False, "runs", sizes)
