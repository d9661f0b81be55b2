"""The arrows of the house run one way: a lower room never imports a higher one."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BASE = {"sim.arrays", "sim.randomness", "sim.errors"}
MAY_IMPORT = {
    "conformal": set[str](),
    "sim.tasks": BASE,
    "sim.discussion": BASE | {"sim.tasks"},
    "sim.engines": BASE,
    "sim.records": BASE,
    "controllers": BASE | {"sim.discussion", "sim.engines", "sim.records", "sim.tasks"},
    "sim.worlds": BASE | {"sim.tasks", "sim.discussion", "sim.engines", "sim.records"},
}


def imports(path: Path) -> Iterator[str]:
    """Modules a file imports, ours only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (
            name for name in names if name.split(".")[0] in ("sim", "controllers", "conformal", "scripts")
        )


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_itself_and_lower_rooms_only(room: str) -> None:
    for path in sorted((ROOT / room.replace(".", "/")).rglob("*.py")):
        for name in imports(path):
            allowed = any(
                name == other or name.startswith(f"{other}.") for other in MAY_IMPORT[room] | {room}
            )
            assert allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_scripts_hold_no_logic() -> None:
    for path in sorted((ROOT / "scripts").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While | ast.ClassDef)]
        assert not loops, path.name
        assert ast.get_docstring(tree), path.name


@pytest.mark.parametrize("heavy", ["torch", "transformers", "wandb", "matplotlib", "pandas"])
def test_nothing_heavy_is_loaded_before_it_is_needed(heavy: str) -> None:
    code = f"import sim, sim.launch, sim.studies.verbs, controllers, conformal, sys; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_no_pickle_and_no_unsafe_loading() -> None:
    for room in ("sim", "controllers", "conformal", "scripts"):
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "pickle" not in text.replace("never pickle", ""), path
            assert "torch.load" not in text, path
