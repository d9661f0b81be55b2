"""Speed of offline learning: an epoch over a million branches, and a proposal of the trained controller."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator

import numpy as np

from controllers.card import Training
from controllers.dataset import BranchDataset
from controllers.mlp import MLP
from controllers.training import train
from sim.bench.config import BenchConfig
from sim.bench.measure import Measurement, peak_memory_mb, repeated, seconds
from sim.discussion.actions import ACTIONS, interventions
from sim.discussion.inputs import STATE_NAMES
from sim.discussion.public import opening
from sim.discussion.routing import candidates, make_router
from sim.discussion.state import observe
from sim.launch import composed
from sim.randomness import keys
from sim.studies.verbs import run_stages

_PATHS = ("split.pilot=0", "split.calibration=0", "split.test=1", "stop.quorum=null", "conditions=[mlp]",
          "certified=[]", "record=decisions", "training.epochs=1", "name=bench", "progress=false")  # fmt: skip
_TRAIN = """
from sim.launch import composed
from sim.studies.verbs import run_stages
run_stages(composed("resume={run}", "progress=false"), {{}}, ("train",))
"""


def dataset(decisions: int) -> BranchDataset:
    """A synthetic data set of the shape of an exploration: five branches a decision, ten rounds a task."""
    rng = np.random.default_rng(0)
    tasks = max(2, decisions // 10)
    names = tuple(f"task-{i}" for i in range(tasks))
    task = (np.arange(decisions) % tasks).astype(np.int32)
    objectives = rng.random((decisions, len(ACTIONS))).astype(np.float32)
    return BranchDataset(
        actions=ACTIONS,
        tasks=names,
        families=names,
        x=rng.random((decisions, len(STATE_NAMES))).astype(np.float32),
        mask=np.ones((decisions, len(ACTIONS)), bool),
        objective=rng.random(decisions).astype(np.float32),
        objectives=objectives,
        task=task,
        seed=np.zeros(decisions, np.int64),
        round=(np.arange(decisions) // tasks + 1).astype(np.int16),
        executed=np.zeros(decisions, np.int8),
    )


def measure(config: BenchConfig) -> Iterator[Measurement]:
    """Seconds an epoch; microseconds a proposal at B = 4,096."""
    decisions = 20_000 if config.reduced else 200_000
    data = dataset(decisions)
    settings = Training(epochs=1, batch_size=1024)
    value, low, high = repeated(lambda: seconds(lambda: train(data, settings)), 3)
    yield Measurement("training", f"an epoch over {5 * decisions:,} branches", value, low, high, "s")
    yield from _from_disk(1_000 if config.reduced else 31_250)
    model = train(dataset(2_000), Training(epochs=1))
    value, low, high = repeated(lambda: _proposal(model, 4096), 5)
    yield Measurement("training", "a proposal, B = 4,096", value, low, high, "µs")


def _from_disk(tasks: int) -> Iterator[Measurement]:
    """The train stage of a recorded exploration in a process of its own: reading, one epoch, saving."""
    branches = f"{tasks * 32:,} recorded branches"
    with tempfile.TemporaryDirectory() as folder:
        words = (*_PATHS, f"task.count={tasks + 1}", f"split.train={tasks}", f"output={folder}")
        run = run_stages(composed(*words), {}, ("explore",))
        wall, peak = peak_memory_mb(_TRAIN.format(run=run))
    yield Measurement("training", f"train stage on {branches}, one epoch", wall, wall, wall, "s")
    yield Measurement("training", f"train stage on {branches}, peak memory", peak, peak, peak, "MB")


def _proposal(model: MLP, size: int) -> float:
    beliefs = np.random.default_rng(1).dirichlet(np.ones(3), size=(size, 4))
    view = opening(keys("bench", np.arange(size)), beliefs, horizon=8, max_words=1.0)
    features = observe(view)
    options = candidates(view, interventions(vote=True), make_router("action_conditional"))
    return 1e6 * seconds(lambda: asyncio.run(model.propose(view, features, options))) / size
