"""State features and objective: METHOD 1's formulas by hand, their ranges and identities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.discussion.objective import Objective, normalised_regret, one_step_regret
from sim.discussion.public import PublicView
from sim.discussion.state import Signals, entropy, observe, signals
from sim.errors import UserError

SEEDS = st.integers(0, 10_000)
SHAPES = st.sampled_from([(2, 2), (3, 4), (4, 3), (2, 6), (8, 6)])


@settings(max_examples=60, deadline=None)
@given(SEEDS, SHAPES)
def test_every_signal_and_the_objective_stay_in_range(
    random_view: Callable[..., PublicView], seed: int, shape: tuple[int, int]
) -> None:
    view = random_view(seed, 30, *shape)
    state = signals(view)
    for field in fields(Signals):
        values = getattr(state, field.name)
        assert ((values >= -1e-12) & (values <= 1 + 1e-12)).all(), field.name
    loss = Objective()(state)
    assert ((loss >= 0) & (loss <= 1)).all()


@settings(max_examples=60, deadline=None)
@given(SEEDS, SHAPES)
def test_uncertainty_and_disagreement_split_the_group_entropy(
    random_view: Callable[..., PublicView], seed: int, shape: tuple[int, int]
) -> None:
    n, k = shape
    view = random_view(seed, 30, n, k)
    state = signals(view)
    whole = entropy(view.beliefs.mean(1)) / np.log(k)
    split = state.uncertainty + state.disagreement * np.log(min(n, k)) / np.log(k)
    np.testing.assert_allclose(split, whole, atol=1e-12)


def test_uncertainty_and_disagreement_by_hand(make_view: Callable[..., PublicView]) -> None:
    """Two sure agents who disagree: no individual entropy, and all of log 2 between them."""
    opposed = make_view([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    assert signals(opposed).uncertainty[0] == 0
    assert signals(opposed).disagreement[0] == pytest.approx(1.0, abs=1e-15)
    view = make_view([[[0.5, 0.5, 0.0], [0.8, 0.1, 0.1]]])
    single = [np.log(2), -(0.8 * np.log(0.8) + 0.2 * np.log(0.1))]
    mixed = -(0.65 * np.log(0.65) + 0.3 * np.log(0.3) + 0.05 * np.log(0.05))
    assert signals(view).uncertainty[0] == pytest.approx(np.mean(single) / np.log(3), abs=1e-15)
    assert signals(view).disagreement[0] == pytest.approx((mixed - np.mean(single)) / np.log(2), abs=1e-15)


@settings(max_examples=40)
@given(SEEDS, SHAPES)
def test_agreement_needs_no_names_and_the_plurality_is_counted_by_hand(
    random_view: Callable[..., PublicView], seed: int, shape: tuple[int, int]
) -> None:
    n, k = shape
    view = random_view(seed, 10, n, k)
    for row in range(view.size):
        votes = np.zeros(k)
        for agent in view.beliefs[row]:
            tops = [option for option in range(k) if agent[option] >= agent.max() - 1e-12]
            votes[tops] += 1 / len(tops)
        share = votes.max() / n
        expected = (share - 1 / k) / (1 - 1 / k) * view.beliefs[row].max(1).mean()
        assert signals(view).agreement[row] == pytest.approx(expected, abs=1e-12)
        assert observe(view).plurality[row] == pytest.approx(share, abs=1e-12)


@given(st.integers(2, 8), st.integers(0, 8))
def test_participation_is_one_when_all_spoke_alike(
    make_view: Callable[..., PublicView], n_agents: int, rounds: int
) -> None:
    view = make_view(
        np.full((1, n_agents, 2), 0.5), words=np.full((1, n_agents), 0.3), rounds=np.array([rounds])
    )
    features = observe(view)
    assert features.participation[0] == pytest.approx(1.0)
    assert features.least_share[0] == pytest.approx(1.0)
    assert features.heard[0] == 1.0
    assert features.clock[0] == rounds / 8


def test_agreement_and_consensus_by_hand(make_view: Callable[..., PublicView]) -> None:
    beliefs = [[[0.8, 0.1, 0.1], [0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.5, 0.25, 0.25]]]
    view = make_view(beliefs, evidence=np.array([[0.8, 0.0, 0.0, 0.4]]))
    state = signals(view)
    agreement = (0.75 - 1 / 3) / (1 - 1 / 3) * (0.8 + 0.7 + 0.6 + 0.5) / 4
    assert state.coverage_proxy[0] == pytest.approx(0.3)
    assert state.agreement[0] == pytest.approx(agreement)
    assert state.premature_consensus[0] == pytest.approx(agreement * 0.7)


def test_after_a_vote_premature_consensus_is_what_was_not_covered(
    make_view: Callable[..., PublicView],
) -> None:
    view = make_view([[[0.6, 0.4], [0.4, 0.6]]], voted=np.array([True]), evidence=np.array([[1.0, 0.5]]))
    assert signals(view).premature_consensus[0] == pytest.approx(0.25)


def test_uniform_beliefs_have_no_top_and_so_no_agreement(make_view: Callable[..., PublicView]) -> None:
    view = make_view(np.full((1, 4, 3), 1 / 3))
    assert signals(view).agreement[0] == pytest.approx(0.0)
    assert signals(view).uncertainty[0] == pytest.approx(1.0)
    assert signals(view).disagreement[0] == pytest.approx(0.0)


def test_gain_needs_novelty_and_participation_needs_words(make_view: Callable[..., PublicView]) -> None:
    view = make_view([[[0.6, 0.4], [0.4, 0.6]]], shift=np.array([1.0]))
    assert signals(view).evidence_gain[0] == 0
    assert observe(view).participation[0] == 0
    spoken = make_view([[[0.6, 0.4], [0.4, 0.6]]], words=np.array([[3.0, 1.0]]), novelty=np.array([0.5]))
    assert signals(spoken).evidence_gain[0] == pytest.approx(0.25)
    assert observe(spoken).participation[0] == pytest.approx(entropy(np.array([0.75, 0.25])) / np.log(2))
    assert observe(spoken).least_share[0] == pytest.approx(0.5)


def test_cost_is_words_over_the_horizon(make_view: Callable[..., PublicView]) -> None:
    view = make_view([[[0.6, 0.4], [0.4, 0.6]]], words=np.array([[1.0, 0.6]]))
    assert signals(view).cost[0] == pytest.approx(1.6 / 8)


def test_the_objective_is_the_weighted_sum() -> None:
    state = Signals(*(np.array([0.1 * i]) for i in range(1, 9)))
    expected = 0.2 * 0.1 + 0.1 * 0.2 + 0.25 * (1 - 0.3) + 0.15 * 0.4 + 0.25 * 0.7 + 0.05 * 0.8
    assert Objective()(state)[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weights", "words"),
    [({"cost": 0.5}, "sum to 1.45"), ({"cost": -0.05, "uncertainty": 0.3}, "objective.cost is -0.05")],
)
def test_weights_must_be_a_convex_combination(weights: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Objective(**weights)
    with pytest.raises(msgspec.ValidationError, match=r"objective weights|objective\.cost"):
        msgspec.convert(weights, Objective)


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.floats(-1, 1))
def test_regret_ignores_a_constant_and_what_is_not_admissible(seed: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    objectives, admissible = rng.random((20, 5)), rng.random((20, 5)) < 0.7
    admissible[:, 0] = True
    regrets = one_step_regret(objectives, admissible)
    np.testing.assert_allclose(regrets, one_step_regret(objectives + shift, admissible), atol=1e-12)
    assert np.isinf(regrets[~admissible]).all()
    assert (regrets.min(1) == 0).all()
    scaled = normalised_regret(regrets)
    finite = np.where(admissible, scaled, 0)
    assert ((finite >= 0) & (finite <= 1)).all()


@settings(max_examples=40)
@given(SEEDS)
def test_a_term_of_minus_the_gain_leaves_every_regret_unchanged(
    random_view: Callable[..., PublicView], seed: int
) -> None:
    """METHOD 1: J with (1 − G) and J with −G differ by the constant weight of G."""
    view = random_view(seed, 40)
    state, loss = signals(view), Objective()
    with_minus = loss(state) - loss.evidence_gain
    every = np.ones((10, 4), bool)
    np.testing.assert_allclose(
        one_step_regret(loss(state).reshape(10, 4), every),
        one_step_regret(with_minus.reshape(10, 4), every),
        atol=1e-15,
    )


@settings(max_examples=40)
@given(SEEDS)
def test_regret_is_the_excess_over_the_best_and_lies_in_the_unit_interval(
    random_view: Callable[..., PublicView], seed: int
) -> None:
    objectives = Objective()(signals(random_view(seed, 40))).reshape(8, 5)
    regrets = one_step_regret(objectives, np.ones((8, 5), bool))
    for row in range(8):
        for column in range(5):
            assert regrets[row, column] == objectives[row, column] - min(objectives[row])
    assert ((regrets >= 0) & (regrets <= 1)).all()


def test_normalised_regret_is_zero_without_spread() -> None:
    regrets = one_step_regret(np.array([[0.4, 0.4 + 1e-12], [0.2, 0.6]]), np.ones((2, 2), bool))
    np.testing.assert_array_equal(normalised_regret(regrets), [[0, 0], [0, 1]])
