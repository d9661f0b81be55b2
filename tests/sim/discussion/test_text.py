"""Novelty and overlap of texts (METHOD 1)."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.discussion.text import content_words, fresh_words, novelty, overlap, pair_overlap, vocabulary

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
        "from sim.discussion.text import fresh_words, novelty, pair_overlap, vocabulary\n"
        f"clues = [{clue!r}, {CLUES[0]!r} + {clue!r}]\n"
        "tables = pair_overlap(clues), *fresh_words(clues[1:], clues[:1])\n"
        "print(novelty(clues[0], vocabulary(clues[1:])).hex(), [table.tobytes().hex() for table in tables])"
    )
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


@settings(max_examples=60)
@given(WORDS, st.lists(WORDS.filter(bool), min_size=2, max_size=5), st.data())
def test_tables_agree_with_the_functions(base: list[str], said: list[list[str]], data: st.DataObject) -> None:
    """Novelty from the tables is METHOD 1's, over the union of everything said, for any history."""
    texts, clues = [" ".join(base)], [" ".join(words) for words in said]
    shares, held = fresh_words(texts, clues)
    clue = data.draw(st.integers(0, len(clues) - 1))
    earlier = data.draw(st.lists(st.integers(0, len(clues) - 1), max_size=4))
    new = ~held[clue][:, earlier].any(1)
    heard = vocabulary([*texts, *(clues[i] for i in earlier)])
    assert shares[clue][new].sum() == pytest.approx(novelty(clues[clue], heard), abs=1e-12)
    for other in range(len(clues)):
        assert pair_overlap(clues)[clue, other] == overlap(clues[clue], [clues[other]])


def test_a_clue_without_content_is_never_new_and_overlaps_everything() -> None:
    shares, held = fresh_words(("Choose.",), ("I do.", CLUES[0]))
    assert shares[0].sum() == 0
    assert not held[0].any()
    np.testing.assert_array_equal(pair_overlap(("I do.", CLUES[0]))[0], [1, 1])
