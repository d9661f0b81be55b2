"""Routers: who an intervention is addressed to, ties and the penalty of the last speaker (METHOD 1)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.discussion.actions import (
    CHALLENGE,
    CLARIFY,
    FREE,
    NOBODY,
    ROUTE,
    SEEK_EVIDENCE,
    SPOKEN,
    VOTE,
    free_messages,
    interventions,
)
from sim.discussion.public import PublicView
from sim.discussion.routing import ROUTERS, action_conditional, candidates, make_router
from sim.errors import UserError

BELIEFS = [[[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1], [0.2, 0.2, 0.6]]]


def test_action_conditional_by_hand(make_view: Callable[..., PublicView]) -> None:
    view = make_view(
        BELIEFS, evidence=np.array([[0.9, 0.4, 0.0, 0.2]]), words=np.array([[3.0, 0.0, 2.0, 1.0]])
    )
    mean = np.mean(BELIEFS[0], axis=0)
    distance = 0.5 * np.abs(np.array(BELIEFS[0]) - mean).sum(1)
    assert action_conditional(view, CHALLENGE)[0] == 1
    assert action_conditional(view, CLARIFY)[0] == distance.argmax()
    assert action_conditional(view, SEEK_EVIDENCE)[0] == 2
    assert action_conditional(view, ROUTE)[0] == 1


def test_the_papers_reading_sends_both_evidence_actions_to_the_least_heard(
    make_view: Callable[..., PublicView],
) -> None:
    view = make_view(
        BELIEFS, evidence=np.array([[0.0, 0.4, 0.3, 0.2]]), words=np.array([[3.0, 0.0, 2.0, 1.0]])
    )
    assert make_router("paper")(view, SEEK_EVIDENCE)[0] == 1
    assert make_router("action_conditional")(view, SEEK_EVIDENCE)[0] == 0


def test_ties_go_to_the_lowest_index_but_not_to_the_last_speaker(
    make_view: Callable[..., PublicView],
) -> None:
    uniform = np.full((1, 4, 3), 1 / 3)
    for action in SPOKEN:
        assert action_conditional(make_view(uniform), action)[0] == 0
        again = make_view(uniform, last_speaker=np.array([0]))
        assert action_conditional(again, action)[0] == 1


@given(st.integers(0, 10_000), st.integers(2, 6))
def test_two_agents_are_equally_far_from_their_mean_whatever_the_rounding(
    make_view: Callable[..., PublicView], seed: int, n_options: int
) -> None:
    """Both distances are |b_1 − b_2| / 2, so Clarify always ties: the lowest index, unless it spoke last."""
    beliefs = np.random.default_rng(seed).dirichlet(np.ones(n_options), (20, 2))
    assert (action_conditional(make_view(beliefs), CLARIFY) == 0).all()
    again = make_view(beliefs, last_speaker=np.zeros(20, np.int64))
    assert (action_conditional(again, CLARIFY) == 1).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([(2, 2), (4, 3), (8, 6)]))
def test_routers_reach_the_agent_of_method_1(
    random_view: Callable[..., PublicView], seed: int, shape: tuple[int, int]
) -> None:
    """The formulas, agent by agent: no other agent has a lower score once the last speaker pays 10⁻³."""
    view = random_view(seed, 10, *shape)
    for b in range(view.size):
        mean = view.beliefs[b].mean(0)
        spoke = 1e-3 * (np.arange(view.n_agents) == view.last_speaker[b])
        words = view.words[b]
        scores = {
            CHALLENGE: view.beliefs[b, :, (mean >= mean.max() - 1e-12).argmax()],
            CLARIFY: -0.5 * np.abs(view.beliefs[b] - mean).sum(1),
            SEEK_EVIDENCE: view.evidence[b] + 1e-3 * words / view.horizon,
            ROUTE: words,
        }
        for action, score in scores.items():
            paid = score + spoke
            chosen = int(action_conditional(view, action)[b])
            assert paid[chosen] <= paid.min() + 1e-12, (action, b)
            assert (paid[:chosen] > paid[chosen] + 1e-12).all(), (action, b)


def test_seek_evidence_breaks_ties_by_fewer_words(make_view: Callable[..., PublicView]) -> None:
    view = make_view(BELIEFS, words=np.array([[2.0, 1.0, 0.5, 3.0]]))
    assert action_conditional(view, SEEK_EVIDENCE)[0] == 2


def test_the_random_router_is_keyed_and_uniform(make_view: Callable[..., PublicView]) -> None:
    view = make_view(np.full((8000, 4, 3), 1 / 3))
    drawn = make_router("random")(view, ROUTE)
    np.testing.assert_array_equal(drawn, make_router("random")(view, ROUTE))
    counts = np.bincount(drawn, minlength=4)
    assert ((counts - 2000) ** 2 / 2000).sum() < 16.27  # chi-square, 3 degrees of freedom, level 1e-3
    assert (drawn != make_router("random")(view, CHALLENGE)).any()


def test_candidates_offer_vote_from_the_second_round_only(make_view: Callable[..., PublicView]) -> None:
    view = make_view(np.full((2, 3, 2), 0.5), rounds=np.array([0, 1]))
    offered = candidates(view, interventions(vote=True), make_router("action_conditional"))
    np.testing.assert_array_equal(offered.actions[0], [*SPOKEN, VOTE])
    np.testing.assert_array_equal(offered.admissible[:, -1], [False, True])
    np.testing.assert_array_equal(offered.speakers[:, -1], NOBODY)


def test_free_messages_go_round_robin_whatever_the_router(make_view: Callable[..., PublicView]) -> None:
    view = make_view(np.full((3, 3, 2), 0.5), rounds=np.array([0, 1, 5]))
    offered = candidates(view, free_messages(4), make_router("dissenter"))
    assert (offered.actions == FREE).all()
    np.testing.assert_array_equal(offered.speakers[:, 0], [0, 1, 2])
    np.testing.assert_array_equal(offered.draws[0], [0, 1, 2, 3])


def test_a_router_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(UserError, match="'nobody'; it must be one of action_conditional"):
        make_router("nobody")


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_routers_see_each_discussion_by_itself(name: str, random_view: Callable[..., PublicView]) -> None:
    from sim.arrays import take

    view = random_view(7)
    rows = np.array([5, 3, 20])
    for action in SPOKEN:
        whole = make_router(name)(view, action)[rows]
        np.testing.assert_array_equal(whole, make_router(name)(take(view, rows), action))
