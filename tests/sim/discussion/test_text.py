"""Novelty and overlap of texts (METHOD 1)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.discussion.text import content_words, first_novelty, novelty, overlap, pair_overlap, vocabulary

CLUES = ("The tunnel to East Town is blocked by a truck.", "The dam will release water in 10 minutes.")
WORDS = st.lists(
    st.sampled_from(["bridge", "tunnel", "flood", "truck", "hotel", "water", "10", "dam", "fire"]), max_size=8
)


def test_content_words_are_stemmed_and_numbers_count() -> None:
    words = content_words("The dams released 10 litres; releasing more, they said.")
    assert {"dam", "releas", "10"} <= set(words)
    assert "the" not in words


def test_a_message_without_content_is_empty() -> None:
    assert novelty("I do.", set()) == 0
    assert overlap("I do.", CLUES) == 1


def test_repetition_has_no_novelty_and_full_overlap() -> None:
    assert novelty(CLUES[0], vocabulary(CLUES)) == 0
    assert overlap(CLUES[0], CLUES) == pytest.approx(1)


def test_a_first_message_is_all_new() -> None:
    assert novelty(CLUES[0], set()) == pytest.approx(1)
    assert overlap(CLUES[0], ()) == 0


@settings(max_examples=100, deadline=None)
@given(WORDS, WORDS, WORDS)
def test_ranges_and_monotony(said: list[str], known: list[str], more: list[str]) -> None:
    text = " ".join(said)
    before, after = vocabulary([" ".join(known)]), vocabulary([" ".join(known), " ".join(more)])
    assert 0 <= novelty(text, after) <= novelty(text, before) <= 1 + 1e-12
    assert (
        0 <= overlap(text, [" ".join(known)]) <= overlap(text, [" ".join(known), " ".join(more)]) <= 1 + 1e-12
    )


def test_tables_agree_with_the_functions() -> None:
    base = ("Choose a town.",)
    assert first_novelty(base, CLUES)[1] == pytest.approx(novelty(CLUES[1], vocabulary(base)))
    whole, fresh = pair_overlap(base, CLUES)
    assert whole[0, 1] == pytest.approx(overlap(CLUES[0], [CLUES[1]]))
    assert whole[0, 0] == pytest.approx(1)
    assert (fresh <= whole + 1e-12).all()
