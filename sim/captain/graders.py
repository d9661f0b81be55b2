"""Graders: programs that say whether an answer is right. No model grades.

An answer is read as a whole first; a number is else the last one in it. Hidden tests run in the sandbox.
"""

from __future__ import annotations

import ast
import math
import re
import secrets
import string
import tokenize
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sim.captain.problems import Expected, Fields, Number, Problem, ProgramTests, Words
from sim.captain.sandbox import Sandbox

_NUMBER = re.compile(
    r"(?:(?<![\d.])[-+])?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d)\.)?(?:(?<=[\d.])[eE][-+]?\d+)?"
)
_POWER = re.compile(
    r"(?<![\d.])(?:([-+]?\d+(?:\.\d+)?)\s*(?:\\times|\\cdot|[x×·*])\s*)?10\s*(?:\^|\*\*)\s*\{?\s*([-+]?\d+)\s*\}?"
)
_FRACTION = re.compile(r"([-+]?)\s*\\[dt]?frac\{\s*([-+]?\d+(?:\.\d+)?)\s*\}\{\s*(\d+(?:\.\d+)?)\s*\}")
_RATIO = re.compile(r"(?<![\d./])([-+]?\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)(?![\d./])")
_FIELD = re.compile(r"@(\w+)\[([^\]]*)\]")
_CODE = re.compile(r"(?s)```(?:python|py)?[ \t]*\n(.*?)```")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_LATEX = re.compile(r"\\(?:text|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}|\\[,;:! ]|\\left|\\right|~")
_EXPONENT = re.compile(r"\^\s*\{\s*([-+]?\d+)\s*\}")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_UNIT = re.compile(r"[A-Za-zµμΩÅ°%/*() ]+(?:\^?-?\d{1,2}(?!\d)[A-Za-zµμΩÅ°/*() ]*)*")
_FIELD_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Grade:
    """Whether an answer is right, and what was found."""

    correct: bool
    reason: str


async def grade(problem: Problem, answer: str, sandbox: Sandbox | None) -> Grade:
    """The verdict on an answer. A program without a sandbox to test it in raises RuntimeError."""
    expected = problem.expected
    if not answer.strip():
        return Grade(False, "there is no answer")
    if isinstance(expected, ProgramTests):
        return await _tested(expected, answer, sandbox)
    if isinstance(expected, Number):
        return _number(expected, answer)
    return _fields(expected, answer) if isinstance(expected, Fields) else _words(expected, answer)


def same(expected: Expected, one: str, other: str) -> bool:
    """Whether two answers are one answer to this kind of problem, by the grader's own reading of them."""
    if isinstance(expected, ProgramTests):
        return _shape(program(expected, one)) == _shape(program(expected, other))
    if isinstance(expected, Number):
        left, right = read_number(one), read_number(other)
        if left is not None and right is not None:
            return _close(left[0], right[0], expected) and _parsed_unit(left[1]) == _parsed_unit(right[1])
    if isinstance(expected, Fields):
        return dict(_FIELD.findall(one)) == dict(_FIELD.findall(other)) and normalised(one) == normalised(
            other
        )
    return normalised(one) == normalised(other)


def read_number(text: str) -> tuple[float, str] | None:
    """The last number of a text with what follows it (its unit); None where there is none.

    Reads signs, thousands, decimals, exponents, fractions, powers of ten, LaTeX and \\boxed.
    """
    boxed = re.findall(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}", text)
    plain = _LATEX.sub(lambda m: f" {m[1] or ''} ", boxed[-1] if boxed else text)
    plain = _EXPONENT.sub(r"^\1", plain.replace("−", "-").replace("$", ""))
    plain = _POWER.sub(lambda m: f"{m[1] or 1}e{m[2]}", plain)
    plain = _FRACTION.sub(
        lambda m: f"{m[1]}{float(m[2]) / float(m[3]) if float(m[3]) else math.nan!r}", plain
    )
    plain = _RATIO.sub(lambda m: f"{float(m[1]) / float(m[2]) if float(m[2]) else math.nan!r}", plain)
    found = [
        m for m in _NUMBER.finditer(plain) if re.search(r"\d", m[0]) and not _inside_word(plain, m.start())
    ]
    if not found:
        return None
    last = found[-1]
    return float(last[0].replace(",", "")), plain[last.end() :].strip(" .\n\t;:!")


def _inside_word(text: str, start: int) -> bool:
    """Whether a number stands inside a word or a unit, as in `H2O` or `m^-1`."""
    return start > 0 and (text[start - 1].isalpha() or text[start - 1] in "^_")


def _number(expected: Number, answer: str) -> Grade:
    found = read_number(answer)
    if found is None or not math.isfinite(found[0]):
        return Grade(False, "it holds no number")
    value, unit = found
    if expected.unit and unit:
        converted = _converted(value, unit, expected.unit)
        if converted is None:
            return Grade(False, f"its unit {unit[:40]!r} is not one of {expected.unit!r}")
        value = converted
    right = _close(value, expected.value, expected)
    return Grade(right, f"{value:g} against {expected.value:g} {expected.unit}".strip())


