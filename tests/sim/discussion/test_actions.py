"""The menu, the admissible set and the mapping of malformed proposals (METHOD 1)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.discussion.actions import (
    ACTIONS,
    CHALLENGE,
    CLARIFY,
    ROUTE,
    SEEK_EVIDENCE,
    VOTE,
    Candidates,
    interventions,
    parse_action,
    settle,
)
from sim.errors import UserError


def offer(columns: list[int], admissible: list[bool]) -> Candidates:
    """One discussion's candidates."""
    actions = np.array([columns])
    return Candidates(actions, np.zeros_like(actions), np.zeros_like(actions), np.array([admissible]))


def test_names_stand_in_the_one_order() -> None:
    assert ACTIONS == ("challenge", "clarify", "seek_evidence", "route", "vote")
    assert [parse_action(name) for name in ACTIONS] == [0, 1, 2, 3, 4]


def test_an_admissible_proposal_is_kept() -> None:
    column, malformed = settle(
        np.array([ROUTE]), offer([CHALLENGE, CLARIFY, SEEK_EVIDENCE, ROUTE], [True] * 4)
    )
    assert column[0] == 3
    assert not malformed[0]


@pytest.mark.parametrize(
    ("columns", "admissible", "expected"),
    [
        ([CHALLENGE, CLARIFY, SEEK_EVIDENCE, ROUTE, VOTE], [True] * 4 + [False], SEEK_EVIDENCE),
        ([CHALLENGE, CLARIFY, ROUTE, VOTE], [True, True, True, False], ROUTE),
        ([CHALLENGE, CLARIFY, VOTE], [True, True, False], CHALLENGE),
        ([CLARIFY, VOTE], [True, False], CLARIFY),
    ],
)
def test_a_malformed_proposal_becomes_the_first_admissible(
    columns: list[int], admissible: list[bool], expected: int
) -> None:
    for proposed in (VOTE, 99, -1):
        column, malformed = settle(np.array([proposed]), offer(columns, admissible))
        assert columns[column[0]] == expected
        assert malformed[0]


@given(
    st.lists(st.booleans(), min_size=4, max_size=4).filter(any),
    st.lists(st.booleans(), min_size=5, max_size=5).filter(lambda on: any(on[:4])),
    st.integers(-2, 7),
)
def test_settling_keeps_what_is_admissible_and_maps_the_rest_in_order(
    kept: list[bool], offered: list[bool], proposed: int
) -> None:
    """Every menu, every admissible set, every code, sane or not: METHOD 1's sentence, word by word."""
    menu = [a for a in range(4) if kept[a]] + [VOTE]
    admissible = [offered[a] for a in menu]
    if not any(admissible[:-1]):
        return
    column, malformed = settle(np.array([proposed]), offer(menu, admissible))
    allowed = [a for a, ok in zip(menu, admissible, strict=True) if ok]
    order = [a for a in (SEEK_EVIDENCE, ROUTE, CHALLENGE, CLARIFY) if a in allowed]
    assert menu[column[0]] == (proposed if proposed in allowed else order[0])
    assert malformed[0] == (proposed not in allowed)


@given(st.integers(0, 1000))
def test_settling_a_batch_is_settling_each_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    menu = [CHALLENGE, CLARIFY, SEEK_EVIDENCE, ROUTE, VOTE]
    admissible = rng.random((20, 5)) < 0.6
    admissible[:, 2] = True
    proposed = rng.integers(-2, 7, 20)
    actions = np.tile(menu, (20, 1))
    whole = settle(proposed, Candidates(actions, actions, actions, admissible))
    for row in range(20):
        one = settle(proposed[row : row + 1], offer(menu, admissible[row].tolist()))
        assert (whole[0][row], whole[1][row]) == (one[0][0], one[1][0])


def test_ablated_actions_leave_the_menu() -> None:
    assert interventions(without=("route",)).actions == (CHALLENGE, CLARIFY, SEEK_EVIDENCE)
    with pytest.raises(UserError, match="'chat'"):
        interventions(without=("chat",))
    with pytest.raises(UserError, match="at least one intervention"):
        interventions(vote=True, without=ACTIONS[:4])
