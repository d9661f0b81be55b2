"""Tasks written for these tests, in HiddenBench's form."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Record = dict[str, Any]

_BOAT = "The boat is large enough for everyone."
_LIFEGUARD = "The lifeguard has the keys."


def record(number: int, **changes: Any) -> Record:
    """One valid task of HiddenBench's form, with some fields replaced."""
    task: Record = {
        "id": number,
        "name": f"harbour_{number}",
        "description": f"Four sailors choose a way out of harbour {number}.",
        "shared_information": [f"Pier {number} is dry.", "The tide turns at noon."],
        "hidden_information": [
            f"Gate {number} is locked.",
            f"Rope {number} is worn.",
            f"Lamp {number} is out.",
        ],
        "possible_answers": ["The pier", "The gate", "The pier's end"],
        "correct_answer": "The pier's end",
    }
    return {**task, **changes}


def alone(number: int, **changes: Any) -> Record:
    """A task that shares no fact with any other."""
    shared = [f"Pier {number} is dry.", f"The tide at pier {number} turns at noon."]
    return record(number, **{"shared_information": shared, **changes})


@pytest.fixture
def records() -> list[Record]:
    """Six tasks: 1, 2 and 3 are one family through a chain of shared clues; 4, 5 and 6 stand alone."""
    return [
        alone(1, hidden_information=[_BOAT, "Gate 1 is locked.", "Rope 1 is worn."]),
        alone(
            2, hidden_information=["the boat is LARGE enough, for  everyone", _LIFEGUARD, "Rope 2 is worn."]
        ),
        alone(3, shared_information=[_LIFEGUARD], correct_answer="The gate"),
        alone(4),
        alone(5, correct_answer="The pier"),
        alone(6),
    ]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[object], Path]:
    """Writes a value as JSON, or a text or bytes as they are, and gives the path."""

    def written(content: object) -> Path:
        path = tmp_path / "tasks.json"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return written
