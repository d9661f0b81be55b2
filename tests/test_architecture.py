"""The arrows of the house run one way: a lower room never imports a higher one."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("sim", "controllers", "conformal", "scripts")
BASE = {"sim.arrays", "sim.randomness", "sim.errors", "sim.packages", "sim.parsing", "sim.templates"}
LOWER = BASE | {"sim.tasks", "sim.discussion", "sim.engines", "sim.records"}
MAY_IMPORT = {
    "conformal": set[str](),
    "sim.arrays": set[str](),
    "sim.randomness": set[str](),
    "sim.errors": set[str](),
    "sim.packages": set[str](),
    "sim.parsing": {"sim.errors"},
    "sim.templates": set[str](),
    "sim.tasks": BASE,
    "sim.discussion": BASE | {"sim.tasks"},
    "sim.engines": BASE,
    "sim.records": {"sim.errors"},
    "controllers": BASE | {"sim.discussion", "sim.engines", "sim.records.rows"},
    "sim.worlds": LOWER,
    "sim.config": LOWER | {"controllers.card", "sim.worlds"},
    "sim.studies": LOWER | {"conformal", "controllers", "sim.worlds", "sim.config"},
    "sim.report": LOWER | {"conformal", "sim.config", "sim.studies.intervals", "sim.studies.power"},
    "sim.captain": LOWER
    | {"conformal", "controllers", "sim.worlds", "sim.config", "sim.studies", "sim.report"},
}
"""Room -> what it may import beside itself. A study ends with a report, so its verbs alone may call one."""
EXCEPTIONS = {("sim/studies/verbs.py", "sim.report")}
ENTRY = {"sim.launch", "sim.overrides", "sim.bench", "sim.sweeps"}


def imports(text: str, package: str = "") -> Iterator[str]:
    """Modules a source imports, ours only, wherever in it and however written; `from sim import x` is sim.x.

    `package` is where the source stands, for relative imports.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            names = [f"{module}.{alias.name}" for alias in node.names] if module in OURS else [module]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] in OURS)


def sources(room: str) -> list[Path]:
    """The files of a room, which may be a single module."""
    path = ROOT / room.replace(".", "/")
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def found(room: str) -> Iterator[tuple[str, str]]:
    """File and imported module, for every import of a room."""
    for path in sources(room):
        package = ".".join(path.relative_to(ROOT).parent.parts)
        for name in imports(path.read_text(encoding="utf-8"), package):
            yield str(path.relative_to(ROOT)), name


def within(name: str, rooms: set[str]) -> bool:
    """Whether a module belongs to one of some rooms."""
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_itself_and_lower_rooms_only(room: str) -> None:
    assert sources(room)
    for path, name in found(room):
        excused = any(path == file and within(name, {target}) for file, target in EXCEPTIONS)
        assert excused or within(name, MAY_IMPORT[room] | {room}), f"{path} imports {name}"


def test_every_room_has_its_arrows() -> None:
    """A new room must say what it may import, or be an entry point, which no room imports."""
    names = {
        path.stem for path in (ROOT / "sim").iterdir() if path.suffix in ("", ".py") and path.stem[0] != "_"
    }
    assert {f"sim.{name}" for name in names} == {room for room in MAY_IMPORT if room[:4] == "sim."} | ENTRY
    for room in MAY_IMPORT:
        assert not any(within(name, ENTRY | {"scripts"}) for _, name in found(room)), room


@pytest.mark.parametrize(
    "text",
    [
        "import sim.worlds.cognitive",
        "from sim.worlds import cognitive",
        "from sim import worlds",
        "def f():\n    from sim.worlds.replay import ReplayWorld",
        "import numpy, sim.worlds as w",
        "from ..worlds import replay",
        "from .. import worlds",
    ],
)
def test_an_import_is_found_however_it_is_written(text: str) -> None:
    assert any(within(name, {"sim.worlds"}) for name in imports(text, "sim.discussion"))


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
