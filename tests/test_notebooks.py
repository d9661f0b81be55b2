"""Notebooks are committed clean: no outputs, nothing that depends on what ran before, each in the list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    """The cells that run."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def test_there_are_four_and_the_list_names_them() -> None:
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 4
    assert [path.name for path in NOTEBOOKS if f"]({path.name})" not in listed] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_committed(path: Path) -> None:
    assert [cell["id"] for cell in code_cells(path) if cell["outputs"] or cell["execution_count"]] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_show_plots_check_their_claims_and_stay_thin(path: Path) -> None:
    sources = ["".join(cell["source"]) for cell in code_cells(path)]
    text = "\n".join(sources)
    assert "%matplotlib inline" in text
    assert "assert " in text
    assert max(source.count("\n") for source in sources) < 30
