# ruff: noqa: A002 - `id` and `round` are the rows' own words
"""Small runs written row by row, so that every number of a report can be checked by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformal import Thresholds
from sim.discussion.inputs import STATE_NAMES
from sim.records.rows import BranchRow, DecisionRow, EpisodeRow, VoteRow
from sim.records.store import FILES
from sim.tasks import HiddenProfileTask, write_tasks

CANDIDATES = ("route@0", "seek_evidence@1")


@dataclass
class RunWriter:
    """Collects rows with sensible defaults and writes a run directory. Two agents, two options."""

    directory: Path
    rows: list[Any] = field(default_factory=list)
    tasks: list[HiddenProfileTask] = field(default_factory=list)

    def task(self, id: str, answer: str = "Elm Street", **changes: Any) -> None:
        """A task with options Elm Street and Oak Lane."""
        content: dict[str, Any] = {
            "id": id,
            "name": f"Flat {id}",
            "description": "Two friends choose a flat.",
            "shared_information": ("Elm Street is cheap.",),
            "hidden_information": ("Elm Street floods every spring.", "Oak Lane gets a new tram stop."),
            "possible_answers": ("Elm Street", "Oak Lane"),
            "correct_answer": answer,
            "family": f"family-{id}",
        }
        self.tasks.append(HiddenProfileTask(**(content | changes)))

    def episode(self, condition: str, task: str, decision: int, votes: Sequence[int], **changes: Any) -> None:
        """An outcome in the evaluation stage."""
        content: dict[str, Any] = {
            "stage": "evaluate", "condition": condition, "task": task, "family": f"family-{task}", "seed": 0,
            "n_agents": 2, "n_options": 2, "answer": 0, "decision": decision, "votes": list(votes),
            "rounds": 0, "messages": 0, "words": 0.0, "path": "", "ending": "horizon",
            "final_objective": 0.5, "malformed": 0, "branches_evaluated": 0,
        }  # fmt: skip
        self.rows.append(EpisodeRow(**(content | changes)))

    def decision(
        self, condition: str, task: str, round: int, objectives: Sequence[float | None], **changes: Any
    ) -> None:
        """A decision among route@0 and seek_evidence@1; the first is proposed and executed by default."""
        best = min(value for value in objectives if value is not None)
        regrets = [None if value is None else value - best for value in objectives]
        content: dict[str, Any] = {
            "stage": "evaluate", "condition": condition, "task": task, "seed": 0, "round": round, "path": "",
            "candidates": list(CANDIDATES[: len(objectives)]), "objective": 0.5,
            "objectives": list(objectives), "regrets": regrets, "proposal": 0, "malformed": False,
            "executed": 0, "replaced": False,
            "threshold": None, "certified": False, "admissible_set": [v is not None for v in objectives],
            "state": [0.25] * len(STATE_NAMES),
        }  # fmt: skip
        self.rows.append(DecisionRow(**(content | changes)))

    def branch(self, task: str, path: str, **changes: Any) -> None:
        """A branch of one word, 100 prompt and 5 completion tokens; an opening costs 10 and 0."""
        step = path.split("/")[-1]
        action, _, speaker = step.partition("@")
        opening = step in ("", "full_info")
        content: dict[str, Any] = {
            "task": task, "seed": 0, "path": path, "round": 0 if opening else path.count("/") + 1,
            "action": "open" if opening else action, "speaker": -1 if opening else int(speaker), "draw": 0,
            "words": 0.0 if opening else 1.0, "novelty": 0.0, "overlap": 0.0,
            "beliefs": [[0.6, 0.4], [0.3, 0.7]], "stale": [False, False],
            "text": "" if opening else f"We should talk about {step}.",
            "prompt_tokens": 10 if opening else 100, "completion_tokens": 0 if opening else 5,
        }  # fmt: skip
        self.rows.append(BranchRow(**(content | changes)))

    def vote(self, task: str, path: str, choice: Sequence[int], **changes: Any) -> None:
        """Final votes that cost 20 prompt and 2 completion tokens."""
        beliefs = [[0.9, 0.1] if vote == 0 else [0.1, 0.9] for vote in choice]
        content: dict[str, Any] = {
            "task": task, "seed": 0, "path": path, "choice": list(choice), "beliefs": beliefs,
            "prompt_tokens": 20, "completion_tokens": 2,
        }  # fmt: skip
        self.rows.append(VoteRow(**(content | changes)))

    def card(
        self, folder: str, train: Sequence[str], validation: Sequence[str], regret: float = 0.02
    ) -> None:
        """The model card of a network taught on some tasks, each a family of two decisions."""
        taught = len(train) + len(validation)
        content = {
            "training": {"target": "delta_centred", "horizon": "one_step", "groups": ["belief", "cost"]},
            "train_tasks": list(train),
            "validation_tasks": list(validation),
            "statistics": {"families": taught, "decisions": 2 * taught, "branches": 8 * taught},
            "validation": {
                "families": len(validation), "best_epoch": 2, "regret": regret, "uniform_regret": 0.1,
                "constant_regret": None,
            },
            "curve": [
                {"epoch": 1, "train_loss": 0.2, "validation_loss": 0.3, "validation_regret": 0.1},
                {"epoch": 2, "train_loss": 0.1, "validation_loss": 0.2, "validation_regret": regret},
            ],
        }  # fmt: skip
        path = self.directory / "controller" / folder / "mlp.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))

    def write(
        self,
        *,
        thresholds: dict[str, Thresholds] | None = None,
        status: dict[str, str] | None = None,
        config: str = "",
        order: Callable[[list[Any]], list[Any]] = list,
    ) -> Path:
        """The run directory; `order` permutes the rows before they are written."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for kind, name in FILES.items():
            mine = order([row for row in self.rows if isinstance(row, kind)])
            (self.directory / name).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in mine))
        if self.tasks:
            write_tasks(self.directory / "tasks.json", self.tasks)
        if thresholds is not None:
            content = {name: found.to_dict() for name, found in thresholds.items()}
            (self.directory / "thresholds.json").write_text(json.dumps(content))
        if status is not None:
            (self.directory / "status.json").write_text(json.dumps(status))
        if config:
            (self.directory / "config.yaml").write_text(config)
        return self.directory


