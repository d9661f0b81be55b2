"""Stored thresholds round-trip exactly and are refused where they promise nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.calibrators import (
    acceptance_thresholds,
    as_acceptance,
    audit,
    certify,
    fit,
    roundwise,
)
from conformal.ranks import order_statistic, order_statistics
from conformal.scores import BoolArray, FloatArray
from conformal.sequential import SequentialCalibrator
from conformal.thresholds import PolicyMismatch, Thresholds, policy_hash
from conformal.trajectory import max_scores, scale, scaled_back, trajectory, trajectory_bonferroni

POLICY = {"controller": "rules", "objective": "w_G=0.25"}
KEY = policy_hash(POLICY)


def names(n: int, prefix: str = "u") -> list[str]:
    """n unit names."""
    return [f"{prefix}{i}" for i in range(n)]


def fold(n: int = 40, rounds: int = 3, seed: int = 0) -> tuple[FloatArray, BoolArray]:
    """Random scores and a mask in which the last round is reached by few."""
    rng = np.random.default_rng(seed)
    reached = np.ones((n, rounds), bool)
    reached[5:, -1] = False
    return rng.random((n, rounds)), reached


def stored() -> Thresholds:
    """Roundwise thresholds with an infinite last round."""
    scores, reached = fold()
    return roundwise(scores, reached, 0.1, units=names(40), policy_hash=KEY, policy=POLICY)


@given(st.lists(st.floats(0, allow_nan=False, allow_infinity=True), min_size=1, max_size=9))
def test_round_trip_is_exact(values: list[float]) -> None:
    base = stored()
    size = len(values)
    before = replace(
        base,
        values=np.array(values),
        acceptance=np.array(values),
        n=np.arange(size),
        k=np.arange(size),
        certified=np.isfinite(values),
    )
    text = json.dumps(before.to_dict(), allow_nan=False)
    after = Thresholds.from_dict(json.loads(text))
    assert after == before
    assert after.values.tolist() == values


def test_save_and_load(tmp_path: Path) -> None:
    before = stored()
    before.save(tmp_path / "t.json")
    assert '"inf"' in (tmp_path / "t.json").read_text()
    after = Thresholds.load(tmp_path / "t.json", policy_hash=KEY, test_units=["new"], policy=POLICY)
    assert after == before
    assert after != replace(before, alpha=0.2)
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]
    with pytest.raises(ValueError, match="read-only"):
        after.values[0] = 0.0


def test_another_policy_is_refused_with_the_part_that_differs(tmp_path: Path) -> None:
    stored().save(tmp_path / "t.json")
    other = POLICY | {"objective": "w_G=0.30"}
    with pytest.raises(PolicyMismatch, match=r"t\.json.*objective is w_G=0\.30, was w_G=0\.25"):
        Thresholds.load(tmp_path / "t.json", policy_hash=policy_hash(other), test_units=[], policy=other)


def test_calibration_units_may_not_be_tested_on(tmp_path: Path) -> None:
    stored().save(tmp_path / "t.json")
    with pytest.raises(PolicyMismatch, match=r"2 test units were in fold 'calibration', 'u3' among them"):
        Thresholds.load(tmp_path / "t.json", policy_hash=KEY, test_units=["u7", "x", "u3"])


def test_altered_or_broken_files_are_refused(tmp_path: Path) -> None:
    scores, reached = fold()
    pilot = acceptance_thresholds(scores, reached, 0.1, units=names(40, "p"), policy_hash=KEY)
    content = certify(scores, reached, pilot, units=names(40)).to_dict()
    for change, message in (
        ({"acceptance": [9.0, 9.0, 9.0]}, "altered after calibration"),
        ({"values": [0.5, 0.5, 0.5]}, "not as calibration wrote it"),
        ({"certified": [False, False, False]}, "not as calibration wrote it"),
        ({"n": [99, 99, 99]}, "not as calibration wrote it"),
        ({"alpha": 0.05}, "not as calibration wrote it"),
        ({"guarantee": "anything"}, "not as calibration wrote it"),
        ({"values": [1.0, "nan", 1.0]}, "'nan'"),
        ({"n": ["a", 1, 1]}, r"t\.json: n holds 'a'; expected whole numbers"),
        ({"alpha": "0.1"}, "field 'alpha' is '0.1'; expected a float"),
        ({"alpha": 1.5}, r"t\.json: alpha: 1\.5 is outside"),
        ({"surprise": 1}, "'surprise' is unknown"),
    ):
        (tmp_path / "t.json").write_text(json.dumps(content | change))
        with pytest.raises(ValueError, match=message):
            Thresholds.read(tmp_path / "t.json")
    del content["k"]
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"t\.json: field 'k' is missing"):
        Thresholds.read(tmp_path / "t.json")
    for text in ("{", "[1]"):
        (tmp_path / "t.json").write_text(text)
        with pytest.raises(ValueError, match=r"t\.json"):
            Thresholds.read(tmp_path / "t.json")


def test_thresholds_must_be_of_one_shape_and_not_negative() -> None:
    with pytest.raises(ValueError, match="acceptance has shape"):
        replace(stored(), acceptance=np.zeros(2))
    with pytest.raises(ValueError, match="negative"):
        replace(stored(), values=np.array([-1.0, 0, 0]))


# --- what the calibrators promise


def test_roundwise_and_audit_fit_the_same_and_promise_differently() -> None:
    scores, reached = fold()
    naive, flags = (f(scores, reached, 0.1, units=names(40)) for f in (roundwise, audit))
    assert (
        naive.values.tolist()
        == flags.values.tolist()
        == order_statistics(scores, reached, 0.1).values.tolist()
    )
    assert naive.certified.tolist() == [True, True, False]
    assert naive.n.tolist() == [40, 40, 5]
    assert "nothing is guaranteed from round 2" in naive.guarantee
    assert "executes every proposal" in flags.guarantee
    assert naive.reported is naive.values


def test_pilot_takes_two_folds_and_reports_the_larger() -> None:
    scores, reached = fold()
    second, second_reached = fold(60, seed=1)
    eta = acceptance_thresholds(scores, reached, 0.1, units=names(40, "p"), policy_hash=KEY)
    assert eta.mode == "acceptance"
    assert not eta.certified.any()
    found = certify(second, second_reached, eta, units=names(60), policy_hash=KEY)
    assert found.mode == "pilot"
    assert set(found.folds) == {"pilot calibration", "certification"}
    assert found.acceptance.tolist() == eta.values.tolist()
    assert found.reported.tolist() == np.maximum(eta.values, found.values).tolist()
    assert found.certified.tolist() == np.isfinite(found.reported).tolist()
    assert "max(eta_t, q_t)" in found.guarantee
    assert found.deployment_hash != as_acceptance(found).deployment_hash
    with pytest.raises(ValueError, match="unit 'p0' is in"):
        certify(second, second_reached, eta, units=["p0", *names(59)])
    with pytest.raises(PolicyMismatch, match="ran under policy 'other'"):
        certify(second, second_reached, eta, units=names(60), policy_hash="other")
    with pytest.raises(ValueError, match="2 rounds, the pilot 3"):
        certify(second[:, :2], second_reached[:, :2], eta, units=names(60))


def test_sequential_takes_a_fresh_fold_per_round_in_order() -> None:
    rng = np.random.default_rng(2)
    calibrator = SequentialCalibrator(0.1, policy_hash=KEY, policy=POLICY)
    first = rng.random(30)
    assert calibrator.fit_round(1, first, units=names(30, "a")) == order_statistic(first, 0.1)
    with pytest.raises(ValueError, match="round 3 after 1"):
        calibrator.fit_round(3, first, units=names(30, "b"))
    with pytest.raises(ValueError, match="unit 'a0'"):
        calibrator.fit_round(2, first, units=names(30, "a"))
    calibrator.fit_round(2, rng.random(30), units=names(30, "b"), reached=np.arange(30) < 8)
    found = calibrator.thresholds(4)
    assert found.n.tolist() == [30, 8, 0, 0]
    assert np.isinf(found.values[1:]).all()
    assert found.certified.tolist() == [True, False, False, False]
    assert set(found.folds) == {"round 1", "round 2"}
    with pytest.raises(ValueError, match="rounds"):
        calibrator.thresholds(1)


def test_trajectory_scales_the_largest_score() -> None:
    scores, reached = fold()
    training, training_reached = fold(200, seed=3)
    sigma = scale(training, training_reached)
    assert sigma.shape == (3,)
    found = trajectory(scores, reached, 0.1, units=names(40), sigma=sigma, scale_units=names(200, "t"))
    q = order_statistic(max_scores(scores, reached, sigma), 0.1)
    assert found.values == pytest.approx(q * sigma)
    assert found.k.tolist() == [37, 37, 37]
    assert "no proposal refused" in found.guarantee
    violated = (reached & (scores > found.values)).any(1)
    assert violated.sum() == 40 - 37
    with pytest.raises(ValueError, match="unit 'u1'"):
        trajectory(scores, reached, 0.1, units=names(40), sigma=sigma, scale_units=["u1"])
    with pytest.raises(ValueError, match="sigma"):
        trajectory(scores, reached, 0.1, units=names(40), sigma=[1.0, 0.0, 1.0])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(1e-3, 2))
def test_scaling_back_loses_no_tie(scores: list[float], sigma: float) -> None:
    values, width = np.array(scores), np.array([sigma])
    for q in values / width:
        assert ((values <= scaled_back(q, width)) >= (values / width <= q)).all()
    assert scaled_back(np.inf, width).tolist() == [np.inf]


def test_scale_of_an_absent_round_is_one_and_failed_scores_are_left_out() -> None:
    scores = np.array([[0.5, 0.0, np.nan], [np.inf, 0.0, np.nan]])
    reached = np.array([[True, True, False], [True, True, False]])
    assert scale(scores, reached).tolist() == [0.5, 1e-3, 1.0]


def test_bonferroni_uses_a_share_of_alpha_at_each_round() -> None:
    scores = np.random.default_rng(4).random((200, 2))
    found = trajectory_bonferroni(scores, np.ones((200, 2), bool), "0.1", units=names(200))
    assert found.values[0] == order_statistic(scores[:, 0], "0.05")
    assert (found.mode, found.alpha) == ("bonferroni", 0.1)


def test_fit_dispatches_and_says_what_to_do_otherwise() -> None:
    scores, reached = fold()
    for mode in ("roundwise", "audit", "acceptance", "trajectory", "bonferroni"):
        assert fit(mode, scores, reached, 0.1, units=names(40)).mode == mode
    for mode, hint in (
        ("pilot", "certify"),
        ("sequential", "SequentialCalibrator"),
        ("lockstep", "LockstepGate"),
    ):
        with pytest.raises(ValueError, match=hint):
            fit(mode, scores, reached, 0.1, units=names(40))
    with pytest.raises(ValueError, match="'exact' cannot be fitted"):
        fit("exact", scores, reached, 0.1, units=names(40))


def test_every_mode_states_guarantee_and_assumptions() -> None:
    scores, reached = fold()
    for mode in ("roundwise", "audit", "trajectory", "bonferroni"):
        found = fit(mode, scores, reached, 0.1, units=names(40))
        assert "P(" in found.guarantee
        assert "exchangeable" in found.assumptions
        assert "one policy" in found.assumptions


def test_a_bad_score_names_its_episode() -> None:
    scores, reached = fold()
    scores[4, 1] = np.nan
    with pytest.raises(ValueError, match="'u4', round 2"):
        roundwise(scores, reached, 0.1, units=names(40))
    with pytest.raises(ValueError, match="names 3 units for 40"):
        roundwise(scores, reached, 0.1, units=names(3))
