"""Whole documents."""

from __future__ import annotations

import difflib

from ._corpus import documents


def read_document(title: str) -> str:
    """The text of a document of the local corpus; ValueError with the nearest titles where there is none."""
    texts = documents()
    if title not in texts:
        near = difflib.get_close_matches(title, list(texts), n=3, cutoff=0.3)
        raise ValueError(f"there is no document {title!r}; near: {near}")
    return texts[title]
