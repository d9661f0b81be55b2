"""The tool library: plain typed Python functions, one a file, found by reading their signatures.

No tool is imported here: a program that calls one imports it behind the sandbox's wall.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sim.errors import UserError

BUILT_IN = Path(__file__).parent / "tools"
PACKAGES = "PACKAGES"


@dataclass(frozen=True)
class Tool:
    """One tool: `<category>/<name>.py`, whose function has the file's name."""

    name: str
    category: str
    signature: str
    about: str
    packages: tuple[str, ...]

    @property
    def described(self) -> str:
        """What retrieval compares a role with."""
        return f"{self.name.replace('_', ' ')} ({self.category.replace('_', ' ')}): {self.about}"

    @property
    def missing(self) -> tuple[str, ...]:
        """Packages it declares that are not installed."""
        return tuple(package for package in self.packages if find_spec(package) is None)


@dataclass(frozen=True)
class Toolbox:
    """Tools by name, and the folder that programs import them from."""

    tools: Mapping[str, Tool]
    folder: Path

    def known(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names that are tools, each once, in their order."""
        return tuple(name for name in dict.fromkeys(names) if name in self.tools)

    def signatures(self, names: Iterable[str]) -> list[str]:
        """How tools are shown to a model."""
        return [f"{self.tools[name].signature}\n    {self.tools[name].about}" for name in self.known(names)]

    def imports(self, code: str, names: Iterable[str]) -> str:
        """Import lines for those of the tools that a program mentions; none where it cannot be parsed."""
        try:
            used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
        except (SyntaxError, ValueError):
            return ""
        wanted = [self.tools[name] for name in self.known(names) if name in used]
        return "\n".join(f"from {tool.category}.{tool.name} import {tool.name}" for tool in wanted)


NO_TOOLS = Toolbox({}, BUILT_IN)


def read_tools(folder: Path) -> Toolbox:
    """Every tool whose packages are installed. Raises UserError naming a file that holds no tool.

    Files and folders whose names start with '_' are not tools.
    """
    if not folder.is_dir():
        raise UserError(f"tools: {folder} is not a folder; give one with <category>/<tool>.py files")
    files = sorted(path for path in folder.glob("*/*.py") if not path.name.startswith("_"))
    tools = [_read(path) for path in files if not path.parent.name.startswith("_")]
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UserError(f"tools: {folder}: {twice} stands there twice; tool names are unique")
    return Toolbox({tool.name: tool for tool in tools if not tool.missing}, folder)


def _read(path: Path) -> Tool:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise UserError(f"tools: {path}:{error.lineno}: {error.msg}; give a Python file") from error
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == path.stem]
    if not functions:
        raise UserError(f"tools: {path}: it defines no function {path.stem}; a tool has its file's name")
    function = functions[0]
    about = ast.get_docstring(function)
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    if not about or function.returns is None or any(argument.annotation is None for argument in arguments):
        raise UserError(
            f"tools: {path}: {path.stem} needs a docstring and a type for every argument and result"
        )
    signature = f"{path.stem}({ast.unparse(function.args)}) -> {ast.unparse(function.returns)}"
    return Tool(path.stem, path.parent.name, signature, " ".join(about.split()), _packages(tree))


def _packages(tree: ast.Module) -> tuple[str, ...]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == PACKAGES for target in node.targets
        ):
            return tuple(ast.literal_eval(node.value))
    return ()
