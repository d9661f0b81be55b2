"""The package stands alone: numpy and scipy only, and its README runs as printed."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import conformal

ROOT = Path(conformal.__file__).parent


def imported(path: Path) -> set[str]:
    """Top-level names of everything a module imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    sourced = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in plain | sourced}


def test_only_numpy_and_scipy_are_imported() -> None:
    used = {name for path in ROOT.glob("*.py") for name in imported(path)}
    assert used - set(sys.stdlib_module_names) == {"numpy", "scipy", "conformal"}


def test_every_public_name_exists() -> None:
    assert all(hasattr(conformal, name) for name in conformal.__all__)


def test_the_readme_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    exec("".join(re.findall(r"```python\n(.*?)```", readme, re.DOTALL)), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert "P(S_t <= q_t" in lines[0]
