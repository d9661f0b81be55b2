"""The menu, the admissible set and the mapping of malformed proposals (METHOD 1)."""

from __future__ import annotations

import numpy as np
import pytest

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


def test_ablated_actions_leave_the_menu() -> None:
    assert interventions(without=("route",)).actions == (CHALLENGE, CLARIFY, SEEK_EVIDENCE)
    with pytest.raises(UserError, match="'chat' is unknown"):
        interventions(without=("chat",))
    with pytest.raises(UserError, match="at least one intervention"):
        interventions(vote=True, without=ACTIONS[:4])
