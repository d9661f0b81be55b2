"""What the study of learning measures with: explored branches as arrays, expected objectives by redrawing, and
closed-loop accuracy. Cognitive agents only; nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from conformal import OpenGate
from controllers.dataset import BranchDataset
from controllers.labels import ROLLOUT, TASK_ACCURACY, episode_labels
from controllers.protocol import Controller
from controllers.references import Random
from sim.arrays import Floats, Ints
from sim.discussion.actions import ACTION_NAMES, SPOKEN, Candidates, interventions
from sim.discussion.ending import Stop, decide
from sim.discussion.inputs import state_vector
from sim.discussion.objective import Objective
from sim.discussion.public import PublicView
from sim.discussion.routing import make_router
from sim.discussion.state import signals
from sim.studies.blocking import wait_for
from sim.studies.rollout import Ending, Policy, Step, commit, decide_round, rollout
from sim.studies.trace import Trace
from sim.tasks import HiddenProfileTask
from sim.worlds.cognitive import CognitiveWorld
from sim.worlds.protocol import Episodes, batches

_ROWS = 4096
"""Discussions of a batch."""
_REDRAWN_ROWS = 256


@dataclass(frozen=True)
class States:
    """States of the test tasks: vectors (n, D), expected objective of each intervention (n, A), task (n,)."""

    vectors: Floats
    objectives: Floats
    task: tuple[str, ...]

    @property
    def regrets(self) -> Floats:
        """Expected regret (n, A) of every intervention in each state."""
        regrets: Floats = self.objectives - self.objectives.min(1, keepdims=True)
        return regrets

    def regret_of(self, action: Ints) -> Floats:
        """Expected regret (n,) of an intervention (n,) in each state."""
        chosen: Floats = np.take_along_axis(self.regrets, action[:, None], 1)[:, 0]
        return chosen


def policy_of(controller: Controller, exhaustive: bool) -> Policy:
    """Four interventions, the default router, objective and stop rule, no gate."""
    return Policy(
        name=controller.name,
        controller=controller,
        menu=interventions(),
        router=make_router("action_conditional"),
        objective=Objective(),
        gate=OpenGate(),
        stop=Stop(),
        exhaustive=exhaustive,
    )


def explore(world: CognitiveWorld, tasks: Sequence[HiddenProfileTask], seeds: Sequence[int]) -> BranchDataset:
    """Every branch along uniform paths, with the labels of both longer horizons."""
    kept = _Branches()
    policy = policy_of(Random(), exhaustive=True)
    for episodes in batches(tasks, seeds, _ROWS):
        kept.begin(episodes)
        wait_for(rollout(world, episodes, policy, kept))
    return kept.dataset()


def accuracy(
    world: CognitiveWorld, tasks: Sequence[HiddenProfileTask], seeds: Sequence[int], controller: Controller
) -> dict[str, float]:
    """Closed-loop task accuracy by task id."""
    right: dict[str, list[float]] = {}
    policy = policy_of(controller, exhaustive=False)
    for episodes in batches(tasks, seeds, _ROWS):
        trace = Trace(episodes)
        wait_for(rollout(world, episodes, policy, trace))
        for task, correct in zip(episodes.tasks, trace.correct.tolist(), strict=True):
            right.setdefault(task.id, []).append(float(correct))
    return {task: float(np.mean(values)) for task, values in right.items()}


def expected_states(
    world: CognitiveWorld, tasks: Sequence[HiddenProfileTask], seeds: Sequence[int], rounds: int, redraws: int
) -> States:
    """The states of the first rounds of uniform paths, with every branch's objective averaged over redraws."""
    parts = [
        part
        for episodes in batches(tasks, seeds, _REDRAWN_ROWS)
        for part in wait_for(_redrawn(world, episodes, rounds, redraws))
    ]
    return States(
        np.concatenate([part.vectors for part in parts]),
        np.concatenate([part.objectives for part in parts]),
        tuple(task for part in parts for task in part.task),
    )


