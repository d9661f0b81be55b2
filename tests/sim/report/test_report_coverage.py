"""Coverage by round: who counts, what is claimed, and what a threshold's rank promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformal import Thresholds, acceptance_thresholds, beta_binomial_band, certify, fit, lower_band
from sim.errors import UserError
from sim.report.coverage import certificates_table, coverage, scores_by_round
from sim.report.frames import Frames, make_frames
from sim.report.source import read_run

CALIBRATION = [round(0.1 * i, 1) for i in range(1, 10)]


def scored(run: Any, stage: str, condition: str, task: str, scores: Sequence[float], **changes: Any) -> None:
    """A discussion whose proposals have the given regrets, one per round; the best branch scores 0."""
    run.episode(condition, task, 0, (0, 0), stage=stage, rounds=len(scores), **changes)
    for number, score in enumerate(scores, 1):
        run.decision(condition, task, number, [score, 0.0], stage=stage, threshold=0.5, certified=True)


def pilot(values: Sequence[float] = CALIBRATION) -> Thresholds:
    """Pilot thresholds of one round, calibrated on families cal-0, cal-1, ... with the given scores."""
    reached = np.ones((9, 1), bool)
    eta = acceptance_thresholds(
        np.full((9, 1), 0.95), reached, "0.1", units=[f"family-pilot-{i}" for i in range(9)]
    )
    scores = np.array(values)[:, None]
    return certify(
        scores, np.ones(scores.shape, bool), eta, units=[f"family-cal-{i}" for i in range(len(values))]
    )


def held(run: Any, scores: Sequence[float], calibration: Sequence[float] = CALIBRATION) -> Frames:
    for i, score in enumerate(calibration):
        scored(run, "calibrate", "rules", f"cal-{i}", [score])
    for i, score in enumerate(scores):
        scored(run, "evaluate", "rules+gate", f"t{i}", [score])
    return make_frames(read_run(run.write()))


@pytest.fixture
def run(run_writer: Callable[[str], Any]) -> Any:
    return run_writer("coverage")


def row_of(frames: Frames, thresholds: Thresholds, bound: str = "threshold", at: int = 1) -> dict[Any, Any]:
    table = coverage(frames, {"rules+gate": thresholds})
    (row,) = table[(table["bound"] == bound) & (table["round"] == at)].to_dict("records")
    return row


def test_threshold_row(run: Any) -> None:
    row = row_of(held(run, [0.05, 0.9, 0.95, 0.3]), pilot())
    assert (row["value"], row["n_calibration"], row["k"]) == (0.9, 9, 9)
    assert (row["n"], row["covered"], row["coverage"]) == (4, 3, 0.75)
    assert row["nominal"] == pytest.approx(0.9)
    assert row["expected"] == 0.9
    assert row["certified"] is True
    low, high = beta_binomial_band(4, 9, 9, 0.999)
    assert (row["claim"], row["band_low"], row["band_high"]) == ("two-sided", low / 4, high / 4)


def test_the_stated_bound_is_tested_from_below(run: Any) -> None:
    row = row_of(held(run, [0.05, 0.9, 0.95, 0.96]), pilot(), "bound")
    assert row["value"] == 0.95
    assert (row["covered"], row["claim"]) == (3, "below")
    assert row["band_low"] == lower_band(4, 9, 9, 0.999) / 4


def test_too_few_covered_is_outside_the_band(run: Any) -> None:
    scores = [0.99] * 60
    row = row_of(held(run, scores), pilot())
    assert row["covered"] == 0
    assert row["inside"] is False


def test_ties_are_broken_at_random_in_the_two_sided_test(run: Any) -> None:
    ties = [0.0] * 9
    row = row_of(held(run, [0.0] * 400, ties), pilot(ties))
    assert row["coverage"] == 1.0
    assert 0.5 < row["coverage_tied"] < 1.0
    again = row_of(make_frames(read_run(run.directory)), pilot(ties))
    assert again["coverage_tied"] == row["coverage_tied"]


def test_without_the_calibration_rows_only_the_lower_side_is_tested(run: Any) -> None:
    row = row_of(held(run, [0.05, 0.9], calibration=()), pilot())
    assert row["claim"] == "below"
    assert np.isnan(row["coverage_tied"])


def test_a_threshold_its_records_do_not_give_is_tested_from_below(run: Any) -> None:
    row = row_of(held(run, [0.05, 0.9], calibration=[0.1] * 9), pilot())
    assert row["claim"] == "below"


def test_half_a_calibration_fold_does_not_randomise_ties(run: Any) -> None:
    row = row_of(held(run, [0.1, 0.2], calibration=[0.2] * 18), pilot([0.2] * 19))
    assert (row["value"], row["claim"]) == (0.2, "below")


def test_a_failed_discussion_is_reached_and_not_covered_from_its_failure_on(run: Any) -> None:
    scored(run, "evaluate", "rules+gate", "t0", [0.1], ending="failed")
    scored(run, "evaluate", "rules+gate", "t1", [0.1, 0.1])
    frames = make_frames(read_run(run.write()))
    thresholds = fit(
        "audit", np.full((9, 3), 0.2), np.ones((9, 3), bool), "0.1", units=[str(i) for i in range(9)]
    )
    found = [row_of(frames, thresholds, at=t) for t in (1, 2, 3)]
    assert [(row["n"], row["covered"]) for row in found] == [(2, 2), (2, 1), (1, 0)]


def test_only_reachers_count(run: Any) -> None:
    for i in range(4):
        scored(run, "evaluate", "rules+gate", f"t{i}", [0.1, 0.1][: 1 + i % 2])
    frames = make_frames(read_run(run.write()))
    thresholds = fit(
        "audit", np.full((9, 2), 0.2), np.ones((9, 2), bool), "0.1", units=[str(i) for i in range(9)]
    )
    assert [row_of(frames, thresholds, at=t)["n"] for t in (1, 2)] == [4, 2]


def test_seeds_and_sibling_tasks_are_one_family(run: Any) -> None:
    scored(run, "evaluate", "rules+gate", "t0", [0.95])
    scored(run, "evaluate", "rules+gate", "t1", [0.1], family="family-t0")
    for seed in (1, 2):
        run.episode("rules+gate", "t0", 0, (0, 0), seed=seed, rounds=1)
        run.decision("rules+gate", "t0", 1, [0.1, 0.0], seed=seed, threshold=0.5)
    row = row_of(make_frames(read_run(run.write())), pilot())
    assert (row["n"], row["covered"]) == (1, 0)


def test_a_test_family_that_was_calibrated_on_is_refused(run: Any) -> None:
    scored(run, "evaluate", "rules+gate", "cal-3", [0.1])
    with pytest.raises(UserError, match=r"rules\+gate.*'family-cal-3'.*'certification'"):
        coverage(make_frames(read_run(run.write())), {"rules+gate": pilot()})


def test_nothing_is_tested_where_there_is_no_finite_threshold(run: Any) -> None:
    thresholds = pilot(CALIBRATION[:8])
    row = row_of(held(run, [0.1, 0.2], CALIBRATION[:8]), thresholds)
    assert (row["value"], row["certified"], row["inside"]) == (np.inf, False, None)
    assert row["coverage"] == 1.0


@pytest.mark.parametrize(
    ("mode", "claim"), [("roundwise", "below"), ("audit", "below"), ("trajectory", "none")]
)
def test_what_a_mode_claims_at_round_one(run: Any, mode: str, claim: str) -> None:
    frames = held(run, [0.1, 0.2])
    scores = np.array(CALIBRATION)[:, None]
    units = [f"family-cal-{i}" for i in range(9)]
    thresholds = fit(mode, scores, np.ones((9, 1), bool), "0.1", units=units)
    row = row_of(frames, thresholds)
    assert row["claim"] == claim
    assert (row["inside"] is None) == (claim == "none")


def test_trajectory_counts_discussions_without_a_refusal(run: Any) -> None:
    frames = held(run, [0.1, 0.2, 0.95])
    units = [f"family-cal-{i}" for i in range(9)]
    thresholds = fit("trajectory", np.array(CALIBRATION)[:, None], np.ones((9, 1), bool), "0.1", units=units)
    (row,) = certificates_table(frames, {"rules+gate": thresholds}).to_dict("records")
    assert (row["n"], row["no_refusal"], row["expected"]) == (3, 2, 0.9)
    assert row["inside"] == (lower_band(3, 9, 9, 0.999) <= 2)
    assert "no proposal refused" in row["guarantee"]


def test_a_missing_certificate_is_said_to_be_missing(run: Any) -> None:
    frames = held(run, [0.1])
    (row,) = certificates_table(frames, {}).to_dict("records")
    assert (row["condition"], row["mode"]) == ("rules+gate", "missing")
    assert len(coverage(frames, {})) == 0


def test_vacuous_share_is_where_the_bound_reaches_the_spread(run: Any) -> None:
    frames = held(run, [0.2, 0.9, 0.95, 0.4])
    assert row_of(frames, pilot())["vacuous"] == 0.75
    assert row_of(frames, pilot(), "bound")["vacuous"] == 1.0
    infinite = replace(pilot(), values=np.array([np.inf]))
    assert row_of(frames, infinite)["vacuous"] == 1.0


def test_scores_by_round_leave_out_what_was_not_reached(run: Any) -> None:
    scored(run, "evaluate", "rules", "a", [0.3, 0.1])
    scored(run, "evaluate", "rules", "b", [0.2])
    frames = make_frames(read_run(run.write()))
    found = scores_by_round(frames.episodes, frames.decisions, 3)
    assert found.reached.tolist() == [[True, True, False], [True, False, False]]
    assert found.values[found.reached].tolist() == [0.3, 0.1, 0.2]
