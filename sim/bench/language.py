"""Speed of the language world on a real vLLM server: against raw requests, against plain runners, by belief mode.

Every ratio is of two things measured in one run on one server, each from an empty prefix cache.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from sim.bench.config import BenchConfig, LanguageBench
from sim.bench.language_runs import Exploration, explored, replayed_raw
from sim.bench.language_server import BLOCK_SIZE, CountedServer, bench_server
from sim.bench.measure import Measurement, seconds
from sim.bench.plain_runners import PlainRunner, run_in_threads, run_sequentially
from sim.engines.models import ModelConfig
from sim.launch import composed
from sim.tasks import HiddenProfileTask, generate_travel, load_tasks, write_tasks
from sim.worlds.language import LanguageSettings

MODEL = ModelConfig("smollm2_135m", "smollm2_135m", context=4096)
_PARTS = 5


@dataclass(frozen=True)
class _Bench:
    """A running server, the tasks in a file, and the sizes."""

    server: CountedServer
    sizes: LanguageBench
    folder: Path
    tasks: tuple[HiddenProfileTask, ...]

    def explored(self, few: bool = False, **settings: object) -> tuple[Exploration, float]:
        """An exploration from an empty cache, and the share of its prompt tokens that the cache held."""
        count, rounds = (
            (self.few_tasks, self.sizes.few_rounds) if few else (len(self.tasks), self.sizes.rounds)
        )
        data = composed(
            *self._overrides(count, rounds), *(f"world.settings.{k}={v}" for k, v in settings.items())
        )
        self.server.reset_prefix_cache()
        hits, queries = self.server.prefix_cache_counts()
        found = explored(data)
        hits_after, queries_after = self.server.prefix_cache_counts()
        return found, (hits_after - hits) / (queries_after - queries)

    def replayed(self, exploration: Exploration) -> float:
        """Wall seconds of an exploration's requests sent raw, from an empty cache."""
        self.server.reset_prefix_cache()
        return replayed_raw(self.server.url, exploration.bodies, self.sizes.in_flight)

    def plain_rate(self, run: Any, tasks: Sequence[HiddenProfileTask], rounds: int) -> float:
        """Branches a second of a plain runner, from an empty cache."""
        client = openai.OpenAI(base_url=self.server.url, api_key="none", max_retries=0, timeout=600)
        settings = LanguageSettings(max_tokens=self.sizes.max_tokens)
        runner = PlainRunner(client, MODEL.name, settings, rounds)
        self.server.reset_prefix_cache()
        branches = rounds * 4 * len(tasks)
        return branches / seconds(lambda: run(runner, tasks))

    @property
    def few_tasks(self) -> int:
        """Tasks of the smaller measurements."""
        return min(self.sizes.few_tasks, len(self.tasks))

    def _overrides(self, count: int, rounds: int) -> tuple[str, ...]:
        return (
            "world=language", "engine=openai_server", f"engine.urls=[{self.server.url}]", "model=smollm2_135m",
            f"engine.in_flight={self.sizes.in_flight}", f"world.in_flight={count}", f"world.horizon={rounds}",
            f"world.settings.max_tokens={self.sizes.max_tokens}", "task=file", f"task.count={count}",
            f"task.path={self.folder / 'tasks.json'}", "split=few", "split.train=1.0", "split.calibration=0",
            "split.test=0", "conditions=[hidden_pre]", "reference=hidden_pre", "certified=[]",
            "conformal=trajectory", "stop.quorum=null", f"output={self.folder / 'runs'}", "progress=false",
        )  # fmt: skip


def measure(config: BenchConfig) -> Iterator[Measurement]:
    """Starts a vLLM server on this machine's CPU and measures on it."""
    sizes = config.language.reduced() if config.reduced else config.language
    with (
        tempfile.TemporaryDirectory() as name,
        bench_server(MODEL, sizes.python, sizes.in_flight, sizes.model_cores) as server,
    ):
        folder = Path(name)
        tasks = _tasks(sizes)
        write_tasks(folder / "tasks.json", tasks)
        bench = _Bench(server, sizes, folder, tasks)
        yield from _belief_modes(bench)
        yield from _at_full_size(bench)


