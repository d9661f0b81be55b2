"""Every metric of METHOD 11 on runs small enough to add up by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from sim.report import tables
from sim.report.frames import Frames, make_frames, prefixes
from sim.report.source import read_run


def frames_of(run: Any) -> Frames:
    return make_frames(read_run(run.write()))


def rows_of(table: pd.DataFrame, key: str = "condition") -> dict[str, dict[str, Any]]:
    return {str(row[key]): {str(k): v for k, v in row.items()} for row in table.to_dict("records")}


@pytest.fixture
def accuracy(worked_example: Any) -> dict[str, dict[str, Any]]:
    return rows_of(tables.accuracy(frames_of(worked_example).evaluation()))


def test_accuracies(accuracy: dict[str, dict[str, Any]]) -> None:
    expected = {
        "hidden_pre": (0.5, 0.25, 0.0),
        "hidden_post": (0.0, 0.25, 0.0),
        "full_info": (1.0, 1.0, 1.0),
        "rules": (1.0, 0.75, 0.5),
        "rules+gate": (0.5, 0.5, 0.5),
    }
    found = {n: (r["task_accuracy"], r["vote_accuracy"], r["majority"]) for n, r in accuracy.items()}
    assert found == expected


def test_conditions_stand_in_the_order_of_the_method(accuracy: dict[str, dict[str, Any]]) -> None:
    assert list(accuracy) == ["hidden_pre", "hidden_post", "full_info", "rules", "rules+gate"]
    mixed = [
        "zeta",
        "greedy",
        "mlp+gate",
        "best_of_4_free",
        "random",
        "mlp",
        "hidden_post",
        "llm_vote",
        "rules",
    ]
    assert tables.sorted_conditions(mixed) == [
        "hidden_post", "rules", "mlp", "mlp+gate", "llm_vote", "random", "greedy", "best_of_4_free", "zeta"
    ]  # fmt: skip


def test_gains_are_paired_with_hidden_pre_and_full_info(accuracy: dict[str, dict[str, Any]]) -> None:
    assert {n: r["integration_gain"] for n, r in accuracy.items()} == {
        "hidden_pre": 0.0, "hidden_post": -0.5, "full_info": 0.5, "rules": 0.5, "rules+gate": 0.0
    }  # fmt: skip
    assert accuracy["rules+gate"]["gap_to_full"] == 0.5
    assert accuracy["hidden_post"]["gap_to_full"] == 1.0


def test_tokens_come_from_the_branches_on_the_path(accuracy: dict[str, dict[str, Any]]) -> None:
    def tokens(name: str, kind: str) -> tuple[float, float]:
        row = accuracy[name]
        return row[f"{kind}_prompt_tokens"], row[f"{kind}_completion_tokens"]

    assert tokens("hidden_pre", "committed") == (30, 2)
    assert tokens("full_info", "committed") == (30, 2)
    assert tokens("hidden_post", "committed") == (130, 7)
    assert tokens("rules", "committed") == (230, 12)
    assert tokens("hidden_pre", "counterfactual") == (0, 0)
    assert tokens("rules", "counterfactual") == (200, 10)
    assert accuracy["rules"]["accuracy_per_1k_committed_tokens"] == pytest.approx(1000 / 242)
    # Task a: opening, two branches and votes; the failed task b: opening and one branch.
    assert tokens("rules+gate", "committed") == ((230 + 110) / 2, (12 + 5) / 2)
    assert tokens("rules+gate", "counterfactual") == ((200 + 100) / 2, (10 + 5) / 2)
    assert accuracy["rules"]["counterfactual_words"] == 2


def test_regret_counts_only_where_branches_were_compared(accuracy: dict[str, dict[str, Any]]) -> None:
    assert pd.isna(accuracy["hidden_post"]["mean_regret"])
    assert pd.isna(accuracy["hidden_pre"]["mean_regret"])
    rules, gate = accuracy["rules"], accuracy["rules+gate"]
    assert rules["mean_regret"] == pytest.approx((0.1 + 0.0) / 2)
    assert rules["mean_normalised_regret"] == pytest.approx((1.0 + 0.0) / 2)
    # Task a: proposals 0.1 and 0, executed 0 and 0; task b: proposal 0.1, executed 0.
    assert gate["mean_regret"] == pytest.approx((0.05 + 0.1) / 2)
    assert gate["mean_executed_regret"] == pytest.approx(0.0)
    assert rules["mean_executed_regret"] == pytest.approx(0.05)


def test_gate_statistics_belong_to_gated_conditions_only(accuracy: dict[str, dict[str, Any]]) -> None:
    assert pd.isna(accuracy["rules"]["acceptance_rate"])
    assert accuracy["rules+gate"]["acceptance_rate"] == pytest.approx((0.5 + 0.0) / 2)
    assert accuracy["rules+gate"]["set_size"] == pytest.approx((1.5 + 1.0) / 2)


def test_counts_and_failures(accuracy: dict[str, dict[str, Any]], worked_example: Any) -> None:
    assert {n: r["failed"] for n, r in accuracy.items() if r["failed"]} == {"rules+gate": 1}
    assert accuracy["rules"]["malformed"] == 1
    assert accuracy["rules"]["rounds"] == 2
    assert accuracy["rules+gate"]["rounds"] == 1.5
    assert accuracy["rules+gate"]["final_objective"] == pytest.approx(0.2)
    assert accuracy["rules"]["note"] == "only 2 tasks"
    lost = tables.failures(frames_of(worked_example)).to_dict("records")
    assert lost == [
        {"stage": "evaluate", "condition": "rules+gate", "task": "b", "seed": 0, "round": 2,
         "error": "engine gave up"}
    ]  # fmt: skip


def test_without_tokens_there_are_no_token_columns(run_writer: Callable[[str], Any]) -> None:
    run = run_writer("words")
    run.episode("rules", "a", 0, (0, 0), rounds=1, messages=1, words=1.0, path="route@0")
    run.decision("rules", "a", 1, [0.4, 0.3])
    free = {"prompt_tokens": 0, "completion_tokens": 0}
    for path in ("", "route@0", "seek_evidence@1"):
        run.branch("a", path, **free)
    run.vote("a", "route@0", (0, 0), **free)
    table = tables.accuracy(frames_of(run).evaluation())
    assert not [name for name in table.columns if "tokens" in name]
    assert rows_of(table)["rules"]["counterfactual_words"] == 1


def test_unrecorded_branches_leave_their_columns_out(run_writer: Callable[[str], Any]) -> None:
    run = run_writer("outcomes")
    run.episode("rules", "a", 0, (0, 0), rounds=1, words=1.0, path="route@0")
    table = tables.accuracy(frames_of(run).evaluation())
    assert rows_of(table)["rules"]["words"] == 1
    assert not [name for name in table.columns if name.startswith(("committed", "counterfactual"))]


def test_every_task_counts_once_however_many_seeds(run_writer: Callable[[str], Any]) -> None:
    run = run_writer("seeds")
    for seed, decision in enumerate((0, 0, 0, 1)):
        run.episode("rules", "a", decision, (decision, decision), seed=seed)
    run.episode("rules", "b", 1, (1, 1))
    row = rows_of(tables.accuracy(frames_of(run).evaluation()))["rules"]
    assert (row["n_tasks"], row["n_episodes"]) == (2, 5)
    assert row["task_accuracy"] == pytest.approx((0.75 + 0.0) / 2)


def test_paired_differences(worked_example: Any) -> None:
    table = tables.paired(frames_of(worked_example).evaluation())
    task = rows_of(table[table["metric"] == "task_accuracy"])
    votes = rows_of(table[table["metric"] == "vote_accuracy"])
    assert {name: row["difference"] for name, row in task.items()} == {
        "hidden_pre": 0.5, "full_info": 1.0, "rules": 1.0, "rules+gate": 0.5
    }  # fmt: skip
    assert votes["rules"]["difference"] == pytest.approx(0.5)
    assert {row["n_pairs"] for row in task.values()} == {2}
    assert task["rules"]["difference_low"] == task["rules"]["difference_high"] == 1.0
    assert task["rules"]["p_holm"] >= task["rules"]["p_value"]


def test_unpaired_episodes_are_counted_not_hidden(run_writer: Callable[[str], Any]) -> None:
    run = run_writer("unpaired")
    run.episode("hidden_post", "a", 1, (1, 1))
    for task in "ab":
        run.episode("rules", task, 0, (0, 0))
    (row,) = tables.paired(frames_of(run).evaluation()).query("metric == 'task_accuracy'").to_dict("records")
    assert (row["n_pairs"], row["unpaired"], row["difference"]) == (1, 1, 1.0)


def test_gate_side_by_side(worked_example: Any) -> None:
    (row,) = tables.gates(frames_of(worked_example).evaluation()).to_dict("records")
    assert (row["controller"], row["task_accuracy"], row["task_accuracy_gate"]) == ("rules", 1.0, 0.5)
    assert row["difference"] == -0.5
    assert row["replaced"] == pytest.approx((0.5 + 1.0) / 2)
    assert (row["executed_regret"], row["executed_regret_gate"]) == (pytest.approx(0.05), pytest.approx(0.0))


def test_regret_by_round(worked_example: Any) -> None:
    table = tables.regret_by_round(frames_of(worked_example).evaluation())
    found = {(r["condition"], r["round"]): (r["n"], r["mean_regret"]) for r in table.to_dict("records")}
    assert found == {
        ("rules", 1): (2, pytest.approx(0.1)),
        ("rules", 2): (2, pytest.approx(0.0)),
        ("rules+gate", 1): (2, pytest.approx(0.1)),
        ("rules+gate", 2): (1, pytest.approx(0.0)),
    }


def test_position_baselines_and_votes(worked_example: Any) -> None:
    evaluation = frames_of(worked_example).evaluation()
    baselines = rows_of(tables.position_baselines(evaluation), "baseline")
    assert {name: row["task_accuracy"] for name, row in baselines.items()} == {
        "always_first": 0.5, "always_last": 0.5, "chance": 0.5
    }  # fmt: skip
    positions = rows_of(tables.positions(evaluation))
    assert positions["hidden_pre"]["last"] == 0.75
    assert positions["hidden_post"]["first"] == 0.75
    assert positions["rules+gate"]["abstained"] == 0.5
    assert positions["(answers)"]["n"] == 2


def test_votes_by_displayed_position(run_writer: Callable[[str], Any]) -> None:
    run = run_writer("shown")
    run.episode("hidden_post", "a", 0, (0, 1), path="free@0")
    run.vote("a", "free@0", (0, 1), orders=[[1, 0], [0, 1]])
    run.episode("hidden_post", "b", 0, (0, -1))
    run.vote("b", "", (0, -1), orders=[[0, 1], [0, 1]])
    run.episode("full_info", "a", 0, (0, 0))
    positions = rows_of(tables.positions(frames_of(run).evaluation()))
    row = positions["hidden_post"]
    assert (row["displayed"], row["displayed_1"], row["displayed_2"]) == (
        3,
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
    )
    assert row["chance_1"] == row["chance_2"] == 0.5
    assert (positions["(all votes)"]["n"], positions["(all votes)"]["displayed"]) == (6, 3)
    assert pd.isna(positions["full_info"]["displayed"])


def test_cognitive_agents_see_no_list(worked_example: Any) -> None:
    assert not [
        name for name in tables.positions(frames_of(worked_example).evaluation()) if "displayed" in name
    ]


def test_only_the_evaluation_is_tabulated(worked_example: Any) -> None:
    before = tables.accuracy(frames_of(worked_example).evaluation())
    worked_example.episode("rules", "c", 1, (1, 1), stage="calibrate")
    worked_example.decision("rules", "c", 1, [0.9, 0.1], stage="calibrate", threshold=0.2)
    pd.testing.assert_frame_equal(tables.accuracy(frames_of(worked_example).evaluation()), before)


def test_prefixes_of_a_path() -> None:
    assert prefixes("") == []
    assert prefixes("route@2/vote") == ["route@2", "route@2/vote"]


def test_an_empty_run_has_empty_tables(run_writer: Callable[[str], Any]) -> None:
    frames = frames_of(run_writer("empty"))
    for make in (tables.accuracy, tables.paired, tables.gates, tables.regret_by_round, tables.positions):
        assert len(make(frames.evaluation())) == 0
