"""The wording of group-travel tasks: every phrase reads back to its points, and no word gives two answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations

import pytest

from sim.errors import UserError
from sim.tasks import read_points
from sim.tasks.travel_text import STRENGTHS, Phrases, private_themes, shared_themes, wording

OPTIONS = ("Ghent", "Porto", "Graz")
SLOTS = {
    "option": "Porto",
    "name": "Marta",
    "sub": "she",
    "obj": "her",
    "pos": "her",
    "ref": "herself",
    "animal": "dog",
    "child": "son",
    "childobj": "him",
}


def sentences() -> Iterator[tuple[str, str]]:
    """Every sentence that can carry points, with its strength: each verdict with each cause, and the rest."""
    words = wording()
    kinds = ((private_themes(), words.private_verdicts), (shared_themes(), words.shared_verdicts))
    for themes, verdicts in kinds:
        for theme in themes.values():
            for strength, causes in theme.causes.items():
                for verdict in verdicts[strength]:
                    for cause in causes:
                        yield strength, verdict.replace("{cause}", cause)
                for sentence in theme.indirect[strength]:
                    yield strength, sentence
    yield from words.echoes.items()


def unread(pairs: Iterator[tuple[str, str]]) -> list[str]:
    """The sentences whose points are not read back."""
    wrong = []
    for strength, template in pairs:
        sentence = template.format_map(SLOTS)
        try:
            read: tuple[int, ...] = read_points(sentence, OPTIONS)
        except UserError as error:
            wrong.append(str(error))
            continue
        if read != (0, STRENGTHS[strength], 0):
            wrong.append(f"{sentence} {read}")
    return wrong


def test_every_sentence_reads_back_to_its_points() -> None:
    assert unread(sentences()) == []
    assert len(list(sentences())) > 700


def test_a_phrase_under_another_strength_is_found() -> None:
    turned = dict(zip(STRENGTHS, [*list(STRENGTHS)[1:], "impossible"], strict=True))
    pairs = list(sentences())
    assert len(unread((turned[strength], text) for strength, text in pairs)) == len(pairs)


def test_what_carries_no_points_reads_as_none() -> None:
    words = wording()
    openings = [text for theme in private_themes().values() for text in theme.openings]
    for text in (*words.private_asides, *words.shared_asides):
        assert read_points(text.format_map(SLOTS), OPTIONS) == (0, 0, 0)
    for text in (*openings, *words.descriptions, *words.situations, *words.rules, *words.names):
        assert "{option}" not in text
        assert not any(city in text for city in words.cities)


def test_every_theme_has_every_strength_at_least_twice() -> None:
    words = wording()
    assert set(words.private_verdicts) == set(STRENGTHS) == set(words.echoes) == set(words.cues)
    shared_strengths = set(STRENGTHS) - {"impossible"}
    assert set(words.shared_verdicts) == shared_strengths
    for themes, strengths in ((private_themes(), set(STRENGTHS)), (shared_themes(), shared_strengths)):
        for theme in themes.values():
            for phrases in (theme.causes, theme.indirect):
                assert set(phrases) == strengths
                assert all(len(set(texts)) >= 2 for texts in phrases.values())


def test_a_cue_marks_one_strength() -> None:
    cues: Phrases = wording().cues
    for (_, one), (_, other) in combinations(cues.items(), 2):
        for cue in one:
            pattern = re.compile(rf"\b{re.escape(cue)}\b")
            assert not any(
                pattern.search(text) or re.search(rf"\b{re.escape(text)}\b", cue) for text in other
            )


def test_enough_themes_and_asides_for_the_largest_group() -> None:
    themes, shared = private_themes(), set(shared_themes())
    assert len(shared) >= 8
    assert all(set(theme.clashes) <= shared for theme in themes.values())
    assert sum(not theme.clashes for theme in themes.values()) >= 8
    assert len(set(wording().private_asides)) >= 16
    assert len(set(wording().shared_asides)) >= 16


def test_names_and_cities_are_found_in_no_other_text() -> None:
    words = wording()
    names = (*words.she, *words.he, *words.cities)
    assert len(set(names)) == len(names)
    for one, other in combinations(names, 2):
        assert one not in other
        assert other not in one
    phrases = " ".join(text for _, text in sentences())
    assert not [name for name in names if re.search(rf"\b{name}\b", phrases)]


def test_sentences_end_once_and_begin_large() -> None:
    for _, template in sentences():
        sentence = template.format_map(SLOTS)
        assert re.fullmatch(r"[A-Z][^.!?{}]*\.", sentence), sentence


def test_reader_counts_several_sentences_and_options_inside_options() -> None:
    options = ("Mr. X", "Mr. X's son", "Nice")
    text = "Mr. X's son is a serious problem. Mr. X is ideal. Mr. X has a small plus too. Nice was mentioned."
    assert read_points(text, options) == (3, -2, 0)


def test_reader_refuses_what_can_be_read_in_two_ways() -> None:
    with pytest.raises(UserError, match=r"\['Ghent', 'Porto'\]"):
        read_points("Ghent is ideal and Porto is a serious problem.", OPTIONS)
    with pytest.raises(UserError, match="'serious', 'great_advantage'"):
        read_points("Porto is ideal but a serious problem.", OPTIONS)
