"""Novelty and overlap of texts (METHOD 1)."""

from __future__ import annotations

import os
import subprocess
import sys

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


def test_the_last_bit_does_not_depend_on_the_process() -> None:
    """String hashes are salted per process, so nothing may be summed in the order of a set."""
    clue = "Alpha bridge costs 310 euros, floods in April, and the ferry to Bergen sails at dawn near Oslo."
    code = (
        "from sim.discussion.text import overlap, pair_overlap, first_novelty\n"
        f"clues = [{clue!r}, {CLUES[0]!r} + {clue!r}]\n"
        "print(overlap(clues[0], clues[1:]).hex(), [t.tobytes().hex() for t in pair_overlap(CLUES, clues)])"
    ).replace("CLUES", repr(CLUES[1:]))
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            check=True,
        ).stdout
        for salt in ("1", "2", "3")
    }
    assert len(printed) == 1


def test_tables_agree_with_the_functions() -> None:
    base = ("Choose a town.",)
    assert first_novelty(base, CLUES)[1] == pytest.approx(novelty(CLUES[1], vocabulary(base)))
    whole, fresh = pair_overlap(base, CLUES)
    assert whole[0, 1] == pytest.approx(overlap(CLUES[0], [CLUES[1]]))
    assert whole[0, 0] == pytest.approx(1)
    assert (fresh <= whole + 1e-12).all()
