"""The state vector of a learned controller: layout, ranges, and what it must not depend on (METHOD 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.arrays import Floats
from sim.discussion.actions import ACTIONS, ROUTE, SEEK_EVIDENCE, free_messages, interventions
from sim.discussion.inputs import STATE_GROUPS, STATE_NAMES, state_vector
from sim.discussion.public import PublicView
from sim.discussion.routing import candidates, make_router
from sim.discussion.state import observe

CONDITIONAL = make_router("action_conditional")
SHAPES = st.sampled_from([(2, 2), (3, 4), (4, 3), (8, 6)])


def vector(view: PublicView, vote: bool = False) -> Floats:
    """The state vectors of a view under all interventions."""
    return state_vector(view, observe(view), candidates(view, interventions(vote=vote), CONDITIONAL))


def column(values: Floats, name: str) -> Floats:
    """One named column."""
    found: Floats = values[:, STATE_NAMES.index(name)]
    return found


@settings(max_examples=40)
@given(st.integers(0, 10_000), SHAPES)
def test_every_entry_lies_in_the_unit_interval_for_any_number_of_agents(
    random_view: Callable[..., PublicView], seed: int, shape: tuple[int, int]
) -> None:
    values = vector(random_view(seed, 20, *shape))
    assert values.shape == (20, len(STATE_NAMES))
    assert ((values >= -1e-12) & (values <= 1 + 1e-12)).all()


@settings(max_examples=40)
@given(st.integers(0, 10_000), SHAPES, st.data())
def test_renaming_agents_or_options_changes_nothing(
    random_view: Callable[..., PublicView], seed: int, shape: tuple[int, int], data: st.DataObject
) -> None:
    view = replace(random_view(seed, 20, *shape), last_speaker=np.full(20, -1))
    agents = data.draw(st.permutations(range(shape[0])))
    options = data.draw(st.permutations(range(shape[1])))
    renamed: dict[str, Any] = {
        name: getattr(view, name)[:, agents] for name in ("beliefs", "previous", "stale", "words", "evidence")
    }
    renamed["beliefs"] = renamed["beliefs"][:, :, options]
    changed = replace(view, **renamed)
    # Which of several tied agents is reached does depend on names, so only what no tie decides is compared.
    free = [i for i, name in enumerate(STATE_NAMES) if not name.startswith(("evidence_of", "words_of"))]
    lead = np.sort(view.beliefs.mean(1), axis=1)
    clear = lead[:, -1] - lead[:, -2] > 1e-9
    np.testing.assert_allclose(vector(view)[clear][:, free], vector(changed)[clear][:, free], atol=1e-9)


def test_evidence_and_words_are_those_of_the_agent_an_intervention_reaches(
    make_view: Callable[..., PublicView],
) -> None:
    view = make_view(
        [[[0.7, 0.3], [0.2, 0.8], [0.9, 0.1]]],
        evidence=np.array([[0.9, 0.5, 0.2]]),
        words=np.array([[1.0, 3.0, 4.0]]),
    )
    values = vector(view)
    assert column(values, "evidence_of_challenge")[0] == 0.5
    assert column(values, "evidence_of_seek_evidence")[0] == 0.2
    assert column(values, "words_of_seek_evidence")[0] == 0.5
    assert column(values, "words_of_route")[0] == pytest.approx(1 / 8)
    assert column(values, "leader_support")[0] == pytest.approx(0.6)
    assert column(values, "support_min")[0] == 0.2
    assert column(values, "support_median")[0] == 0.7


def test_what_is_off_the_menu_reaches_nobody(make_view: Callable[..., PublicView]) -> None:
    view = make_view(np.full((2, 3, 2), 0.5), evidence=np.full((2, 3), 0.4), words=np.ones((2, 3)))
    without = candidates(view, interventions(without=("route",)), CONDITIONAL)
    values = state_vector(view, observe(view), without)
    assert (column(values, "evidence_of_route") == 0).all()
    assert (column(values, "evidence_of_challenge") == 0.4).all()
    alone = state_vector(view, observe(view), candidates(view, free_messages(), CONDITIONAL))
    assert not alone[:, [i for i, name in enumerate(STATE_NAMES) if "_of_" in name]].any()


def test_a_vote_on_the_menu_adds_no_column(make_view: Callable[..., PublicView]) -> None:
    view = make_view([[[0.7, 0.3], [0.2, 0.8]]], rounds=np.array([3]))
    np.testing.assert_array_equal(vector(view), vector(view, vote=True))


def test_groups_cover_the_layout() -> None:
    assert set(STATE_GROUPS) == set(STATE_NAMES)
    assert len(set(STATE_NAMES)) == len(STATE_NAMES)
    assert set(STATE_GROUPS.values()) == {"belief", "information", "cost"}
    reached = {
        f"{what}_of_{ACTIONS[action]}" for what in ("evidence", "words") for action in range(ROUTE + 1)
    }
    assert reached <= set(STATE_NAMES)
    assert STATE_GROUPS[f"evidence_of_{ACTIONS[SEEK_EVIDENCE]}"] == "information"