def _tasks(sizes: LanguageBench) -> tuple[HiddenProfileTask, ...]:
    if sizes.task_file is not None:
        return tuple(load_tasks(sizes.task_file)[: sizes.tasks])
    return tuple(generate_travel("easy", sizes.tasks, seed=1, n_agents=4, n_options=3, n_shared=4))


def _line(what: str, values: Sequence[float], unit: str, target: str = "") -> Measurement:
    return Measurement("language", what, statistics.median(values), min(values), max(values), unit, target)


@dataclass(frozen=True)
class _Repetition:
    """An exploration, its requests sent raw, and the plain runners, one after the other: wall seconds of the first
    two, branches a second of all but the raw requests."""

    wall: float
    raw: float
    share: float
    in_flight: tuple[int, ...]
    rate: float
    threads: float
    sequential: float


def _repetitions(bench: _Bench) -> Iterator[_Repetition]:
    """In every second repetition the raw requests come first: those of the exploration before."""
    latest, _ = bench.explored()
    few = bench.tasks[: bench.few_tasks]
    for repetition in range(bench.sizes.repetitions):
        raw_first = repetition % 2 == 1
        raw = bench.replayed(latest) if raw_first else 0.0
        latest, share = bench.explored()
        yield _Repetition(
            latest.seconds,
            raw if raw_first else bench.replayed(latest),
            share,
            latest.in_flight,
            latest.branches / latest.seconds,
            bench.plain_rate(run_in_threads, bench.tasks, bench.sizes.rounds),
            bench.plain_rate(run_sequentially, few, bench.sizes.few_rounds),
        )


def _at_full_size(bench: _Bench) -> Iterator[Measurement]:
    """Overhead, cache, requests in flight, and rates beside those of the plain runners."""
    found = list(_repetitions(bench))
    size = f"{len(bench.tasks)} tasks, {bench.sizes.rounds} rounds"
    yield _line(f"exploration of {size}, wall time", [one.wall for one in found], "s", "< 180")
    yield _line(
        "exploration / its own requests sent raw", [one.wall / one.raw for one in found], "×", "≤ 1.05"
    )
    layout = f"prompt tokens from the prefix cache, {BLOCK_SIZE}-token blocks"
    yield _line(f"{layout}, private clue last", [100 * one.share for one in found], "%", "≥ 80")
    yield _line(f"{layout}, private clue first", [100 * bench.explored(layout="private_first")[1]], "%")
    for part in range(_PARTS):
        means = [statistics.fmean(_part(one.in_flight, part)) for one in found]
        yield _line(f"requests in flight, fifth {part + 1} of the time", means, "")
    yield _line("branches a second", [one.rate for one in found], "1/s")
    yield _line("thread-per-episode runner, branches a second", [one.threads for one in found], "1/s")
    yield _line("the toolkit over it", [one.rate / one.threads for one in found], "×", "≥ 1.5")
    yield _line("plain sequential runner, branches a second", [one.sequential for one in found], "1/s")
    yield _line("the toolkit over it", [one.rate / one.sequential for one in found], "×", "≥ 5")


def _part(flight: Sequence[int], part: int) -> Sequence[int]:
    """One of the parts of a series, at least one value."""
    start, end = (len(flight) * at // _PARTS for at in (part, part + 1))
    return flight[start : max(end, start + 1)]


def _belief_modes(bench: _Bench) -> Iterator[Measurement]:
    for mode in ("choice", "choice_cyclic", "verbal"):
        found, _ = bench.explored(few=True, elicitation=mode)
        what = f"beliefs by {mode}, a branch"
        yield _line(f"{what}: time", [found.seconds / found.branches], "s")
        yield _line(f"{what}: prompt tokens", [found.prompt_tokens / found.branches], "")
        yield _line(f"{what}: completion tokens", [found.completion_tokens / found.branches], "")
