"""Text statistics of messages (METHOD 1): content words, novelty and overlap, weighted by inverse frequency.

Words come from a fixed frequency table (wordfreq) and are stemmed (snowballstemmer); nothing is learned here.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache

import numpy as np

from sim.arrays import Bools, Floats

_TOKEN = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_STOP_RANK = 150
_FLOOR_FREQUENCY = 1e-8


@lru_cache(maxsize=1)
def _stop_words() -> frozenset[str]:
    from wordfreq import top_n_list

    return frozenset(top_n_list("en", _STOP_RANK))


@lru_cache(maxsize=200_000)
def _stem(word: str) -> str:
    import snowballstemmer

    stem: str = snowballstemmer.stemmer("english").stemWord(word)
    return stem


@lru_cache(maxsize=200_000)
def _idf(word: str) -> float:
    """Inverse frequency of a surface word, in nats; a number counts like a rare word."""
    from wordfreq import word_frequency

    frequency = 0.0 if word[0].isdigit() else word_frequency(word, "en")
    return float(-np.log(max(frequency, _FLOOR_FREQUENCY)))


@lru_cache(maxsize=50_000)
def content_words(text: str) -> dict[str, float]:
    """W(m): stemmed content words and numbers of a text with their idf (nats). Do not modify the result."""
    found: dict[str, float] = {}
    for token in _TOKEN.findall(text.lower()):
        if token in _stop_words() or (len(token) == 1 and not token.isdigit()):
            continue
        stem = _stem(token)
        found[stem] = max(found.get(stem, 0.0), _idf(token))
    return found


def vocabulary(texts: Iterable[str]) -> set[str]:
    """P_t: the union of the content words of several texts."""
    return {word for text in texts for word in content_words(text)}


def novelty(text: str, known: set[str]) -> float:
    """ν in [0, 1]: share of a message's idf mass that is not in `known`; 0 for a message without content."""
    words = content_words(text)
    total = sum(words.values())
    return sum(idf for word, idf in words.items() if word not in known) / total if words else 0.0


def overlap(text: str, earlier: Sequence[str]) -> float:
    """ρ in [0, 1]: the largest share of a message's idf mass found in one earlier text; 1 if empty."""
    words = content_words(text)
    total = sum(words.values())
    if not words:
        return 1.0
    return max((_mass(words, content_words(other)) for other in earlier), default=0.0) / total


def _mass(words: dict[str, float], others: Container[str]) -> float:
    """Idf mass of the words also found in `others`, summed in the order of the text: the order of a set differs
    between processes, and so would the last bit of the sum."""
    return sum(idf for word, idf in words.items() if word in others)


def fresh_words(base: Sequence[str], clues: Sequence[str]) -> tuple[Floats, Bools]:
    """The words of each clue that the `base` texts do not hold: their shares of the clue's idf mass (M, W), and
    which clues hold each of them (M, W, M). A clue with fewer such words than W has zeros at the end.

    ν of a clue said verbatim is the sum of its shares over the words that no clue said before it holds.
    """
    known = vocabulary(base)
    words = [content_words(clue) for clue in clues]
    fresh = [[word for word in found if word not in known] for found in words]
    width = max(map(len, fresh), default=0)
    shares, held = np.zeros((len(clues), width)), np.zeros((len(clues), width, len(clues)), bool)
    for i, (found, new) in enumerate(zip(words, fresh, strict=True)):
        total = sum(found.values())
        shares[i, : len(new)] = [found[word] / total for word in new]
        for place, word in enumerate(new):
            held[i, place] = [word in other for other in words]
    return shares, held


def pair_overlap(clues: Sequence[str]) -> Floats:
    """ρ (M, M) of each clue, said verbatim, with each other clue alone."""
    return np.array([[overlap(clue, [other]) for other in clues] for clue in clues])
