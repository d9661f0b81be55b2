"""Titles."""

from __future__ import annotations

from ._corpus import documents


def list_documents(containing: str = "") -> list[str]:
    """Titles of the local corpus, those that contain a text if one is given."""
    return [title for title in documents() if containing.lower() in title.lower()]
