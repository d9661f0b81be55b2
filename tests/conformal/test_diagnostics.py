"""Diagnostics: coverage with exact bands, vacuous shares, gate rates, rank checks, power and the planner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from conformal.calibrators import audit, roundwise
from conformal.diagnostics import coverage_by_round, gate_rates, no_proposal_refused, vacuous
from conformal.exchangeability import holm, power, power_by_round, rank_checks
from conformal.gate import ThresholdGate
from conformal.planner import fold_size, plan
from conformal.proposals import map_malformed, outside_regrets, vote_outside
from conformal.scores import fail_from
from conformal.trajectory import trajectory, trajectory_bonferroni


def names(n: int, prefix: str = "u") -> list[str]:
    """n unit names."""
    return [f"{prefix}{i}" for i in range(n)]


def test_coverage_counts_reached_test_episodes_and_failed_ones_against() -> None:
    calibration = np.tile(np.arange(1.0, 20)[:, None], (1, 2))
    found = audit(calibration, np.ones((19, 2), bool), 0.1, units=names(19))
    test = np.array([[1.0, 1.0], [18.0, 19.0], [2.0, 0.0], [3.0, np.nan]])
    reached = np.array([[True, True], [True, True], [True, True], [True, False]])
    test, reached = fail_from(test, reached, [0, 0, 2, 0])
    first, second = coverage_by_round(found, test, reached, units=names(4, "t"))
    assert (first.covered, first.n_test, first.failed) == (4, 4, 0)
    assert (second.covered, second.n_test, second.failed) == (1, 3, 1)
    assert first.expected == 18 / 20
    assert second.coverage == pytest.approx(1 / 3)
    assert second.p_value == pytest.approx(stats.betabinom(3, 18, 2).cdf(1))
    assert second.band == (int(stats.betabinom(3, 18, 2).ppf(0.0005)), 3)
    assert first.claimed
    assert second.claimed


def test_a_failed_episode_is_not_covered_by_an_infinite_threshold() -> None:
    found = audit(np.ones((3, 1)), np.ones((3, 1), bool), 0.1, units=names(3))
    (row,) = coverage_by_round(found, [[np.inf], [5.0]], np.ones((2, 1), bool), units=["a", "b"])
    assert (row.threshold, row.covered, row.failed) == (np.inf, 1, 1)


def test_only_what_a_mode_promises_is_claimed() -> None:
    scores, ones = np.random.default_rng(0).random((30, 2)), np.ones((30, 2), bool)
    naive = roundwise(scores, ones, 0.1, units=names(30))
    rows = coverage_by_round(naive, scores, ones, units=names(30, "t"))
    assert [row.claimed for row in rows] == [True, False]
    with pytest.raises(ValueError, match="'risk' has no exact law"):
        coverage_by_round(replace(naive, mode="risk"), scores, ones, units=names(30, "t"))
    with pytest.raises(ValueError, match="unit 'u0'"):
        coverage_by_round(naive, scores, ones, units=names(30))
    with pytest.raises(ValueError, match="occurs 30 times"):
        coverage_by_round(naive, scores, ones, units=["t"] * 30)
    with pytest.raises(ValueError, match="expected 2 rounds"):
        coverage_by_round(naive, scores[:, :1], ones[:, :1], units=names(30, "t"))


def test_whole_episodes_have_one_band() -> None:
    rng = np.random.default_rng(1)
    scores, ones = rng.random((30, 3)), np.ones((30, 3), bool)
    found = trajectory(scores, ones, 0.1, units=names(30))
    test = rng.random((200, 3))
    whole = no_proposal_refused(found, test, np.ones((200, 3), bool), units=names(200, "t"))
    assert whole.kept == int((test <= found.values).all(1).sum())
    assert whole.expected == 28 / 31
    assert whole.p_value == pytest.approx(stats.betabinom(200, 28, 3).cdf(whole.kept))
    loose = trajectory_bonferroni(scores, ones, 0.1, units=names(30))
    assert np.isnan(no_proposal_refused(loose, test, np.ones((200, 3), bool), units=names(200, "t")).p_value)
    with pytest.raises(ValueError, match="does not promise whole episodes"):
        no_proposal_refused(
            replace(found, mode="pilot"), test, np.ones((200, 3), bool), units=names(200, "t")
        )


def test_vacuous_is_infinite_or_no_smaller_than_the_spread() -> None:
    regrets = np.array([[0.0, 0.3, np.inf]] * 4)
    admissible = np.array([[True, True, False]] * 4)
    assert vacuous([0.29, 0.3, 0.31, np.inf], regrets, admissible).tolist() == [False, True, True, True]


def test_gate_rates_are_over_running_rows() -> None:
    q = audit(np.full((9, 1), 0.2), np.ones((9, 1), bool), 0.1, units=names(9))
    gate = ThresholdGate(replace(q, mode="sequential"))
    regrets = np.array([[0.0, 0.5], [0.0, 0.1], [0.0, 0.5]])
    admissible = np.array([[True, True], [True, True], [False, False]])
    proposal = np.array([1, 1, 0])
    rates = gate_rates(gate.accept(1, proposal, regrets, admissible), proposal, regrets, admissible)
    assert (rates.rows, rates.acceptance_rate, rates.replacement_rate) == (2, 0.5, 0.5)
    assert (rates.set_size, rates.vacuous_share) == (1.5, 0.5)


def test_rank_checks_find_a_shift_and_leave_equal_laws_alone() -> None:
    rng = np.random.default_rng(2)
    left, right = rng.exponential(size=(150, 3)), rng.exponential(size=(150, 3))
    right[:, 2] *= 2.5
    ones = np.ones((150, 3), bool)
    checks = rank_checks(left, ones, right, ones)
    assert [check.adjusted < 0.001 for check in checks] == [False, False, True]
    assert checks[2].shift > 0.6
    assert checks[0].p_value == pytest.approx(stats.mannwhitneyu(right[:, 0], left[:, 0]).pvalue)
    same = rank_checks(np.zeros((5, 1)), np.ones((5, 1), bool), np.zeros((4, 1)), np.ones((4, 1), bool))
    assert (same[0].shift, same[0].p_value) == (0.5, 1.0)
    empty = rank_checks(np.zeros((5, 1)), np.zeros((5, 1), bool), np.zeros((4, 1)), np.ones((4, 1), bool))
    assert np.isnan(empty[0].p_value)


def test_rank_checks_hold_their_level_over_rounds() -> None:
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(200):
        checks = rank_checks(
            rng.random((20, 8)), np.ones((20, 8), bool), rng.random((20, 8)), np.ones((20, 8), bool)
        )
        alarms += min(check.adjusted for check in checks) < 0.05
    assert stats.binom.sf(alarms - 1, 200, 0.05) > 1e-3


def test_holm_adjusts_step_by_step() -> None:
    adjusted = holm(np.array([0.01, np.nan, 0.04, 0.03]))
    assert adjusted[[0, 2, 3]] == pytest.approx([0.03, 0.06, 0.06])
    assert np.isnan(adjusted[1])


def test_power_is_what_simulation_says() -> None:
    found = power(99, 500, 0.1)
    rng = np.random.default_rng(4)
    level = rng.beta(found.detectable * 100, (1 - found.detectable) * 100, 20_000)
    seen = rng.binomial(500, level) < stats.betabinom(500, 90, 10).ppf(0.001)
    assert seen.mean() == pytest.approx(0.8, abs=0.012)
    assert "from 0.900 to 0.734" in found.statement
    assert "no fall in coverage can be shown" in power(8, 500, 0.1).statement
    small, large = power_by_round([30, 99], [30, 500], 0.1)
    assert small.detectable < large.detectable


# --- planner


def test_fold_sizes_of_the_method() -> None:
    assert [fold_size(reach, 0.1) for reach in (0.9, 0.65, 0.3)] == [13, 22, 53]
    with pytest.raises(ValueError, match="reach"):
        fold_size(0.0, 0.1)


def test_hiddenbench_supports_trajectory_and_not_eight_sequential_folds() -> None:
    reach = (1.0, 1.0, 1.0, 0.98, 0.9, 0.79, 0.74, 0.68)
    modes = {mode.mode: mode for mode in plan(65, 0.1, reach)}
    assert modes["trajectory"].can_certify
    assert modes["trajectory"].needed == 9
    sequential = modes["sequential"]
    assert sequential.needed == sum(fold_size(r, 0.1) for r in reach)
    assert not sequential.can_certify
    assert sequential.missing == sequential.needed - 65
    assert modes["pilot"].needed == 2 * fold_size(0.68, 0.1)
    assert not modes["bonferroni"].can_certify
    assert (modes["roundwise"].rounds_certified, modes["lockstep"].rounds_certified) == (1, 0)
    assert [mode.rounds_certified for mode in plan(8, 0.1, reach)] == [0] * 7
    half = {mode.mode: mode for mode in plan(30, 0.1, (1.0, 0.65, 0.3))}
    assert half["pilot"].rounds_certified == 1
    assert half["audit"].rounds_certified == 2


# --- proposals before scoring


def test_malformed_proposals_are_mapped_counted_and_ordered() -> None:
    admissible = np.array([[True, True, True], [True, False, True], [False, True, False], [False] * 3])
    mapped, malformed = map_malformed([0, 1, -1, 7], admissible, order=(2, 0, 1))
    assert mapped.tolist() == [0, 2, 1, 7]
    assert malformed.tolist() == [False, True, True, False]
    with pytest.raises(ValueError, match="no admissible candidate of row 2"):
        map_malformed([0, 0, 0, 0], admissible, order=(0, 2))


def test_a_vote_outside_leaves_no_score_and_no_candidate() -> None:
    reached = np.array([[True, True], [True, False]])
    votes = np.array([[False, True], [False, True]])
    assert vote_outside(reached, votes).tolist() == [[True, False], [True, False]]
    regrets, mask = outside_regrets([[0.2, 0.5, 0.0]], [[True, True, True]], vote=2)
    assert regrets.tolist() == [[0.0, 0.3, np.inf]]
    assert mask.tolist() == [[True, True, False]]
    with pytest.raises(ValueError, match="proposes_vote"):
        vote_outside(reached, votes[:1])
