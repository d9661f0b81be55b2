"""PAC, Mondrian, weighted, risk control and hierarchical weights, each with the mutant that breaks it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from conformal.bands import poisson_binomial, replicate_count
from conformal.calibrators import certify, roundwise
from conformal.gate import LockstepGate, RowGate
from conformal.hierarchical import hierarchical, hierarchical_threshold
from conformal.mondrian import MondrianThresholds, mondrian
from conformal.pac import coverage_confidence, pac_ranks, pac_smallest_n
from conformal.ranks import order_statistic, order_statistics, rank
from conformal.risk import risk_threshold, sequential_risk
from conformal.scores import BoolArray, FloatArray
from conformal.thresholds import PolicyMismatch, Thresholds
from conformal.weighted import effective_sample_size, weighted, weighted_threshold

LEVEL = 1e-3


def names(n: int, prefix: str = "u") -> list[str]:
    """n unit names."""
    return [f"{prefix}{i}" for i in range(n)]


# --- PAC


def test_pac_figures() -> None:
    smallest = {(a, d): pac_smallest_n(a, d) for a in ("0.2", "0.1", "0.05") for d in ("0.1", "0.05")}
    assert list(smallest.values()) == [11, 14, 22, 29, 45, 59]
    for (alpha, delta), n in smallest.items():
        assert pac_ranks([n - 1, n], alpha, delta).tolist() == [n, n]
    assert pac_ranks(100, 0.1, 0.1).tolist() == 95
    assert pac_ranks(100, 0.1, 0.05).tolist() == 96
    exact = [coverage_confidence(100, k, 0.1) for k in (91, 95, 96)]
    assert exact == pytest.approx([0.5487, 0.9424, 0.9763], abs=5e-5)


def test_pac_coverage_given_calibration() -> None:
    ordered = np.sort(np.random.default_rng(2).random((4000, 100)), axis=1)
    for delta, k in ((0.1, 95), (0.05, 96)):
        confident = int((ordered[:, k - 1] >= 0.9).sum())
        assert stats.binomtest(confident, 4000, coverage_confidence(100, k, 0.1)).pvalue > LEVEL
        assert confident / 4000 > 1 - delta
    marginal = int((ordered[:, rank(100, 0.1) - 1] >= 0.9).sum())
    assert stats.binomtest(marginal, 4000, 0.9).pvalue < LEVEL


def test_pac_delta_reaches_every_round_and_the_words() -> None:
    scores = np.random.default_rng(0).random((100, 2))
    found = roundwise(scores, np.ones((100, 2), bool), 0.1, units=names(100), delta=0.1)
    assert found.k.tolist() == [95, 95]
    assert found.values.tolist() == np.sort(scores, axis=0)[94].tolist()
    assert "with probability 0.9 over calibration" in found.guarantee


# --- Mondrian


def two_groups(seed: int, replicates: int, n: int) -> tuple[FloatArray, BoolArray]:
    """Scores (R, n) and a label known beforehand: a fifth of episodes score three times as high."""
    rng = np.random.default_rng(seed)
    label = rng.random((replicates, n)) < 0.2
    return rng.exponential(size=(replicates, n)) * np.where(label, 3.0, 1.0), label


def group_p_value(within_group: bool, seed: int = 11) -> float:
    """Coverage of test points of the rare group, by thresholds of the group or of everybody."""
    scores, label = two_groups(seed, 2000, 121)
    mask = label[:, :-1] if within_group else np.ones_like(label[:, :-1])
    found = order_statistics(scores[:, :-1], mask, 0.1, axis=1)
    test = label[:, -1]
    hits = scores[test, -1] <= found.values[test]
    return replicate_count(hits, np.ones(test.sum()), found.k[test], found.n[test]).p_value


def test_groups_are_covered_one_by_one_and_pooling_is_rejected() -> None:
    assert group_p_value(within_group=True) > LEVEL
    assert group_p_value(within_group=False) < LEVEL


def test_mondrian_calibrates_within_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    scores, reached = rng.random((60, 2)), rng.random((60, 2)) < 0.9
    labels = np.where(np.arange(60)[:, None] < 52, "route", "vote") + np.array(["", ""])
    found = mondrian(lambda mask: roundwise(scores, mask, 0.1, units=names(60)), reached, labels)
    own = reached[:52, 0]
    assert found.at(1, ["route"])[0] == order_statistic(scores[:52][own, 0], 0.1)
    assert np.isinf(found.at(1, ["vote"])[0])
    assert f"{reached[52:, 0].sum()} scores at round 1, 9 needed" in str(found.reason(1, "vote"))
    assert found.reason(1, "route") is None
    assert "given proposed action 'route'" in found.by_label["route"].guarantee
    found.save(tmp_path / "m.json")
    loaded = MondrianThresholds.load(tmp_path / "m.json", policy_hash="", test_units=["new"])
    assert loaded.by_label == dict(found.by_label)
    with pytest.raises(PolicyMismatch, match="u3"):
        MondrianThresholds.load(tmp_path / "m.json", policy_hash="", test_units=["u3"])
    with pytest.raises(ValueError, match="round 3"):
        found.at(3, ["route"])


def test_row_gate_takes_the_threshold_of_the_proposed_action() -> None:
    per_action = np.array([0.1, 0.5])
    gate = RowGate(lambda _, proposal: per_action[proposal])
    regrets = np.array([[0.3, 0.0], [0.0, 0.3]])
    decision = gate.accept(1, np.array([0, 1]), regrets, np.ones((2, 2), bool))
    assert decision.executed.tolist() == [1, 1]
    assert decision.replaced.tolist() == [True, False]


# --- weighted


def brute_force(scores: FloatArray, weights: FloatArray, extra: float, alpha: float) -> float:
    """inf{q : sum of weights of scores <= q reaches (1 - alpha) of everything}, by the definition."""
    total = weights.sum() + extra
    reaching = [q for q in scores if weights[scores <= q].sum() >= (1 - alpha) * total]
    return min(reaching, default=np.inf)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), min_size=1, max_size=30),
    st.integers(1, 8),
    st.sampled_from([0.25, 0.5, 0.125]),
)
def test_weighted_threshold_is_its_definition(pairs: list[tuple[int, int]], extra: int, alpha: float) -> None:
    scores, weights = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    assert weighted_threshold(scores, weights, [extra], alpha)[0] == brute_force(
        scores, weights, extra, alpha
    )


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=60),
    st.floats(1e-6, 1e6),
    st.sampled_from([0.1, 0.05, 0.3]),
)
def test_equal_weights_give_the_order_statistic(scores: list[float], weight: float, alpha: float) -> None:
    found = weighted_threshold(scores, np.full(len(scores), weight), [weight], alpha)
    assert found[0] == order_statistic(scores, alpha)


def shifted_hits(seed: int, aligned: bool, replicates: int = 700, n: int = 200) -> tuple[int, int, float]:
    """METHOD 5's covariate shift, one test point a replicate: hits weighted, hits unweighted, mean ESS.

    Not aligned is the mutant: scores are sorted and weights left where they were.
    """
    rng = np.random.default_rng(seed)
    hits = plain = 0
    sizes = []
    for _ in range(replicates):
        x, test_x = rng.standard_normal(n), 0.8 + rng.standard_normal()
        scores = np.abs(rng.standard_normal(n)) * np.exp(0.6 * x)
        test = abs(rng.standard_normal()) * np.exp(0.6 * test_x)
        weights = np.exp(0.8 * x)
        kept = scores if aligned else np.sort(scores)
        hits += test <= weighted_threshold(kept, weights, [np.exp(0.8 * test_x)], 0.1)[0]
        plain += test <= order_statistic(scores, 0.1)
        sizes.append(effective_sample_size(weights))
    return int(hits), int(plain), float(np.mean(sizes))


def test_weights_restore_coverage_and_misaligned_ones_are_rejected() -> None:
    promise = np.full(700, 0.9)
    hits, plain, size = shifted_hits(12, aligned=True)
    assert poisson_binomial(hits, promise, "below").p_value > LEVEL
    assert poisson_binomial(plain, promise, "below").p_value < LEVEL
    assert size == pytest.approx(108.5, abs=3)
    misaligned, _, _ = shifted_hits(12, aligned=False)
    assert poisson_binomial(misaligned, promise, "below").p_value < LEVEL


def test_weighted_by_round_reports_its_effective_sample_size() -> None:
    rng = np.random.default_rng(4)
    scores, weights = rng.random((30, 2)), rng.random((30, 2)) + 0.1
    reached = np.ones((30, 2), bool)
    reached[:10, 1] = False
    found = weighted(scores, reached, weights, 0.1, units=names(30))
    assert found.n.tolist() == [30, 20]
    assert found.ess[1] == pytest.approx(weights[10:, 1].sum() ** 2 / (weights[10:, 1] ** 2).sum())
    assert found.at(2, [0.5])[0] == weighted_threshold(scores[10:, 1], weights[10:, 1], [0.5], 0.1)[0]
    with pytest.raises(ValueError, match="weights: shape"):
        weighted(scores, reached, weights[:5], 0.1, units=names(30))
    with pytest.raises(ValueError, match="index 1"):
        weighted_threshold([1.0, 2.0], [1.0, np.inf], [1.0], 0.1)
    with pytest.raises(ValueError, match="round 3"):
        found.at(3, [1.0])


# --- risk control

GRID = np.linspace(0, 0.4, 201)


def risk_without_bound(scores: FloatArray, alpha_r: float) -> FloatArray:
    """Mutant: the empirical risk itself, without the term for the test point."""
    ordered = np.sort(scores, axis=0)
    loss = np.array([(ordered * (ordered <= step)).mean(0) for step in GRID])
    allowed = loss <= alpha_r
    return np.where(allowed.any(0), GRID[allowed.shape[0] - 1 - allowed[::-1].argmax(0)], 0.0)


def excess_risk(found: FloatArray, alpha_r: float, seed: int) -> float:
    """z of the mean executed regret above alpha_r, one fresh test point per replicate; argmin fallback."""
    rng = np.random.default_rng(seed)
    test = np.where(rng.random((40, len(found))) < 0.3, 0.0, rng.gamma(1.2, 0.08, (40, len(found))))
    executed = (test * (test <= found)).mean(0)
    return float((executed.mean() - alpha_r) / (executed.std() / np.sqrt(len(executed))))


def test_risk_is_controlled_and_without_the_bound_it_is_not() -> None:
    rng = np.random.default_rng(13)
    scores = np.where(rng.random((20, 8000)) < 0.3, 0.0, rng.gamma(1.2, 0.08, (20, 8000)))
    found = risk_threshold(scores, None, "0.05", GRID)
    assert excess_risk(found.values, 0.05, seed=14) < 3.1
    assert excess_risk(risk_without_bound(scores, 0.05), 0.05, seed=14) > 3.1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.sampled_from(["0.02", "0.05", "0.2"]))
def test_risk_threshold_is_its_definition(scores: list[float], alpha_r: str) -> None:
    s = np.array(scores)
    fits = [
        step for step in GRID if ((s * (s <= step)).sum() + GRID[-1]) / (len(s) + 1) <= float(alpha_r) + 1e-15
    ]
    found = risk_threshold(s, None, alpha_r, GRID)
    assert float(found.values) == pytest.approx(max(fits, default=0.0))
    assert int(found.n) == len(s)


def test_risk_runs_in_sequential_folds() -> None:
    rng = np.random.default_rng(15)
    calibrator = sequential_risk("0.05", GRID)
    for t in (1, 2):
        calibrator.fit_round(t, rng.gamma(1.2, 0.08, 60), units=names(60, f"r{t}-"))
    found = calibrator.thresholds(3)
    assert found.mode == "risk"
    assert found.values[2] == np.inf
    assert "E[executed regret" in found.guarantee
    with pytest.raises(ValueError, match="grid"):
        sequential_risk("0.05", np.array([0.2, 0.1]))


# --- hierarchical


def test_equal_seed_counts_agree_with_sorting_by_hand() -> None:
    rng = np.random.default_rng(16)
    scores = rng.random((20, 10))
    families = [f"f{i}" for i in range(20) for _ in range(10)]
    cut = 9 * 21 - 1
    assert hierarchical_threshold(scores.ravel(), families, "0.1") == np.sort(scores.ravel())[cut]
    alone = hierarchical_threshold(scores[:, 0], families[::10], "0.1")
    assert alone == order_statistic(scores[:, 0], "0.1")


@given(st.lists(st.integers(1, 4), min_size=1, max_size=25), st.integers(0, 1000))
@settings(max_examples=50)
def test_duplicating_seeds_of_a_family_changes_nothing(seeds: list[int], seed: int) -> None:
    scores = np.random.default_rng(seed).random(len(seeds))
    repeated = np.repeat(scores, seeds)
    families = [f"f{i}" for i, m in enumerate(seeds) for _ in range(m)]
    assert hierarchical_threshold(repeated, families, 0.1) == order_statistic(scores, 0.1)


def families_with_unequal_reach(seed: int, replicates: int = 1500) -> tuple[FloatArray, BoolArray]:
    """60 families of 10 seeds and one test family (R, 61, 10): a tenth reach often and have high regret."""
    rng = np.random.default_rng(seed)
    often = rng.random((replicates, 61, 1)) < 0.1
    scores = rng.exponential(size=(replicates, 61, 10)) + np.where(often, 10.0, 0.0)
    return scores, rng.random(scores.shape) < np.where(often, 0.95, 0.3)


def later_round_p_value(hierarchical_weights: bool, seed: int = 17) -> tuple[float, float]:
    """Coverage, and its p-value from below 0.9, of a reaching seed of a new family at a later round."""
    scores, reached = families_with_unequal_reach(seed)
    labels = np.repeat(np.arange(60), 10).reshape(60, 10).astype(str)
    hits = total = 0
    for s, r in zip(scores, reached, strict=True):
        if not r[60, 0]:
            continue
        total += 1
        if hierarchical_weights:
            q = hierarchical_threshold(s[:60][r[:60]], labels[r[:60]].tolist(), 0.1)
        else:
            q = order_statistic(s[:60, 0][r[:60, 0]], 0.1)
        hits += s[60, 0] <= q
    return hits / total, poisson_binomial(int(hits), np.full(total, 0.9), "below").p_value


def test_hierarchical_weights_after_round_one_are_rejected_and_refused() -> None:
    coverage, p_value = later_round_p_value(hierarchical_weights=True)
    assert p_value < LEVEL
    assert coverage == pytest.approx(0.753, abs=0.06)
    assert later_round_p_value(hierarchical_weights=False)[1] > LEVEL
    with pytest.raises(ValueError, match="chance of reaching"):
        hierarchical(
            np.zeros((4, 2)),
            np.ones((4, 2), bool),
            0.1,
            families=["a", "a", "b", "b"],
            statistic="first round",
        )


def test_hierarchical_covers_a_new_family_at_round_one_and_over_whole_trajectories() -> None:
    rng = np.random.default_rng(18)
    level = rng.standard_normal((1500, 21, 1, 1))
    scores = np.exp(0.5 * (level + rng.standard_normal((1500, 21, 10, 3))))
    families = [f"f{i}" for i in range(20) for _ in range(10)]
    for statistic, rounds in (("first round", 1), ("trajectory", 3)):
        hits = 0
        for s in scores[:500]:
            cal = s[:20, :, :rounds].reshape(200, rounds)
            found = hierarchical(cal, np.ones_like(cal, bool), 0.1, families=families, statistic=statistic)  # type: ignore[arg-type]
            hits += bool((s[20, 0, :rounds] <= found.values).all())
        assert found.n.tolist() == [20] * rounds
        assert poisson_binomial(hits, np.full(500, 0.9), "below").p_value > LEVEL


def test_seeds_are_not_counted_as_tasks() -> None:
    with pytest.raises(ValueError, match=r"'a' occurs 2 times.*hierarchical"):
        roundwise(np.zeros((3, 1)), np.ones((3, 1), bool), 0.1, units=["a", "a", "b"])


def test_a_certified_group_of_a_pilot_keeps_its_acceptance() -> None:
    rng = np.random.default_rng(19)
    gate = LockstepGate(0.1)
    gate.accept(1, np.zeros(30, int), np.column_stack([rng.random(30), np.zeros(30)]), np.ones((30, 2), bool))
    pilot: Thresholds = gate.thresholds(units=names(30, "p"))
    scores, labels = rng.random((40, 1)), np.array([["x"]] * 20 + [["y"]] * 20)
    found = mondrian(lambda m: certify(scores, m, pilot, units=names(40)), np.ones((40, 1), bool), labels)
    assert found.at(1, ["x", "y"]).tolist() == [pilot.values[0]] * 2
    assert found.by_label["x"].values[0] == order_statistic(scores[:20, 0], 0.1)
