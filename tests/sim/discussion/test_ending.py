"""Stopping and deciding (METHOD 1)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from sim.discussion.beliefs import from_choice
from sim.discussion.ending import ABSTAIN, Stop, Votes, decide, default_horizon
from sim.discussion.public import PublicView
from sim.errors import UserError
from sim.randomness import keys

SURE = [[[0.95, 0.03, 0.02]] * 4]
INFORMED = np.full((1, 4), 0.7)


def test_a_confident_informed_unanimous_group_stops(make_view: Callable[..., PublicView]) -> None:
    assert Stop()(make_view(SURE, evidence=INFORMED))[0]
    assert not Stop()(make_view(SURE, evidence=np.full((1, 4), 0.6)))[0]
    assert not Stop(quorum=None)(make_view(SURE, evidence=INFORMED))[0]
    hesitant = [[[0.8, 0.1, 0.1]] * 4]
    assert not Stop()(make_view(hesitant, evidence=INFORMED))[0]


def test_a_quorum_counts_agents(make_view: Callable[..., PublicView]) -> None:
    dissent = [[[0.95, 0.03, 0.02]] * 3 + [[0.02, 0.95, 0.03]]]
    view = make_view(dissent, evidence=INFORMED)
    assert not Stop()(view)[0]
    assert Stop(quorum=0.75)(view)[0]


def test_repeated_beliefs_do_not_make_a_group_unanimous(make_view: Callable[..., PublicView]) -> None:
    half = np.array([[True, True, False, False]])
    assert not Stop()(make_view(SURE, evidence=INFORMED, stale=half))[0]
    one = np.array([[True, False, False, False]])
    assert Stop()(make_view(SURE, evidence=INFORMED, stale=one))[0]


def test_the_horizon_and_a_vote_end_it(make_view: Callable[..., PublicView]) -> None:
    uniform = np.full((2, 4, 3), 1 / 3)
    view = make_view(uniform, rounds=np.array([8, 3]), voted=np.array([False, True]))
    assert Stop(quorum=None)(view).all()
    assert [default_horizon(n) for n in (2, 4, 5, 8)] == [8, 8, 10, 16]


@pytest.mark.parametrize("quorum", [0.0, 1.5, -1.0])
def test_a_quorum_is_a_share(quorum: float) -> None:
    with pytest.raises(UserError, match=r"stop\.quorum is"):
        Stop(quorum=quorum)


def test_plurality_then_mean_belief_then_a_seeded_hash() -> None:
    key = keys("test", np.arange(1))
    beliefs = np.array([[[0.6, 0.4], [0.1, 0.9], [0.6, 0.4]]])
    assert decide(Votes(np.array([[0, 1, 0]]), beliefs), key)[0] == 0
    even = np.array([[[0.6, 0.4], [0.1, 0.9]]])
    assert decide(Votes(np.array([[0, 1]]), even), key)[0] == 1
    many = keys("test", np.arange(4000))
    level = Votes(np.tile([0, 1], (4000, 1)), np.full((4000, 2, 2), 0.5))
    drawn = decide(level, many)
    np.testing.assert_array_equal(drawn, decide(level, many))
    assert abs(drawn.mean() - 0.5) < 3.29 * 0.5 / np.sqrt(4000)


@given(st.permutations(range(4)), st.sampled_from([0.5, 0.55, 0.6, 0.7, 0.9]), st.integers(0, 200))
def test_a_tie_is_decided_alike_whatever_the_order_of_the_agents(
    order: list[int], confidence: float, seed: int
) -> None:
    """Two against two with one confidence tie exactly, but their mean beliefs differ in the last bit."""
    key = keys("test", seed)
    choice = np.array([0, 0, 1, 1])
    beliefs = np.array([from_choice(option, confidence, 3) for option in choice])
    first = decide(Votes(choice[None], beliefs[None]), key)
    np.testing.assert_array_equal(decide(Votes(choice[None, order], beliefs[None, order]), key), first)
    assert first[0] in (0, 1)


def test_exact_ties_are_even_among_the_tied_options() -> None:
    size = 6000
    choice = np.tile([0, 2, 2, 0], (size, 1))
    beliefs = np.array([from_choice(int(option), 0.7, 3) for option in choice[0]])
    drawn = decide(Votes(choice, np.tile(beliefs, (size, 1, 1))), keys("test", np.arange(size)))
    counts = np.bincount(drawn, minlength=3)
    assert counts[1] == 0
    assert binomtest(int(counts[0]), size).pvalue > 1e-3


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([(2, 2), (3, 4), (5, 3)]))
def test_the_decision_is_a_most_frequent_option_of_the_largest_mean_belief(
    seed: int, shape: tuple[int, int]
) -> None:
    rng = np.random.default_rng(seed)
    n, k = shape
    choice = rng.integers(ABSTAIN, k, (30, n))
    beliefs = rng.dirichlet(np.ones(k), (30, n))
    decided = decide(Votes(choice, beliefs), keys("test", np.arange(30)))
    for row in range(30):
        votes = [int((choice[row] == option).sum()) for option in range(k)]
        if not any(votes):
            assert decided[row] == ABSTAIN
            continue
        best = [option for option in range(k) if votes[option] == max(votes)]
        assert decided[row] == max(best, key=lambda option: beliefs[row, :, option].mean())


def test_an_abstention_carries_no_plurality() -> None:
    key = keys("test", np.arange(1))
    beliefs = np.array([[[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]]])
    assert decide(Votes(np.array([[ABSTAIN, ABSTAIN, 1]]), beliefs), key)[0] == 1
    assert decide(Votes(np.array([[ABSTAIN] * 3]), beliefs), key)[0] == ABSTAIN