def write_worked_example(run: RunWriter) -> None:
    """Two tasks under five conditions, each small enough to add up by hand.

    Task a: the answer is option 0; task b: option 1. Under rules+gate the first proposal of task a is
    replaced and task b fails in its second round.
    """
    run.task("a")
    run.task("b", "Oak Lane")
    for name, decisions, votes, path in (
        ("hidden_pre", (1, 1), ((1, 1), (1, 0)), ""),
        ("full_info", (0, 1), ((0, 0), (1, 1)), "full_info"),
    ):
        for task, answer, decision, vote in zip("ab", (0, 1), decisions, votes, strict=True):
            run.episode(name, task, decision, vote, answer=answer, ending="no_discussion")
            run.branch(task, path)
            run.vote(task, path, vote)
    for task, answer, vote in (("a", 0, (1, 0)), ("b", 1, (0, 0))):
        run.episode(
            "hidden_post",
            task,
            1 - answer,
            vote,
            answer=answer,
            rounds=1,
            messages=1,
            words=1.0,
            path="free@0",
        )
        run.decision("hidden_post", task, 1, [0.4], candidates=["free@0"])
        run.branch(task, "free@0")
        run.vote(task, "free@0", vote)
    _write_rules(run)
    _write_gate(run)


def _write_rules(run: RunWriter) -> None:
    path = "route@0/route@0"
    for task, answer, vote in (("a", 0, (0, 0)), ("b", 1, (1, 0))):
        shape = {"rounds": 2, "messages": 2, "words": 2.0, "branches_evaluated": 4, "malformed": answer}
        run.episode("rules", task, answer, vote, answer=answer, path=path, final_objective=0.3, **shape)
        run.decision("rules", task, 1, [0.4, 0.3])
        run.decision("rules", task, 2, [0.2, 0.5], path="route@0")
        for step in ("route@0", "seek_evidence@1", path, "route@0/seek_evidence@1"):
            run.branch(task, step)
        run.vote(task, path, vote)


def _write_gate(run: RunWriter) -> None:
    gate: dict[str, Any] = {"threshold": 0.05, "certified": True}
    refused = gate | {"executed": 1, "replaced": True, "admissible_set": [False, True]}
    path = "seek_evidence@1/route@0"
    shape = {"rounds": 2, "messages": 2, "words": 2.0, "branches_evaluated": 4}
    run.episode("rules+gate", "a", 0, (0, 0), path=path, final_objective=0.2, **shape)
    run.decision("rules+gate", "a", 1, [0.4, 0.3], **refused)
    run.decision("rules+gate", "a", 2, [0.2, 0.24], path="seek_evidence@1", **gate)
    run.branch("a", path)
    run.branch("a", "seek_evidence@1/seek_evidence@1")
    run.vote("a", path, (0, 0))
    lost = {"rounds": 1, "messages": 1, "words": 1.0, "ending": "failed", "final_objective": None}
    run.episode(
        "rules+gate", "b", -1, (-1, -1), answer=1, path="seek_evidence@1", error="engine gave up", **lost
    )
    run.decision("rules+gate", "b", 1, [0.4, 0.3], **refused)


@pytest.fixture
def run_writer(tmp_path: Path) -> Callable[[str], RunWriter]:
    """Makes writers of runs under the test's own folder, by name."""
    return lambda name: RunWriter(tmp_path / name)


@pytest.fixture
def worked_example(run_writer: Callable[[str], RunWriter]) -> RunWriter:
    """The worked example, not yet written."""
    run = run_writer("worked")
    write_worked_example(run)
    return run
