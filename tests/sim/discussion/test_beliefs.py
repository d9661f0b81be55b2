"""Beliefs from reports: full probabilities, an answer with a confidence, and tops (METHOD 1)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.discussion.beliefs import FLOOR, from_choice, from_probabilities, leader, top_shares, uniform
from sim.errors import UserError

OPTIONS = st.integers(2, 6)


def test_a_report_is_clipped_and_renormalised_by_hand() -> None:
    np.testing.assert_allclose(
        from_probabilities(np.array([1.0, 0.0, 0.0])), np.array([1.0, 0.001, 0.001]) / 1.002, rtol=1e-15
    )
    np.testing.assert_array_equal(from_probabilities(np.array([0.5, 0.3, 0.2])), [0.5, 0.3, 0.2])


@given(OPTIONS, st.data())
def test_a_report_becomes_a_point_of_the_simplex_in_the_same_order(
    n_options: int, data: st.DataObject
) -> None:
    raw = np.array(data.draw(st.lists(st.floats(0.0, 1.0), min_size=n_options, max_size=n_options)))
    if raw.sum() == 0:
        return
    report = raw / raw.sum()
    belief = from_probabilities(report)
    assert belief.sum() == pytest.approx(1.0, abs=1e-12)
    assert belief.min() >= FLOOR / (1 + n_options * FLOOR)
    assert (np.diff(belief[np.argsort(report)]) >= 0).all()


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ([0.5, 0.6], "does not sum to 1"),
        ([0.5, 0.49], "does not sum to 1"),
        ([1.2, -0.2], "negative or non-finite"),
        ([float("nan"), 1.0], "negative or non-finite"),
        ([float("inf"), 0.0], "negative or non-finite"),
    ],
)
def test_what_is_no_distribution_is_refused_with_its_value(report: list[float], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        from_probabilities(np.array(report))
    assert str(report[1]) in str(caught.value)


@given(OPTIONS, st.floats(0.0, 1.0), st.data())
def test_an_answer_is_never_erased_by_its_confidence(n: int, confidence: float, data: st.DataObject) -> None:
    choice = data.draw(st.integers(0, n - 1))
    belief = from_choice(choice, confidence, n)
    assert belief[choice] == max(confidence, 1 / n + 1e-3)
    np.testing.assert_allclose(np.delete(belief, choice), (1 - belief[choice]) / (n - 1), rtol=1e-12)
    assert belief.sum() == pytest.approx(1.0, abs=1e-12)
    assert top_shares(belief[None])[0, choice] == 1.0


@pytest.mark.parametrize(
    ("choice", "confidence"), [(3, 0.5), (-1, 0.5), (0, 1.01), (0, -0.1), (0, float("nan"))]
)
def test_an_answer_that_is_no_option_or_no_confidence_is_refused(choice: int, confidence: float) -> None:
    with pytest.raises(UserError, match=r"choice|confidence"):
        from_choice(choice, confidence, 3)


def test_tied_tops_share_the_vote() -> None:
    beliefs = np.array([[0.4, 0.4, 0.2], [0.1, 0.6, 0.3], uniform(3)])
    expected = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(top_shares(beliefs), expected, rtol=1e-15)


@given(st.permutations(range(4)), st.sampled_from([0.55, 0.6, 0.7, 0.9]))
def test_the_leader_of_a_tie_is_the_lowest_option_whatever_the_order_of_agents(
    order: list[int], confidence: float
) -> None:
    opinions = np.array([from_choice(option, confidence, 3) for option in (2, 1, 2, 1)])
    assert leader(opinions[None, order])[0] == 1
