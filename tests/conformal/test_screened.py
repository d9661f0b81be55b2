"""Screened mode: always an evaluated candidate, admissible proposals always kept, error within alpha_s."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformal.bands import beta_binomial_p_value, replicate_count
from conformal.calibrators import roundwise
from conformal.ranks import order_statistic, order_statistics, rank
from conformal.scores import FloatArray, IntArray
from conformal.screen_band import ScreenBand, fit_band
from conformal.screened import (
    GRID,
    Predictions,
    audit_rows,
    constant_predictions,
    problem,
    procedure_scores,
    rows_of,
    screen,
    screen_step,
    union_scores,
)
from conformal.thresholds import PolicyMismatch
from conformal.zero_branch import all_candidate_scores, proposal_only_scores, regret_bound

LEVEL = 1e-3
ACTION_MEANS = np.array([0.55, 0.5, 0.35, 0.4])


def world(seed: int, rows: int) -> tuple[FloatArray, Predictions, IntArray]:
    """Objectives (rows, 4) around action means, middling predictions, proposals biased to the best."""
    rng = np.random.default_rng(seed)
    signal = 0.06 * rng.standard_normal((rows, 4))
    objectives = np.clip(ACTION_MEANS + signal + 0.08 * rng.standard_normal((rows, 4)), 0, 1)
    forecast = Predictions(ACTION_MEANS + signal, np.full((rows, 4), 0.08))
    drawn = rng.integers(4, size=rows)
    proposal = np.where(rng.random(rows) < 0.6, (ACTION_MEANS + 0.1 * rng.random((rows, 4))).argmin(1), drawn)
    return objectives, forecast, proposal.astype(np.int64)


def regrets_of(objectives: FloatArray, chosen: IntArray) -> FloatArray:
    """Regret of one candidate per row."""
    found: FloatArray = objectives[np.arange(len(chosen)), chosen] - objectives.min(1)
    return found


@given(st.integers(0, 10_000), st.sampled_from([-6.0, -1.0, 0.0, 1.0, 3.0, np.inf]))
def test_whatever_the_band_admissible_proposals_are_kept(seed: int, band: float) -> None:
    objectives, forecast, proposal = world(seed, 40)
    found = screen(problem(proposal, forecast, 0.1, band), objectives)
    rows = np.arange(40)
    assert found.evaluated[rows, found.executed].all()
    assert found.evaluated[rows, proposal].all()
    own = regrets_of(objectives, proposal)
    assert found.accepted[own <= 0.1].all()
    if np.isinf(band):
        assert (found.accepted == (own <= 0.1)).all()
        assert (found.executed == np.where(own <= 0.1, proposal, objectives.argmin(1))).all()
        assert (regrets_of(objectives, found.executed) <= 0.1).all()


@given(st.integers(0, 10_000), st.sampled_from([0.5, 1.0, 2.0]))
def test_on_the_band_event_nothing_wrong_is_committed(seed: int, band: float) -> None:
    objectives, forecast, proposal = world(seed, 60)
    given_problem = problem(proposal, forecast, 0.1, band)
    held = union_scores(given_problem, objectives) <= band
    executed = screen(given_problem, objectives).executed
    assert (regrets_of(objectives, executed)[held] <= 0.1 + 1e-12).all()


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_procedure_score_is_the_least_band_right_from_there_on(seed: int) -> None:
    objectives, forecast, proposal = world(seed, 12)
    found = procedure_scores(problem(proposal, forecast, 0.08, 0.0), objectives)
    right = []
    for band in GRID:
        executed = screen(problem(proposal, forecast, 0.08, band), objectives).executed
        right.append(regrets_of(objectives, executed) <= 0.08)
    for row in range(12):
        suffix = [bool(np.all([r[row] for r in right[i:]])) for i in range(len(GRID))]
        assert found[row] == (GRID[suffix.index(True)] if any(suffix) else np.inf)


def test_a_row_that_errs_even_at_the_largest_band_scores_infinity() -> None:
    objectives, forecast = (
        np.array([[0.9, 0.0]]),
        Predictions(np.array([[0.9, 5.0]]), np.array([[0.9, 0.01]])),
    )
    assert procedure_scores(problem([0], forecast, 0.1, 0.0), objectives).tolist() == [np.inf]


def test_the_screen_can_be_stepped_without_knowing_unevaluated_objectives() -> None:
    objectives, forecast, proposal = world(1, 300)
    given_problem = problem(proposal, forecast, 0.08, 1.0)
    known, evaluated = np.full_like(objectives, np.nan), np.zeros(objectives.shape, bool)
    for _ in range(4):
        branch = screen_step(given_problem, known, evaluated).branch
        live = np.flatnonzero(branch >= 0)
        known[live, branch[live]] = objectives[live, branch[live]]
        evaluated[live, branch[live]] = True
    whole = screen(given_problem, objectives)
    assert (screen_step(given_problem, known, evaluated).branch == -1).all()
    assert (screen_step(given_problem, known, evaluated).candidate == whole.executed).all()
    assert (evaluated == whole.evaluated).all()
    assert 1 < whole.branches.mean() < 4


def test_inadmissible_candidates_are_never_evaluated_and_failed_ones_never_committed() -> None:
    objectives, forecast, _ = world(2, 50)
    admissible = np.tile([True, True, False, True], (50, 1))
    proposal = np.zeros(50, np.int64)
    objectives[:, 0] = np.inf
    for q in (0.1, np.inf):
        found = screen(problem(proposal, forecast, q, 0.5, admissible), objectives)
        assert not found.evaluated[:, 2].any()
        assert (found.executed != 0).all()


def calibrated(kind: str, seed: int, replicates: int, alpha_s: str) -> tuple[IntArray, float]:
    """Committed regrets within q, of 50 test rows per replicate, and the mean number of branches evaluated.

    Per replicate: fold A (200) for q, fold B (200) for the band, one test set.
    """
    objectives, forecast, proposal = world(seed, replicates * 450)
    own = regrets_of(objectives, proposal).reshape(replicates, 450)
    q = order_statistics(own[:, :200], None, "0.1", axis=1).values
    whole = problem(proposal, forecast, np.repeat(q, 450), 0.0)
    place = np.arange(replicates * 450) % 450
    in_b, test = (place >= 200) & (place < 400), place >= 400
    score = procedure_scores if kind == "procedure" else union_scores
    lam = score(rows_of(whole, in_b), objectives[in_b]).reshape(replicates, 200)
    bands = order_statistics(lam, None, alpha_s, axis=1, signed=True).values
    deployed = screen(rows_of(whole, test)._replace(band=np.repeat(bands, 50)), objectives[test])
    right = regrets_of(objectives[test], deployed.executed) <= whole.threshold[test]
    return right.reshape(replicates, 50).sum(1), float(deployed.branches.mean())


@pytest.mark.parametrize("alpha_s", ["0.01", "0.05"])
def test_the_procedure_errs_within_alpha_s_and_no_less_than_it_must(alpha_s: str) -> None:
    right, branches = calibrated("procedure", 3, 60, alpha_s)
    n, k, size = np.full(60, 200), np.full(60, rank(200, alpha_s)), np.full(60, 50)
    assert replicate_count(right, size, k, n, "below").p_value > LEVEL
    assert right.sum() / (60 * 50) < 1 - float(alpha_s) / 3
    assert branches < 2.5


def test_the_union_band_is_the_more_careful_one() -> None:
    careful, more = calibrated("union", 4, 30, "0.01")
    bold, fewer = calibrated("procedure", 4, 30, "0.01")
    assert careful.sum() >= bold.sum()
    assert fewer < more < 4


def test_a_band_at_the_wrong_rank_is_rejected() -> None:
    """Mutant: a band that lets alpha through instead of alpha_s."""
    right, _ = calibrated("procedure", 5, 20, "0.1")
    n, k, size = np.full(20, 200), np.full(20, rank(200, "0.01")), np.full(20, 50)
    assert replicate_count(right, size, k, n, "below").p_value < LEVEL


def test_constant_predictions_are_training_means() -> None:
    objectives = np.array([[0.2, 9.0], [0.4, 0.5], [0.6, 0.5]])
    admissible = np.array([[True, False], [True, True], [True, True]])
    found = constant_predictions(objectives, admissible)
    assert found.objective == pytest.approx([0.4, 0.5])
    assert found.scale == pytest.approx([np.std([0.2, 0.4, 0.6]), 0.01])
    with pytest.raises(ValueError, match="candidate 1 never occurs"):
        constant_predictions(objectives, np.array([[True, False]] * 3))
    assert screen(problem([0, 0, 0], found, 0.1, 1.0), objectives).evaluated.any()


def test_constant_predictions_save_branches_with_enough_families() -> None:
    objectives, _, proposal = world(6, 3000)
    constant = constant_predictions(objectives[:1000])
    q = order_statistic(regrets_of(objectives[1000:2000], proposal[1000:2000]), "0.1")
    lam = procedure_scores(problem(proposal[1000:2000], constant, q, 0.0), objectives[1000:2000])
    band = order_statistic(lam, "0.01", signed=True)
    found = screen(problem(proposal[2000:], constant, q, band), objectives[2000:])
    within = int((regrets_of(objectives[2000:], found.executed) <= q).sum())
    assert beta_binomial_p_value(within, 1000, rank(1000, "0.01"), 1000, "below") > LEVEL
    assert found.branches.mean() / 4 < 0.8


def test_bands_are_stored_and_refused_like_thresholds(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    scores, ones = rng.random((120, 2)), np.ones((120, 2), bool)
    ones[98:, 1] = False
    q = roundwise(scores, ones, 0.1, units=[f"a{i}" for i in range(120)], policy_hash="p")
    lam = rng.normal(size=(120, 2))
    band = fit_band(lam, ones, units=[f"b{i}" for i in range(120)], thresholds=q)
    assert band.values.tolist() == [np.sort(lam[:, 0])[119], np.inf]
    assert band.certified.tolist() == [True, False]
    assert band.let_through(0.1) == pytest.approx(0.1)
    assert "0.99 (procedure band)" in band.guarantee
    band.save(tmp_path / "b.json")
    again = ScreenBand.load(tmp_path / "b.json", policy_hash="p", test_units=["c"])
    assert again.values.tolist() == band.values.tolist()
    assert dict(again.folds) == dict(band.folds)
    with pytest.raises(PolicyMismatch, match="'a3'"):
        ScreenBand.load(tmp_path / "b.json", policy_hash="p", test_units=["a3"])
    with pytest.raises(PolicyMismatch, match="asked to serve 'q'"):
        ScreenBand.load(tmp_path / "b.json", policy_hash="q", test_units=[])
    with pytest.raises(ValueError, match=r"alpha_s: 0\.1 is not below alpha 0\.1"):
        fit_band(lam, ones, 0.1, units=[f"b{i}" for i in range(120)], thresholds=q)
    with pytest.raises(ValueError, match="unit 'a0'"):
        fit_band(lam, ones, units=[f"a{i}" for i in range(120)], thresholds=q)


def test_bad_problems_say_what_is_wrong() -> None:
    forecast = Predictions(np.array([[0.1, np.nan]]), np.array([[1.0, 1.0]]))
    with pytest.raises(ValueError, match="row 0, candidate 1 is predicted nan"):
        problem([0], forecast, 0.1, 1.0)
    with pytest.raises(ValueError, match="inadmissible proposal"):
        problem([1], forecast, 0.1, 1.0, [[True, False]])
    with pytest.raises(ValueError, match=r"expected \(B,\) and \(B, C\)"):
        problem([0, 1], forecast, 0.1, 1.0)


def test_audit_rows_follow_their_uniforms() -> None:
    assert audit_rows([0.05, 0.2, 0.099], 0.1).tolist() == [True, False, True]
    with pytest.raises(ValueError, match="audit_fraction"):
        audit_rows([0.5], 1.5)


def test_zero_branch_certificates_cover_every_candidate_or_the_proposal() -> None:
    objectives, forecast, proposal = world(8, 400 * 100)
    regrets = objectives - objectives.min(1, keepdims=True)
    every = all_candidate_scores(regrets, forecast.objective).reshape(400, 100)
    own = proposal_only_scores(regrets, forecast.objective, proposal).reshape(400, 100)
    counts = []
    for scores in (every, own):
        found = order_statistics(scores[:, :99], None, "0.1", axis=1, signed=True)
        counts.append((scores[:, 99] <= found.values, found))
    for hits, found in counts:
        assert replicate_count(hits, np.ones(400), found.k, found.n).p_value > LEVEL
    assert counts[1][1].values.mean() < counts[0][1].values.mean()
    q = float(counts[0][1].values[0])
    bound = regret_bound(forecast.objective[:100], q)
    assert ((regrets[:100] <= bound).all(1) == (every[0] <= q)).all()
    masked = regret_bound(np.array([[0.1, 0.4]]), 0.2, np.array([[False, True]]))
    assert masked.tolist() == [[np.inf, 0.2]]
