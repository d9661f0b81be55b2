"""Speed of the cognitive world: branches a second on one core, the quickstart, and how a whole pipeline's time and
memory grow with its tasks.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator

import numpy as np

from conformal import OpenGate
from controllers.references import Random
from sim.bench.config import BenchConfig
from sim.bench.measure import Measurement, peak_memory_mb, repeated
from sim.discussion.actions import interventions
from sim.discussion.ending import Stop
from sim.discussion.objective import Objective
from sim.discussion.routing import make_router
from sim.studies.rollout import Policy, rollout
from sim.studies.trace import Trace
from sim.tasks import generate_travel
from sim.worlds.cognitive import Cognition, CognitiveWorld
from sim.worlds.protocol import Episodes

_PIPELINE = """
from sim.launch import composed
from sim.studies.verbs import run_stages
run_stages(composed(*{words}), {{}}, ("explore", "train", "calibrate", "evaluate", "report"))
"""


def branches_per_second(size: int) -> float:
    """Branches evaluated a second at batch size B: routing, generation, features, objective and gate."""
    tasks = generate_travel("medium", min(size, 512), seed=1)
    repeats = -(-size // len(tasks))
    episodes = Episodes((tasks * repeats)[:size], np.arange(size))
    world = CognitiveWorld(Cognition(), 8)
    policy = Policy(
        "bench", Random(), interventions(), make_router("action_conditional"), Objective(), OpenGate(),
        Stop(quorum=None),
    )  # fmt: skip
    trace = Trace(episodes)
    state = asyncio.run(world.open(episodes))
    view = world.view(state)
    trace.opened(view)
    start = time.perf_counter()
    asyncio.run(rollout(world, episodes, policy, trace))
    elapsed = time.perf_counter() - start
    return float(np.nansum(trace.branches)) / elapsed


def measure(config: BenchConfig) -> Iterator[Measurement]:
    """Branches a second for B = 1, 64 and 4,096; the quickstart; whole pipelines of 1,000 to 100,000 tasks."""
    for size in (1, 64, 4096):
        value, low, high = repeated(lambda size=size: branches_per_second(size), 2 if config.reduced else 5)  # type: ignore[misc]
        target = "≥ 100,000" if size == 4096 else ""
        yield Measurement("cognitive", f"branches a second, B = {size:,}", value, low, high, "1/s", target)
    with tempfile.TemporaryDirectory() as folder:
        value, low, high = repeated(lambda: _pipeline(folder)[0], 1 if config.reduced else 3)
        yield Measurement("cognitive", "quickstart pipeline", value, low, high, "s", "≤ 45")
        for tasks in (1_000, 10_000) if config.reduced else (1_000, 10_000, 100_000):
            yield from _grown(tasks, folder)


def _grown(tasks: int, folder: str) -> Iterator[Measurement]:
    """Time a task and peak memory of a pipeline of so many tasks, half of them held out."""
    folds = (
        f"split={{train: {tasks // 4}, pilot: {tasks // 8}, calibration: {tasks // 8}, test: {tasks // 2}}}"
    )
    wall, peak = _pipeline(
        folder, f"task.count={tasks}", folds, "conditions=[hidden_post,mlp]", "certified=[mlp]",
        "training.epochs=5", "record=decisions",
    )  # fmt: skip
    a_task, target = 1e3 * wall / tasks, "≤ 2,000" if tasks == 100_000 else ""
    yield Measurement("cognitive", f"pipeline of {tasks:,} tasks, time a task", a_task, a_task, a_task, "ms")
    yield Measurement(
        "cognitive", f"pipeline of {tasks:,} tasks, peak memory", peak, peak, peak, "MB", target
    )


def _pipeline(folder: str, *words: str) -> tuple[float, float]:
    """Wall seconds and peak memory (MB) of a whole pipeline in a process of its own."""
    return peak_memory_mb(_PIPELINE.format(words=(*words, "progress=false", f"output={folder}")))