def _close(value: float, target: float, expected: Number) -> bool:
    return math.isclose(value, target, rel_tol=expected.relative, abs_tol=expected.absolute)


@lru_cache(maxsize=1)
def _registry() -> Any:
    import pint

    return pint.UnitRegistry(autoconvert_offset_to_baseunit=True)


def _converted(value: float, unit: str, target: str) -> float | None:
    """A value in another unit; None where its unit measures something else. What is no unit at all is prose,
    and the value stands as it is: the task names the unit."""
    given = _parsed_unit(unit)
    if given is None:
        return value
    import pint

    try:
        return float(_registry().Quantity(value, given).to(_parsed_unit(target)).magnitude)
    except pint.PintError:
        return None


@lru_cache(maxsize=1000)
def _parsed_unit(text: str) -> Any:
    """A unit written in any usual way; None for a text that is none."""
    import pint

    opened = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda m: "^" + m[0].translate(_RAISED), text)
    opened = re.sub(r"(?<=[A-Za-zµΩ])(?=-?\d)", "^", _EXPONENT.sub(r"^\1", opened))
    opened = re.sub(r"[·⋅]|\\cdot", " ", opened).replace("\\mu ", "µ").replace("\\", " ")
    if not _UNIT.fullmatch(opened):
        return None
    try:
        return _registry().parse_units(" ".join(opened.split()))
    except (pint.PintError, tokenize.TokenError, ArithmeticError, ValueError, TypeError, AttributeError):
        return None


def normalised(text: str) -> str:
    """A text as it is compared: no case, articles, punctuation or superfluous space; lists by their items."""
    items = (
        [_plain(item) for item in re.split(r"[,;]", text)] if re.search(r"[,;]\s", text) else [_plain(text)]
    )
    return ", ".join(item for item in items if item)


def _plain(text: str) -> str:
    bare = text.casefold().translate(
        str.maketrans("", "", string.punctuation.replace("-", "").replace(".", ""))
    )
    return " ".join(_ARTICLES.sub(" ", bare).strip(" .").split())


def _words(expected: Words, answer: str) -> Grade:
    for text in expected.texts:
        if normalised(text) == normalised(answer):
            return Grade(True, f"it is {text!r}")
        number = _whole_number(text)
        if number is not None and _whole_number(answer) == number:
            return Grade(True, f"it is {text!r}")
    return Grade(False, f"{normalised(answer)[:60]!r} is none of the texts")


def _whole_number(text: str) -> float | None:
    """A text that is nothing but a number, perhaps with a currency or percent sign."""
    bare = text.strip().strip("$€£% ").replace(",", "")
    try:
        return float(bare)
    except ValueError:
        return None


def _fields(expected: Fields, answer: str) -> Grade:
    given = dict(_FIELD.findall(answer))
    missing = [name for name in expected.values if name not in given]
    if missing:
        return Grade(False, f"@{missing[0]}[…] is missing")
    for name, value in expected.values.items():
        left, right = _whole_number(given[name]), _whole_number(value)
        equal = (
            math.isclose(left, right, rel_tol=0, abs_tol=_FIELD_TOLERANCE)
            if left is not None and right is not None
            else normalised(given[name]) == normalised(value)
        )
        if not equal:
            return Grade(False, f"@{name} is {given[name][:40]!r}, not {value!r}")
    return Grade(True, "every field is right")


def code_blocks(text: str) -> list[str]:
    """The fenced Python blocks of a text."""
    return [block.strip("\n") for block in _CODE.findall(text) if block.strip()]


def program(expected: ProgramTests, answer: str) -> str:
    """The program an answer stands for: its code block or itself, the prompt in front where it goes on from it."""
    blocks = code_blocks(answer)
    code = "\n\n".join(blocks) if blocks else answer
    if re.search(rf"(?m)^(?:async\s+)?def\s+{re.escape(expected.entry_point)}\b", code):
        prologue = expected.prompt[: expected.prompt.rfind("def ")] if "def " in expected.prompt else ""
        return f"{prologue}\n{code}"
    return f"{expected.prompt}{code}"


def _shape(code: str) -> str:
    """A program without comments, layout and docstrings; the text itself where it cannot be parsed."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return " ".join(code.split())
    return ast.dump(tree)


async def _tested(expected: ProgramTests, answer: str, sandbox: Sandbox | None) -> Grade:
    """The hidden tests on the program; a token printed at the end shows that they ran to it."""
    if sandbox is None:
        raise RuntimeError("a program is graded in a sandbox, and there is none")
    token = secrets.token_hex(16)
    whole = f"{program(expected, answer)}\n\n{expected.tests}\n\ncheck({expected.entry_point})\nprint('\\n{token}')\n"
    done = await sandbox.run({"main.py": whole})
    if done.verdict == "ok" and done.stdout.rstrip().endswith(token):
        return Grade(True, "all tests pass")
    last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.exit_code}"]
    return Grade(
        False,
        f"{done.verdict}: {last[0][:120]}" if done.verdict != "ok" else "the tests did not run to their end",
    )
