"""Reading the local corpus: a folder of text files, or a JSONL file of {"title", "text"}. Not a tool."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path


def documents() -> dict[str, str]:
    """Text by title, of the corpus that CAPTAIN_CORPUS names."""
    path = Path(os.environ["CAPTAIN_CORPUS"])
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (".txt", ".md"))
        return {file.stem: file.read_text(encoding="utf-8") for file in files}
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    return {str(row["title"]): str(row["text"]) for row in rows}


def sentences(text: str) -> list[str]:
    """The sentences of a text."""
    return [part.strip() for part in re.split(r"(?<=[.!?])\s+", text) if part.strip()]


def words(text: str) -> list[str]:
    """The words of a text in lower case, plural endings off."""
    return [re.sub(r"(?<=\w{3})s$", "", word) for word in re.findall(r"\w+", text.lower())]
