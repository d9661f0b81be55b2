"""Dates."""

from __future__ import annotations

import re

from ._corpus import documents, sentences


def extract_years(title: str) -> list[tuple[int, str]]:
    """Every year (1000 to 2999) that a document of the local corpus names, with its sentence, in time order."""
    found = [
        (int(year), sentence)
        for sentence in sentences(documents()[title])
        for year in re.findall(r"\b[12]\d{3}\b", sentence)
    ]
    return sorted(found)
