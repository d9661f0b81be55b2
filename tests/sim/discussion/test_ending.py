"""Stopping and deciding (METHOD 1)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

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


def test_an_abstention_carries_no_plurality() -> None:
    key = keys("test", np.arange(1))
    beliefs = np.array([[[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]]])
    assert decide(Votes(np.array([[ABSTAIN, ABSTAIN, 1]]), beliefs), key)[0] == 1
    assert decide(Votes(np.array([[ABSTAIN] * 3]), beliefs), key)[0] == ABSTAIN
