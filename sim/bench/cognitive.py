"""Speed of the cognitive world: branches a second on one core, and how a study's time and memory grow."""

from __future__ import annotations

import asyncio
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

_STUDY = """
from sim.studies.verbs import run_stages
from sim.bench.cognitive import study_config
run_stages(study_config({tasks}), {{}}, ("evaluate",))
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


def study_config(tasks: int) -> dict[str, object]:
    """The configuration of an evaluation of `tasks` tasks that keeps outcomes only."""
    from sim.launch import composed

    return composed(
        f"task.count={tasks}",
        "split.train=0",
        "split.pilot=0",
        "split.calibration=0",
        f"split.test={tasks}",
        "conditions=[hidden_post,rules]",
        "certified=[]",
        "record=episodes",
        "name=bench",
        "progress=false",
        "output=runs/.bench",
    )


def measure(config: BenchConfig) -> Iterator[Measurement]:
    """Branches a second for B = 1, 64 and 4,096; time and memory at 1,000 to 100,000 tasks."""
    for size in (1, 64, 4096):
        value, low, high = repeated(lambda size=size: branches_per_second(size), 2 if config.reduced else 5)  # type: ignore[misc]
        target = "≥ 100,000" if size == 4096 else ""
        yield Measurement("cognitive", f"branches a second, B = {size:,}", value, low, high, "1/s", target)
    for tasks in (1_000, 10_000) if config.reduced else (1_000, 10_000, 100_000):
        wall, peak = peak_memory_mb(_STUDY.format(tasks=tasks))
        yield Measurement(
            "cognitive",
            f"study of {tasks:,} tasks, time a task",
            1e3 * wall / tasks,
            1e3 * wall / tasks,
            1e3 * wall / tasks,
            "ms",
        )
        target = "≤ 2,000" if tasks == 100_000 else ""
        yield Measurement(
            "cognitive", f"study of {tasks:,} tasks, peak memory", peak, peak, peak, "MB", target
        )
