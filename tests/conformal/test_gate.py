"""Gates: the closed inequality, the argmin fallback, and executed regrets that never exceed the threshold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.calibrators import audit, roundwise
from conformal.gate import (
    ArgminGate,
    AuditGate,
    Gate,
    LockstepGate,
    OpenGate,
    SamplingGate,
    ThresholdGate,
    proposal_scores,
)
from conformal.ranks import order_statistics
from conformal.scores import BoolArray, FloatArray, IntArray
from conformal.thresholds import Thresholds
from conformal.trajectory import trajectory


def thresholds(*values: float) -> Thresholds:
    """Roundwise thresholds with the given values."""
    base = roundwise(np.zeros((1, 1)), np.ones((1, 1), bool), 0.1, units=["u"])
    q = np.array(values)
    one = np.ones(len(q), int)
    return replace(base, values=q, acceptance=q, n=one, k=one, certified=np.isfinite(q))


def batch(seed: int, rows: int = 12, width: int = 4) -> tuple[IntArray, FloatArray, BoolArray]:
    """Random proposals, regrets, masks; some candidates inadmissible, some branches failed, rows over."""
    rng = np.random.default_rng(seed)
    objective = rng.random((rows, width)).round(1)
    admissible = rng.random((rows, width)) < 0.8
    admissible[np.arange(rows), rng.integers(width, size=rows)] = True
    failed = admissible & (rng.random((rows, width)) < 0.1)
    failed[admissible.sum(1) - failed.sum(1) == 0] = False
    shown = np.where(admissible & ~failed, objective, np.inf)
    regrets = np.where(np.isfinite(shown), shown - shown.min(1, keepdims=True), np.inf)
    proposal = np.array([rng.choice(np.flatnonzero(a)) for a in admissible])
    admissible[rng.random(rows) < 0.2] = False
    return proposal, regrets, admissible


def all_gates(q: float, seed: int) -> list[Gate]:
    """Every gate that replaces."""
    draw = np.random.default_rng(seed)
    return [
        ThresholdGate(thresholds(q)),
        OpenGate(),
        ArgminGate(),
        LockstepGate(0.3),
        SamplingGate(thresholds(q), lambda _, rows: draw.random(rows)),
    ]


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.3, np.inf]))
def test_an_executed_regret_never_exceeds_the_threshold(seed: int, q: float) -> None:
    proposal, regrets, admissible = batch(seed)
    running, rows = admissible.any(1), np.arange(len(proposal))
    for gate in all_gates(q, seed):
        found = gate.accept(1, proposal, regrets, admissible)
        executed = regrets[rows, found.executed]
        assert (executed[running] <= found.threshold[running]).all()
        assert np.isfinite(executed[running]).all()
        assert found.admissible_set[rows, found.executed][running].all()
        assert (found.executed[~running] == proposal[~running]).all()
        assert not (found.admissible_set & ~admissible).any()
        assert (found.replaced == (found.executed != proposal)).all()


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.3]))
def test_a_proposal_is_kept_iff_within_the_closed_threshold(seed: int, q: float) -> None:
    proposal, regrets, admissible = batch(seed)
    running = admissible.any(1)
    found = ThresholdGate(thresholds(q)).accept(1, proposal, regrets, admissible)
    own = proposal_scores(proposal, regrets)
    assert ((found.executed == proposal) == (own <= q))[running].all()
    fallback = np.where(admissible, regrets, np.inf).argmin(1)
    refused = running & (own > q)
    assert (found.executed[refused] == fallback[refused]).all()
    assert (found.set_size == (admissible & (regrets <= q)).sum(1)).all()


def test_regenerating_after_acceptance_breaks_the_bound() -> None:
    """Mutant: the accepted action is generated anew, so what is committed is not what was accepted."""
    rng = np.random.default_rng(3)
    objective = rng.random((5000, 4)) + 0.3 * rng.standard_normal((5000, 4))
    redrawn = objective + 0.2 * rng.standard_normal((5000, 4))
    rows, best = np.arange(5000), objective.min(1, keepdims=True)
    found = ThresholdGate(thresholds(0.2)).accept(
        1, rng.integers(4, size=5000), objective - best, np.ones((5000, 4), bool)
    )
    assert ((objective - best)[rows, found.executed] > found.threshold).sum() == 0
    assert ((redrawn - best)[rows, found.executed] > found.threshold).mean() > 0.05


def test_ties_go_to_the_lowest_index() -> None:
    regrets = np.array([[0.5, 0.0, 0.0]])
    ones = np.ones((1, 3), bool)
    assert ThresholdGate(thresholds(0.1)).accept(1, np.array([0]), regrets, ones).executed.tolist() == [1]
    assert ArgminGate().accept(1, np.array([2]), regrets, ones).executed.tolist() == [1]


def test_a_failed_branch_is_refused_even_without_a_threshold() -> None:
    regrets, ones = np.array([[np.inf, 0.0]]), np.ones((1, 2), bool)
    found = OpenGate().accept(1, np.array([0]), regrets, ones)
    assert found.executed.tolist() == [1]
    assert found.admissible_set.tolist() == [[False, True]]


def test_audit_flags_and_never_replaces() -> None:
    scores, reached = np.linspace(0, 1, 20)[:, None], np.ones((20, 1), bool)
    found = audit(scores, reached, 0.1, units=[str(i) for i in range(20)])
    proposal, regrets, ones = np.array([0, 1]), np.array([[0.99, 0.0], [0.5, 0.0]]), np.ones((2, 2), bool)
    decision = AuditGate(found).accept(1, proposal, regrets, ones)
    assert decision.executed.tolist() == [0, 1]
    assert not decision.replaced.any()
    assert decision.admissible_set[[0, 1], proposal].tolist() == [False, True]
    with pytest.raises(ValueError, match="use AuditGate"):
        ThresholdGate(found)
    with pytest.raises(ValueError, match="'sequential' were calibrated under a gate"):
        AuditGate(replace(found, mode="sequential"))


def test_rounds_without_a_threshold_raise() -> None:
    gate = ThresholdGate(thresholds(0.1, 0.2))
    for bad in (0, 3):
        with pytest.raises(ValueError, match=f"round {bad} has no threshold; expected 1 to 2"):
            gate.accept(bad, np.array([0]), np.zeros((1, 2)), np.ones((1, 2), bool))
    assert gate.accept(2, np.array([0]), np.zeros((1, 2)), np.ones((1, 2), bool)).threshold.tolist() == [0.2]


@pytest.mark.parametrize(
    ("proposal", "regrets", "admissible", "message"),
    [
        ([0, 0], [[0.0, 1.0], [np.nan, 0.0]], [[True, True], [True, True]], "row 1"),
        ([0], [[-0.1, 0.0]], [[True, True]], "row 0"),
        ([1], [[0.0, np.inf]], [[True, False]], "row 0 proposes 1, inadmissible"),
        ([-1], [[0.0, 0.0]], [[True, True]], "row 0 proposes -1"),
        ([0], [[np.inf, np.inf]], [[True, True]], "no candidate with a finite regret"),
        ([0], [[0.0, 0.0], [0.0, 0.0]], [[True, True]], "expected"),
    ],
)
def test_bad_batches_name_their_row(
    proposal: list[int], regrets: list[list[float]], admissible: list[list[bool]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        OpenGate().accept(1, np.array(proposal), np.array(regrets), np.array(admissible))


def test_sampling_draws_uniformly_from_the_set_and_repeats() -> None:
    regrets = np.tile([0.0, 0.05, 0.3, 0.1], (9000, 1))
    ones, proposal = np.ones((9000, 4), bool), np.zeros(9000, int)
    uniforms = np.random.default_rng(5).random(9000)
    gate = SamplingGate(thresholds(0.1), lambda _, rows: uniforms[:rows])
    found = gate.accept(1, proposal, regrets, ones)
    counts = np.bincount(found.executed, minlength=4)
    assert counts[2] == 0
    assert np.abs(counts[[0, 1, 3]] - 3000).max() < 5 * np.sqrt(9000 * 2 / 9)
    assert (gate.accept(1, proposal, regrets, ones).executed == found.executed).all()
    simultaneous = trajectory(np.zeros((9, 1)), np.ones((9, 1), bool), 0.1, units=list("abcdefghi"))
    with pytest.raises(ValueError, match="certify a pilot behind this gate"):
        SamplingGate(simultaneous, lambda _, rows: uniforms[:rows])


def test_lockstep_calibrates_each_replicate_on_itself() -> None:
    rng = np.random.default_rng(6)
    scores = rng.random(60)
    regrets = np.column_stack([scores, np.zeros(60)])
    group = np.arange(60) % 3
    running = np.ones((60, 2), bool)
    running[:3] = False
    gate = LockstepGate(0.1, replicate=group)
    decision = gate.accept(1, np.zeros(60, int), regrets, running)
    for g in range(3):
        own = scores[(group == g) & running.any(1)]
        expected = float(order_statistics(own, None, 0.1).values)
        assert gate.values[g, 0] == expected
        assert (decision.threshold[group == g] == expected).all()
    with pytest.raises(ValueError, match="each once"):
        gate.accept(1, np.zeros(60, int), regrets, running)
    found = gate.thresholds(units=[str(i) for i in range(20)], rounds=3)
    assert found.mode == "lockstep"
    assert not found.certified.any()
    assert found.n.tolist() == [19, 0, 0]
    assert "approximate" in found.guarantee
