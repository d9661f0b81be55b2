"""The public record: how a message advances it, what its content hash covers, and what it cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.arrays import take
from sim.discussion.actions import ACTION_NAMES, CHALLENGE, NOBODY, ROUTE, VOTE
from sim.discussion.public import (
    Message,
    PublicView,
    Utterance,
    advance,
    digest,
    path_texts,
    step_code,
    step_text,
)
from sim.tasks.task import PublicTask

AFTER = np.array([[[0.7, 0.3], [0.4, 0.6], [0.5, 0.5]]])
BEFORE = np.array([[[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]])


def say(view: PublicView, action: int, speaker: int, novelty: float = 0.8, words: float = 2.0) -> PublicView:
    """One message in every discussion of the view."""
    size = view.size
    said = Utterance(
        np.full(size, words), np.full(size, novelty), np.full(size, 0.1), np.repeat(AFTER, size, 0),
        np.zeros((size, 3), bool),
    )  # fmt: skip
    return advance(view, np.full(size, action), np.full(size, speaker), np.zeros(size, np.int64), said)


def test_a_message_counts_words_evidence_and_the_listeners_shift(
    make_view: Callable[..., PublicView],
) -> None:
    after = say(make_view(BEFORE), ROUTE, 1)
    np.testing.assert_array_equal(after.words, [[0, 2, 0]])
    np.testing.assert_array_equal(after.evidence, [[0, 0.8, 0]])
    assert after.shift[0] == pytest.approx((0.2 + 0.0) / 2 / 0.25)
    assert after.rounds[0] == 1
    assert after.last_speaker[0] == 1
    assert path_texts(after) == ["route@1"]
    assert path_texts(say(after, CHALLENGE, 0)) == ["route@1/challenge@0"]


def test_evidence_needs_novelty_above_its_floor_and_is_capped(make_view: Callable[..., PublicView]) -> None:
    view = make_view(BEFORE)
    assert say(view, ROUTE, 0, novelty=0.35).evidence[0, 0] == 0
    twice = say(say(view, ROUTE, 0), ROUTE, 0)
    assert twice.evidence[0, 0] == 1


def test_a_vote_adds_no_words_and_clears_the_last_message(make_view: Callable[..., PublicView]) -> None:
    voted = say(say(make_view(BEFORE), ROUTE, 1), VOTE, NOBODY)
    assert voted.voted[0]
    assert voted.words.sum() == 2
    assert voted.novelty[0] == voted.overlap[0] == voted.shift[0] == 0
    assert voted.last_speaker[0] == 1
    assert path_texts(voted) == ["route@1/vote"]


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([(2, 2), (4, 3), (8, 6)]))
def test_advancing_row_by_row_follows_the_formulas(
    random_view: Callable[..., PublicView], seed: int, shape: tuple[int, int]
) -> None:
    """δ, e_i, words and flags of METHOD 1's table, discussion by discussion in plain arithmetic."""
    view = random_view(seed, 12, *shape)
    rng = np.random.default_rng(seed + 1)
    said = Utterance(
        rng.random(12), rng.random(12), rng.random(12), rng.dirichlet(np.ones(shape[1]), (12, shape[0])),
        rng.random((12, shape[0])) < 0.3,
    )  # fmt: skip
    action, speaker = rng.choice([CHALLENGE, ROUTE, VOTE], 12), rng.integers(0, shape[0], 12)
    after = advance(view, action, np.where(action == VOTE, NOBODY, speaker), np.zeros(12, np.int64), said)
    for b in range(12):
        talk, i = action[b] != VOTE, int(speaker[b])
        moved = [
            0.5 * np.abs(said.beliefs[b, j] - view.beliefs[b, j]).sum() for j in range(shape[0]) if j != i
        ]
        counted = said.novelty[b] if talk and said.novelty[b] > 0.35 else 0.0
        assert after.shift[b] == pytest.approx(min(1, np.mean(moved) / 0.25) if talk else 0, abs=1e-12)
        assert after.evidence[b, i] == pytest.approx(min(1, view.evidence[b, i] + counted), abs=1e-12)
        assert after.words[b].sum() == pytest.approx(view.words[b].sum() + (said.words[b] if talk else 0))
        assert (after.novelty[b], after.overlap[b]) == (
            (said.novelty[b], said.overlap[b]) if talk else (0, 0)
        )
        assert after.voted[b] == (view.voted[b] or not talk)
        assert after.last_speaker[b] == (i if talk else view.last_speaker[b])
        assert after.rounds[b] == view.rounds[b] + 1
    np.testing.assert_array_equal(after.previous, view.beliefs)
    np.testing.assert_array_equal(after.beliefs, said.beliefs)
    np.testing.assert_array_equal(after.stale, said.stale)


