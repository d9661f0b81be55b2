"""Passages."""

from __future__ import annotations

from ._corpus import documents, sentences, words


def sentences_about(topic: str, most: int = 8) -> list[tuple[str, str]]:
    """The sentences of the local corpus that share most words with a topic, with their document's title."""
    wanted = set(words(topic))
    found = [
        (len(wanted & set(words(f"{title} {sentence}"))), title, sentence)
        for title, text in documents().items()
        for sentence in sentences(text)
    ]
    best = sorted(found, key=lambda one: -one[0])[:most]
    return [(title, sentence) for shared, title, sentence in best if shared]