async def _redrawn(world: CognitiveWorld, episodes: Episodes, rounds: int, redraws: int) -> list[States]:
    policy = policy_of(Random(), exhaustive=True)
    state, found = await world.open(episodes), []
    running = np.arange(episodes.size)
    for _ in range(rounds):
        over = policy.stop(world.view(state))
        state, running = world.select(state, ~over), running[~over]
        if not running.size:
            break
        step, branches = await decide_round(world, state, policy, running)
        again = world.view(await world.branch(state, _repeated(step.candidates, redraws)))
        objectives = policy.objective(signals(again)).reshape(len(running), redraws, -1).mean(1)
        vectors = state_vector(step.view, step.features, step.candidates)
        found.append(States(vectors, objectives, tuple(episodes.tasks[row].id for row in running.tolist())))
        state = commit(world, branches, step)
    return found


def _repeated(candidates: Candidates, redraws: int) -> Candidates:
    """Every candidate again and again, each time with a draw of its own; draw 0 is the path's."""
    width = candidates.actions.shape[1]
    tiled: dict[str, Any] = {
        name: np.tile(getattr(candidates, name), (1, redraws))
        for name in ("actions", "speakers", "admissible")
    }
    draws = np.repeat(np.arange(1, redraws + 1), width)
    return replace(candidates, draws=np.broadcast_to(draws, tiled["actions"].shape), **tiled)


@dataclass
class _Branches:
    """A recorder that keeps every decision and how its discussion ended."""

    _episodes: Episodes | None = None
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _families: dict[str, str] = field(default_factory=dict)
    _ends: dict[str, dict[tuple[str, int], float]] = field(
        default_factory=lambda: {ROLLOUT: {}, TASK_ACCURACY: {}}
    )

    def begin(self, episodes: Episodes) -> None:
        """The batch that is held next."""
        self._episodes = episodes
        self._families |= {task.id: task.family for task in episodes.tasks}

    def opened(self, view: PublicView) -> None:
        """Nothing to keep yet."""

    def stepped(self, step: Step) -> None:
        """Keep one round."""
        assert self._episodes is not None
        self._rows.append(
            {
                "x": state_vector(step.view, step.features, step.candidates).astype(np.float32),
                "objective": step.objective.astype(np.float32),
                "objectives": step.objectives.astype(np.float32),
                "task": [self._episodes.tasks[row].id for row in step.running.tolist()],
                "seed": self._episodes.seeds[step.running],
                "round": (step.view.rounds + 1).astype(np.int16),
                "executed": step.decision.executed.astype(np.int8),
            }
        )

    def ended(self, ending: Ending) -> None:
        """Keep how discussions ended: J, and whether the group was wrong."""
        assert self._episodes is not None
        decisions = decide(ending.votes, ending.view.key).tolist()
        for at, row in enumerate(ending.rows.tolist()):
            task, seed = self._episodes.tasks[row], int(self._episodes.seeds[row])
            self._ends[ROLLOUT][task.id, seed] = float(ending.objective[at])
            self._ends[TASK_ACCURACY][task.id, seed] = float(decisions[at] != task.answer_index)

    def failed(self, rows: Ints, view: PublicView | None, error: str) -> None:
        """Cognitive agents do not fail."""
        raise RuntimeError(error)

    def dataset(self) -> BranchDataset:
        """Everything kept, as a data set with the labels of both longer horizons."""
        names = list(self._families)
        number = {name: place for place, name in enumerate(names)}
        joined: dict[str, Any] = {
            name: np.concatenate([row[name] for row in self._rows])
            for name in ("x", "objective", "objectives", "seed", "round", "executed")
        }
        data = BranchDataset(
            actions=tuple(ACTION_NAMES[action] for action in SPOKEN),
            tasks=tuple(names),
            families=tuple(self._families[name] for name in names),
            mask=np.isfinite(joined["objectives"]),
            task=np.array([number[task] for row in self._rows for task in row["task"]], np.int32),
            **joined,
        )
        for horizon, costs in self._ends.items():
            data = data.with_label(horizon, episode_labels(data, costs))
        return data