@given(st.integers(0, 4), st.integers(-1, 62), st.integers(0, 63))
def test_a_step_is_spelled_one_way_only(action: int, speaker: int, draw: int) -> None:
    code = int(step_code(np.array([action]), np.array([speaker]), np.array([draw]))[0])
    others = {(action + 1, speaker, draw), (action, speaker + 1, draw), (action, speaker, draw + 1)}
    assert all(
        step_text(code) != step_text(int(step_code(*map(np.array, zip(o, strict=True)))[0])) for o in others
    )
    assert step_text(code).startswith(ACTION_NAMES[action])


def test_advancing_does_not_change_the_view(make_view: Callable[..., PublicView]) -> None:
    view = make_view(BEFORE)
    before = digest(view)
    say(view, ROUTE, 1)
    np.testing.assert_array_equal(digest(view), before)


@pytest.mark.parametrize(
    "field",
    [
        field.name
        for field in fields(PublicView)
        if field.name not in ("horizon", "max_words", "transcripts", "tasks")
    ],
)
def test_any_change_of_content_changes_the_digest(field: str, random_view: Callable[..., PublicView]) -> None:
    view = random_view(3)
    changed = np.array(getattr(view, field), copy=True)
    if changed.dtype == bool:
        changed = ~changed
    elif changed.dtype == np.float64:
        changed.reshape(len(changed), -1)[:, 0] = np.nextafter(changed.reshape(len(changed), -1)[:, 0], 2)
    else:
        changed.reshape(len(changed), -1)[:, 0] += 1
    edited: dict[str, Any] = {field: changed}
    assert (digest(replace(view, **edited)) != digest(view)).all()


def test_other_words_or_another_task_change_the_digest(make_view: Callable[..., PublicView]) -> None:
    task = PublicTask("t", "name", "text", ("clue",), ("a", "b"), 3)
    said = (Message(0, "route", "The bridge is closed."), Message(1, "clarify", "Yes."))
    view = make_view(BEFORE, transcripts=(said,), tasks=(task,))
    others = [
        (said[:1],),
        ((said[1], said[0]),),
        ((said[0], Message(1, "clarify", "Yes!")),),
        ((said[0], Message(2, "clarify", "Yes.")),),
        ((said[0], Message(1, "challenge", "Yes.")),),
    ]
    digests = {int(digest(replace(view, transcripts=heard))[0]) for heard in [(said,), *others]}
    assert len(digests) == 1 + len(others)
    assert digest(replace(view, tasks=(msgspec.structs.replace(task, description="Text"),))) != digest(view)


def test_a_digest_belongs_to_its_row_whatever_the_batch(random_view: Callable[..., PublicView]) -> None:
    view = random_view(5)
    rows = np.array([7, 31, 0])
    np.testing.assert_array_equal(digest(take(view, rows)), digest(view)[rows])
    assert len(np.unique(digest(view))) == view.size


def test_swapping_two_agents_beliefs_changes_the_digest(make_view: Callable[..., PublicView]) -> None:
    assert digest(make_view(AFTER))[0] != digest(make_view(AFTER[:, ::-1]))[0]


def test_the_record_has_no_field_for_anything_private() -> None:
    private = {"hidden_information", "correct_answer", "answer", "evidence_array", "clues", "perceived"}
    assert not private & {field.name for field in fields(PublicView)}
    assert not private & set(PublicTask.__struct_fields__)
