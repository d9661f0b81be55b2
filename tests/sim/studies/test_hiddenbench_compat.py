"""HiddenBench's published protocol, run small with a script: rounds, chat, votes, decision and its own table."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from sim.discussion.ending import ABSTAIN, Each, Votes, decide, horizon_of
from sim.engines.protocol import ChatRequest
from sim.engines.scripted import SCRIPTED, ScriptedEngine
from sim.launch import composed
from sim.randomness import keys
from sim.records.rows import CallRow, EpisodeRow, VoteRow
from sim.records.store import read_rows
from sim.report.frames import Frames
from sim.report.hiddenbench import hiddenbench
from sim.studies.verbs import run_stages
from sim.tasks import generate_travel, load_tasks, write_tasks

ROUNDS = 3


class Hesitant:
    """Votes for the first option, but the first time it is asked it gives no JSON."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def __call__(self, request: ChatRequest) -> str:
        """A message, or a vote."""
        if request.schema is None:
            return f"Message {len(request.turns)}."
        prompt = json.dumps([turn.content for turn in request.turns])
        if prompt not in self.asked:
            self.asked.add(prompt)
            return "The first one."
        return json.dumps({"reason": "r", "answer": "A", "confidence": 0.9})


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ScriptedEngine]:
    """The experiment on three- and four-agent tasks, with fewer rounds."""
    root = tmp_path_factory.mktemp("compat")
    engine = ScriptedEngine(Hesitant(), capabilities=msgspec.structs.replace(SCRIPTED, alternation=False))
    tasks = [
        task
        for n_agents in (3, 4)
        for task in generate_travel("easy", 3, seed=n_agents, n_agents=n_agents, n_options=3, n_shared=4)
    ]
    write_tasks(root / "tasks.json", tasks)
    data = composed(
        "experiment=hiddenbench_compat", "task=file", f"task.path={root / 'tasks.json'}", "progress=false",
        f"world.horizon.each={ROUNDS}", "test_seeds=[0]", f"output={root / 'runs'}",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.studies.language.make_engine", lambda *_: engine)
        return run_stages(data, {}, ("evaluate", "report")), engine


def test_everybody_speaks_in_every_round_and_nothing_stops_early(run: tuple[Path, ScriptedEngine]) -> None:
    directory, engine = run
    held = [row for row in read_rows(directory, EpisodeRow) if row.condition == "hidden_post"]
    assert sorted(row.n_agents for row in held) == [3, 3, 3, 4, 4, 4]
    for row in held:
        assert (row.rounds, row.ending) == (ROUNDS * row.n_agents, "horizon")
        speakers = [int(step.split("@")[1].split("#")[0]) for step in row.path.split("/")]
        assert speakers == [*range(row.n_agents)] * ROUNDS
    said = [request for request in engine.requests if isinstance(request, ChatRequest) and not request.schema]
    assert {len(request.turns) for request in said} == {2 * (1 + spoken) for spoken in range(ROUNDS)}
    for request in said:
        assert [turn.role for turn in request.turns[-2:]] in (["system", "user"], ["assistant", "user"])


def test_votes_are_asked_for_until_readable_with_options_as_published(
    run: tuple[Path, ScriptedEngine],
) -> None:
    directory, _ = run
    votes = read_rows(directory, VoteRow)
    assert len(votes) == 18
    for row in votes:
        assert row.choice == [0] * len(row.choice)
        assert row.orders == [[0, 1, 2]] * len(row.choice)
    asked = [call for call in read_rows(directory, CallRow) if call.purpose == "vote"]
    assert len(asked) == 2 * sum(len(row.choice) for row in votes)


def test_the_run_has_hiddenbenchs_table(run: tuple[Path, ScriptedEngine]) -> None:
    directory, _ = run
    table = pd.read_csv(directory / "tables" / "hiddenbench.csv")
    tasks = load_tasks(directory / "tasks.json")
    share = sum(task.answer_index == 0 for task in tasks) / len(tasks)
    assert table["rule"].tolist() == ["average", "majority"]
    for stage in ("pre", "post", "full"):
        assert table[stage].tolist() == pytest.approx([share, share])


def test_the_table_by_hand() -> None:
    """Two tasks, four agents: right votes 1 and 2 before, 3 and 2 after, 4 and 4 with all clues."""
    rows = [
        {
            "condition": condition,
            "task": task,
            "seed": 0,
            "vote_accuracy": right / 4,
            "majority": float(right > 2),
        }
        for condition, pair in (("hidden_pre", (1, 2)), ("hidden_post", (3, 2)), ("full_info", (4, 4)))
        for task, right in zip("ab", pair, strict=True)
    ]
    found = hiddenbench(Frames(pd.DataFrame(rows), pd.DataFrame())).set_index("rule").to_dict("index")
    columns = ["pre", "post", "full", "integration_gain", "gap_to_full"]
    assert [found["average"][name] for name in columns] == pytest.approx([3 / 8, 5 / 8, 1.0, 2 / 8, 3 / 8])
    assert [found["majority"][name] for name in columns] == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.5])
    assert not len(hiddenbench(Frames(pd.DataFrame(rows[:4]), pd.DataFrame())))


@pytest.mark.parametrize(
    ("choice", "plurality", "majority"),
    [
        ([0, 0, 0, 1], 0, 0),
        ([0, 0, 1, 2], 0, ABSTAIN),
        ([2, 2, ABSTAIN, ABSTAIN], 2, ABSTAIN),
        ([1, 1, 1, ABSTAIN], 1, 1),
        ([ABSTAIN] * 4, ABSTAIN, ABSTAIN),
    ],
)
def test_a_strict_majority_is_of_all_agents(choice: list[int], plurality: int, majority: int) -> None:
    votes = Votes(np.array([choice]), np.full((1, 4, 3), 1 / 3))
    key = keys("test", np.arange(1))
    assert decide(votes, key).tolist() == [plurality]
    assert decide(votes, key, "strict_majority").tolist() == [majority]


def test_a_horizon_can_be_counted_by_the_table() -> None:
    assert [horizon_of(Each(15), n) for n in (3, 4)] == [45, 60]
    assert [horizon_of(None, n) for n in (3, 5)] == [8, 10]
    assert horizon_of(7, 5) == 7
