"""Exact phrases."""

from __future__ import annotations

from ._corpus import documents, sentences


def find_phrase(phrase: str) -> list[tuple[str, str]]:
    """Every sentence of the local corpus that holds a phrase, with its document's title; case does not matter."""
    return [
        (title, sentence)
        for title, text in documents().items()
        for sentence in sentences(text)
        if phrase.lower() in sentence.lower()
    ]
