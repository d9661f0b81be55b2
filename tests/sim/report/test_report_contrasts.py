"""Contrasts, draws, power, efficiency and learners: every number checked by hand on runs of a few rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import StringIO
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats

from sim.report.build import report_tables
from sim.report.contrasts import NO_GAP, contrasts, draws, efficiency, power
from sim.report.frames import Frames, make_frames
from sim.report.learners import learners
from sim.report.source import read_run
from sim.report.terminal import _print_contrasts

Right = Mapping[str, Mapping[tuple[str, int], bool]]
"""Condition -> (task, seed) -> whether the group was right."""
WriterOf = Callable[[str], Any]


def frames_of(run: Any, outcomes: Right, rounds: Mapping[str, int] | None = None) -> Frames:
    """The frames of a run with these outcomes; the answer is option 0."""
    for condition, of_episode in outcomes.items():
        for (task, seed), right in of_episode.items():
            decision = 0 if right else 1
            length = (rounds or {}).get(condition, 2)
            run.episode(condition, task, decision, [decision, 1], seed=seed, rounds=length)
    return make_frames(read_run(run.write()))


def grid(right: Callable[[int, int], bool], tasks: int, seeds: int = 1) -> dict[tuple[str, int], bool]:
    """Outcomes over tasks and seeds."""
    return {(f"t{task:02}", seed): right(task, seed) for task in range(tasks) for seed in range(seeds)}


def rows(table: pd.DataFrame) -> dict[str, dict[Any, Any]]:
    """A table of contrasts by label."""
    return {row["contrast"]: row for row in table.to_dict("records")}


def test_a_contrast_is_paired_by_task_and_seed_and_counts_tasks_once(run_writer: WriterOf) -> None:
    uneven = {("a", 0): True, ("a", 1): True, ("a", 2): True, ("b", 0): False}
    outcomes = {"x": uneven, "y": dict.fromkeys(uneven, False)}
    row = rows(contrasts(frames_of(run_writer("r"), outcomes), {"x_over_y": ("x", "y")}))["x_over_y"]
    assert (row["difference"], row["task_accuracy"], row["reference_task_accuracy"]) == (0.5, 0.5, 0.0)
    assert (row["n_tasks"], row["n_pairs"], row["pairs_that_differ"], row["unpaired"]) == (2, 4, 3, 0)
    assert row["note"] == "only 2 tasks"
    assert row["p_value"] == pytest.approx(stats.ttest_1samp([1.0, 0.0], 0).pvalue)


def test_what_one_condition_alone_held_is_counted(run_writer: WriterOf) -> None:
    outcomes = {"x": grid(lambda t, s: True, 3), "y": grid(lambda t, s: False, 2)}
    row = rows(contrasts(frames_of(run_writer("r"), outcomes), {"l": ("x", "y")}))["l"]
    assert (row["n_pairs"], row["unpaired"]) == (2, 1)


def test_a_contrast_with_nobody_to_compare_is_left_out(run_writer: WriterOf) -> None:
    frames = frames_of(run_writer("r"), {"x": grid(lambda t, s: True, 3)})
    assert not len(contrasts(frames, {"l": ("x", "absent")}))


def test_draws_enter_a_contrast_as_their_mean(run_writer: WriterOf) -> None:
    outcomes = {
        "x#0": grid(lambda t, s: True, 12),
        "x#1": grid(lambda t, s: t % 2 == 0, 12),
        "y": grid(lambda t, s: False, 12),
    }
    frames = frames_of(run_writer("r"), outcomes)
    row = rows(contrasts(frames, {"l": ("x", "y")}))["l"]
    assert (row["difference"], row["n_pairs"]) == (0.75, 12)
    (spread,) = draws(frames).to_dict("records")
    assert (spread["condition"], spread["draws"], spread["task_accuracy"]) == ("x", 2, 0.75)
    assert spread["sd_over_draws"] == pytest.approx(np.std([1.0, 0.5], ddof=1))
    assert (spread["lowest_draw"], spread["highest_draw"]) == (0.5, 1.0)


def test_draws_are_paired_by_their_number(run_writer: WriterOf) -> None:
    right = {"x#0": 6, "x#1": 9, "x#2": 9, "y#0": 3, "y#1": 6, "y#2": 9}
    outcomes = {
        name: grid(lambda t, s, count=count: t < count, 12)  # type: ignore[misc]
        for name, count in right.items()
    }
    frames = frames_of(run_writer("r"), outcomes | {"z": grid(lambda t, s: t < 6, 12)})
    found = rows(contrasts(frames, {"xy": ("x", "y"), "xz": ("x", "z"), "zz": ("z", "z")}))
    by_hand = stats.ttest_1samp([0.25, 0.25, 0.0], 0).confidence_interval(0.95)
    assert (found["xy"]["draws"], found["xz"]["draws"], found["zz"]["draws"]) == (3, 3, 1)
    assert found["xy"]["difference_by_draw"] == pytest.approx(0.5 / 3)
    assert found["xy"]["difference_by_draw_low"] == pytest.approx(by_hand.low)
    assert found["xy"]["difference_by_draw_high"] == pytest.approx(by_hand.high)
    assert found["xz"]["difference_by_draw"] == pytest.approx((0 + 0.25 + 0.25) / 3)
    assert np.isnan(found["zz"]["difference_by_draw"])


def test_p_values_are_corrected_by_holm_over_the_table(run_writer: WriterOf) -> None:
    outcomes = {
        "base": grid(lambda t, s: False, 20),
        "much": grid(lambda t, s: t < 12, 20),
        "some": grid(lambda t, s: t < 6, 20),
        "none": grid(lambda t, s: t < 1, 20),
    }
    pairs = {name: (name, "base") for name in ("none", "some", "much")}
    found = rows(contrasts(frames_of(run_writer("r"), outcomes), pairs))
    p = {name: found[name]["p_value"] for name in pairs}
    by_hand = {
        name: stats.ttest_1samp(np.arange(20) < count, 0).pvalue
        for name, count in (("none", 1), ("some", 6), ("much", 12))
    }
    assert p == pytest.approx(by_hand)
    assert found["much"]["p_holm"] == pytest.approx(3 * p["much"])
    assert found["some"]["p_holm"] == pytest.approx(2 * p["some"])
    assert found["none"]["p_holm"] == pytest.approx(p["none"])


@pytest.mark.parametrize(("tasks", "warned"), [(9, True), (10, False)])
def test_fewer_than_ten_tasks_are_warned_of(tasks: int, warned: bool, run_writer: WriterOf) -> None:
    outcomes = {"x": grid(lambda t, s: t % 2 == 0, tasks), "y": grid(lambda t, s: False, tasks)}
    run = run_writer("r")
    found = contrasts(frames_of(run, outcomes), {"l": ("x", "y")})
    assert found["note"].tolist() == ([f"only {tasks} tasks"] if warned else [""])
    text = StringIO()
    (run.directory / "tables").mkdir()
    found.to_csv(run.directory / "tables" / "contrasts.csv", index=False)
    _print_contrasts(Console(file=text, width=120), run.directory, "contrasts", "contrast")
    assert (f"warning: only {tasks} tasks" in text.getvalue()) == warned


def test_an_interval_without_width_is_explained(run_writer: WriterOf) -> None:
    same = grid(lambda t, s: t % 3 == 0, 30)
    frames = frames_of(run_writer("r"), {"x": same, "y": same}, {"x": 3, "y": 4})
    row = rows(contrasts(frames, {"l": ("x", "y")}))["l"]
    assert (row["difference_low"], row["difference_high"], row["pairs_that_differ"]) == (0, 0, 0)
    assert row["lengths_that_differ"] == 30
    assert "the outcome is the same in all 30 pairs (the number of rounds differs in 30)" in row["note"]
    assert row["no_gap"]


CHAIN = {"gap": ("all", "five"), "size": ("cross", "five"), "seen": ("all", "cross")}


def test_a_gap_is_taken_apart_where_two_contrasts_lead_over_it(run_writer: WriterOf) -> None:
    outcomes = {
        "five": grid(lambda t, s: False, 60),
        "cross": grid(lambda t, s: t < 18, 60),
        "all": grid(lambda t, s: t < 21, 60),
    }
    found = rows(contrasts(frames_of(run_writer("r"), outcomes), CHAIN, {"all": 65.0, "five": 5.0}))
    assert not found["gap"]["no_gap"]
    assert found["gap"]["difference"] == pytest.approx(
        found["size"]["difference"] + found["seen"]["difference"]
    )
    note = found["gap"]["note"]
    assert f"is not within ±{NO_GAP}: it is seen +0.050 [" in note
    assert "and size +0.300 [" in note
    assert "draws" not in note
    assert note.endswith("; all learned from 65 task families, five learned from 5 task families")
    assert found["size"]["note"] == found["seen"]["note"] == ""


@pytest.mark.parametrize(
    ("worst", "said"),
    [(30, "which other draws would show too"), (0, "which other draws need not have shown")],
)
def test_a_gap_is_held_against_other_draws(worst: int, said: str, run_writer: WriterOf) -> None:
    outcomes = {"cross": grid(lambda t, s: t < 18, 60)}
    for draw, count in enumerate((40, 35, worst)):
        outcomes[f"five#{draw}"] = grid(lambda t, s: t < 2, 60)
        outcomes[f"all#{draw}"] = grid(lambda t, s, count=count: t < count, 60)  # type: ignore[misc]
    taught = {"all": 65.0, "five": 5.0}
    note = rows(contrasts(frames_of(run_writer("r"), outcomes), CHAIN, taught))["gap"]["note"]
    assert "over 3 draws of the training tasks [" in note
    assert said in note


def test_a_gap_within_the_margin_needs_no_explanation(run_writer: WriterOf) -> None:
    some = grid(lambda t, s: t % 2 == 0, 200)
    other = {key: right ^ (key[0] in ("t00", "t01")) for key, right in some.items()}
    found = rows(contrasts(frames_of(run_writer("r"), {"five": some, "cross": some, "all": other}), CHAIN))
    assert found["gap"]["no_gap"]
    assert found["gap"]["note"] == ""


def test_power_is_about_the_differences_themselves(run_writer: WriterOf) -> None:
    rng = np.random.default_rng(4)
    lucky = {(task, seed): bool(rng.random() < 0.6) for task in range(30) for seed in range(5)}
    outcomes = {"x": grid(lambda t, s: lucky[t, s], 30, 5), "y": grid(lambda t, s: False, 30, 5)}
    (row,) = power(frames_of(run_writer("r"), outcomes), {"l": ("x", "y")}).to_dict("records")
    values = np.array([[lucky[t, s] for s in range(5)] for t in range(30)], float)
    within = values.var(axis=1, ddof=1).mean()
    assert row["sd_within_tasks"] == pytest.approx(np.sqrt(within))
    between = max(0.0, values.mean(1).var(ddof=1) - within / 5)
    assert row["sd_between_tasks"] == pytest.approx(np.sqrt(between))
    assert row["tasks_for_0.05_at_20_seeds"] < row["tasks_for_0.05_at_1_seeds"]


def test_one_seed_a_task_gives_no_power(run_writer: WriterOf) -> None:
    outcomes = {"x": grid(lambda t, s: True, 30), "y": grid(lambda t, s: False, 30)}
    assert not len(power(frames_of(run_writer("r"), outcomes), {"l": ("x", "y")}))


def test_accuracy_per_message(worked_example: Any) -> None:
    run = read_run(worked_example.write())
    accuracy = report_tables(run, make_frames(run))["accuracy"]
    found = {row["condition"]: row for row in efficiency(accuracy).to_dict("records")}
    assert found["rules"]["accuracy_per_message"] == found["rules"]["task_accuracy"] / 2
    assert np.isnan(found["hidden_pre"]["accuracy_per_message"])
    assert not len(efficiency(pd.DataFrame()))


def test_learners_say_what_each_condition_was_taught(run_writer: WriterOf) -> None:
    run = run_writer("r")
    run.card("five#0", ["a", "b"], ["c"], regret=0.02)
    run.card("five#1", ["a"], ["d", "t00"], regret=0.04)
    run.card("cross-without-0", ["t00", "t01"], ["t02"])
    frames = frames_of(run, {"five#0": grid(lambda t, s: True, 4)})
    table = learners(read_run(run.directory).cards, frames)
    found: dict[Any, dict[Any, Any]] = {row["condition"]: row for row in table.to_dict("records")}
    five, cross = found["five"], found["cross"]
    assert (five["networks"], five["families"], five["decisions"], five["test_tasks_seen"]) == (2, 3, 6, 0.5)
    assert five["validation_regret"] == pytest.approx(0.03)
    assert five["groups"] == "belief+cost"
    assert np.isnan(five["validation_constant_regret"])
    assert (cross["networks"], cross["test_tasks_seen"]) == (1, 3)


def test_without_networks_there_are_no_learners(worked_example: Any) -> None:
    run = read_run(worked_example.write())
    assert not len(report_tables(run, make_frames(run))["learners"])
