"""The built-in problems, their answers found again by code; and loaders of the published forms."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy import optimize, stats

from sim.captain.config import ProblemsConfig
from sim.captain.graders import grade
from sim.captain.problems import CORPUS, LIBRARY, Fields, Number, Problem, ProgramTests, Words, read_problems
from sim.captain.sandbox import Sandbox
from sim.errors import UserError

BUILT_IN = {problem.id: problem for problem in read_problems(ProblemsConfig("builtin"))}
BAKERY = pd.read_csv(LIBRARY / "data" / "bakery.csv")
RIVERS = pd.read_csv(LIBRARY / "data" / "rivers.csv")
GAS = 8.314462618


def _dice() -> Fraction:
    throws = [pair for pair in product(range(1, 7), repeat=2) if sum(pair) >= 9]
    return Fraction(sum(a == b for a, b in throws), len(throws))


def _weak_acid_ph() -> float:
    found = optimize.brentq(lambda h: h * h / (0.020 - h) - 1.8e-5, 1e-9, 0.0199)
    return -math.log10(float(found))


MATHEMATICS: dict[str, Callable[[], Any]] = {
    "divisors": lambda: sum(2016 % n == 0 for n in range(1, 2017)),
    "last-digits": lambda: pow(7, 2025, 100),
    "committee": lambda: sum(0 < sum(x < 6 for x in chosen) < 4 for chosen in combinations(range(11), 4)),
    "dice": _dice,
    "quadratic": lambda: sum(((7 + s * math.sqrt(33)) / 2) ** 3 for s in (1, -1)),
    "triangle": lambda: math.sqrt(21 * 8 * 7 * 6) / 21,
    "limit": lambda: (1 - math.cos(3e-4)) / 1e-8,
    "rectangle": lambda: max(x * (120 - 2 * x) for x in range(61)),
    "letters": lambda: len(set(permutations("BANANA"))),
    "system": lambda: next(a * 2 * a * (2 * a - 5) for a in range(30) if a + 2 * a + 2 * a - 5 == 30),
}
SCIENCE: dict[str, Callable[[], float]] = {
    "moles": lambda: 24.0 / 16.04,
    "titration": lambda: 32.4 * 0.150 / 2 / 25.0,
    "ph": _weak_acid_ph,
    "gas": lambda: 2.50 * (333.15 / 293.15) * (1.00 / 0.900),
    "arrhenius": lambda: GAS * math.log(2) / (1 / 300 - 1 / 310) / 1000,
    "incline": lambda: math.sqrt(2 * 9.81 * 5.00 * math.sin(math.radians(30))),
    "circuit": lambda: 12.0 / (1 / (1 / 4.00 + 1 / 12.0) + 0.500),
    "lens": lambda: 1 / (1 / 20.0 - 1 / 30.0),
    "decay": lambda: 24 / math.log2(800 / 50),
    "cooling": lambda: (0.200 * 80 + 0.300 * 20) / 0.500,
}


@pytest.mark.parametrize("name", MATHEMATICS)
def test_mathematics_answers(name: str) -> None:
    expected = BUILT_IN[f"mathematics-{name}"].expected
    assert isinstance(expected, Number)
    assert float(MATHEMATICS[name]()) == pytest.approx(expected.value, rel=1e-6)


@pytest.mark.parametrize("name", SCIENCE)
def test_science_answers(name: str) -> None:
    expected = BUILT_IN[f"science-{name}"].expected
    assert isinstance(expected, Number)
    assert float(SCIENCE[name]()) == pytest.approx(expected.value, rel=expected.relative / 4)


def _rain() -> dict[str, str]:
    rain, sun = (BAKERY[BAKERY.weather == name].loaves for name in ("rain", "sun"))
    p = stats.ttest_ind(rain, sun, equal_var=False).pvalue
    return {"difference": f"{rain.mean() - sun.mean():.2f}", "significant": "yes" if p < 0.05 else "no"}


def _outliers() -> dict[str, str]:
    low, high = BAKERY.returns.quantile([0.25, 0.75])
    reach = 1.5 * (high - low)
    return {"outliers": str(sum(not low - reach <= value <= high + reach for value in BAKERY.returns))}


def _best_shop() -> dict[str, str]:
    means = {shop: BAKERY[BAKERY.shop == shop].loaves.mean() for shop in set(BAKERY.shop)}
    best = max(means, key=lambda shop: means[shop])
    return {"shop": best, "mean_loaves": f"{means[best]:.2f}"}


def _missing() -> dict[str, str]:
    known = [value for value in BAKERY.temperature if not math.isnan(value)]
    return {"missing": str(len(BAKERY) - len(known)), "mean_temperature": f"{sum(known) / len(known):.2f}"}


def _species() -> dict[str, str]:
    high = RIVERS[RIVERS.altitude_m > 500].fish_species
    return {"stations": str(len(high)), "deviation": f"{high.std(ddof=1):.2f}"}


DATA = {
    "missing": _missing,
    "best-shop": _best_shop,
    "correlation": lambda: {"correlation": f"{BAKERY.temperature.corr(BAKERY.rolls):.2f}"},
    "outliers": _outliers,
    "rain": _rain,
    "slope": lambda: {"slope": f"{RIVERS.altitude_m.cov(RIVERS.depth_cm) / RIVERS.altitude_m.var():.3f}"},
    "region": lambda: {name: str(sum(RIVERS.region == name)) for name in ("upper", "middle", "lower")},
    "species": _species,
}


@pytest.mark.parametrize("name", DATA)
def test_data_analysis_answers(name: str) -> None:
    problem = BUILT_IN[f"data-{name}"]
    assert isinstance(problem.expected, Fields)
    assert DATA[name]() == problem.expected.values
    assert all(content.count("\n") > 30 for content in problem.files.values())


SOLUTIONS = {
    "run-lengths": "from itertools import groupby\ndef run_lengths(text):\n"
    "    return [(c, len(list(g))) for c, g in groupby(text)]",
    "merge-intervals": "def merge_intervals(intervals):\n    out = []\n    for a, b in sorted(intervals):\n"
    "        if out and a <= out[-1][1]:\n            out[-1] = (out[-1][0], max(b, out[-1][1]))\n"
    "        else:\n            out.append((a, b))\n    return out",
    "roman": "def to_roman(number):\n    if not 1 <= number <= 3999:\n        raise ValueError(number)\n    out = ''\n"
    "    for v, s in zip((1000,900,500,400,100,90,50,40,10,9,5,4,1), 'M CM D CD C XC L XL X IX V IV I'.split()):\n"
    "        out += s * (number // v)\n        number %= v\n    return out",
    "balanced": "def is_balanced(text):\n    stack = []\n    for c in text:\n        if c in '([{':\n"
    "            stack.append(c)\n        elif c in ')]}':\n"
    "            if not stack or '([{'.index(stack.pop()) != ')]}'.index(c):\n                return False\n"
    "    return not stack",
    "subsequence": "from bisect import bisect_left\ndef longest_increasing(numbers):\n    tails = []\n"
    "    for n in numbers:\n        i = bisect_left(tails, n)\n        tails[i:i + 1] = [n]\n    return len(tails)",
    "rotate": "def rotate_matrix(rows):\n    return [list(row) for row in zip(*rows[::-1])]",
    "anagrams": "def group_anagrams(words):\n    out = {}\n    for w in words:\n"
    "        out.setdefault(''.join(sorted(w.lower())), []).append(w)\n    return list(out.values())",
    "coins": "def fewest_coins(coins, amount):\n    best = [0] + [float('inf')] * amount\n"
    "    for total in range(1, amount + 1):\n"
    "        best[total] = min((best[total - c] + 1 for c in coins if c <= total), default=float('inf'))\n"
    "    return best[amount] if best[amount] < float('inf') else -1",
}


def test_programming_problems_accept_a_solution_and_refuse_the_distractor(sandbox: Sandbox) -> None:
    async def judge(answers: dict[str, str]) -> list[bool]:
        jobs = (grade(BUILT_IN[f"programming-{name}"], answer, sandbox) for name, answer in answers.items())
        return [found.correct for found in await asyncio.gather(*jobs)]

    assert all(asyncio.run(judge({name: f"```python\n{code}\n```" for name, code in SOLUTIONS.items()})))
    wrong = {name: BUILT_IN[f"programming-{name}"].distractor for name in SOLUTIONS}
    assert not any(asyncio.run(judge(wrong)))


def corpus() -> dict[str, str]:
    """The built-in corpus."""
    rows = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    return {row["title"]: row["text"] for row in rows}


def found(title: str, pattern: str) -> str:
    """The first group of a pattern in a document, which must be there."""
    match = re.search(pattern, corpus()[title])
    assert match, (title, pattern)
    return match[1].replace(",", "")


RETRIEVAL = {
    "river": lambda: found("Vellin", r"harbour of Karsby over a length of (\d+)"),
    "newspaper": lambda: found("Orrin Courier", r"first appeared on .* (\d{4})\."),
    "protected": lambda: found("Orrin saxifrage", r"protected since (\d{4})"),
    "passengers": lambda: found(
        "Ferries of the Orrin Islands",
        rf"The {found('Ferries of the Orrin Islands', r'The (Tern) runs between Karsby and Strom')}, built in \d+, "
        r"carries (\d+)",
    ),
    "architect": lambda: found("Assembly of the Orrin Islands", r"designed by (Ida Ravn)"),
    "taller": lambda: str(
        int(found("Strom", r"stands (\d+) metres tall"))
        - int(found("Lighthouses of the Orrin Islands", r"youngest.* is (\d+) metres tall"))
    ),
    "engineer-age": lambda: str(
        int(found("Lighthouses of the Orrin Islands", r"Gull Rock, lit in (\d{4})"))
        - int(found("Anders Holm", r"\((\d{4}) to"))
    ),
    "share": lambda: str(
        round(
            100
            * (int(found("Karsby", r"had ([\d,]+) inhab")) + int(found("Hale", r"had ([\d,]+) inhab")))
            / int(found("Orrin Islands", r"had ([\d,]+) inhab"))
        )
    ),
    "grandfather": lambda: {"four": "4"}[found("Stone bridge over the Ost", r"has (\w+) arches")],
}


@pytest.mark.parametrize("name", RETRIEVAL)
def test_retrieval_answers_stand_in_the_corpus(name: str) -> None:
    expected = BUILT_IN[f"retrieval-{name}"].expected
    assert isinstance(expected, Words)
    assert RETRIEVAL[name]() in expected.texts


def test_there_are_enough_problems_and_every_distractor_is_wrong() -> None:
    scenarios = [problem.scenario for problem in BUILT_IN.values()]
    assert all(scenarios.count(name) >= 8 for name in set(scenarios))
    assert len(set(scenarios)) == 5
    for problem in BUILT_IN.values():
        assert problem.distractor
        assert problem.tags
        if not isinstance(problem.expected, ProgramTests):
            assert not asyncio.run(grade(problem, problem.distractor, None)).correct, problem.id
    levels = {problem.level for problem in BUILT_IN.values() if problem.scenario == "information_retrieval"}
    assert levels == {1, 2, 3}


def test_count_and_levels_choose() -> None:
    chosen = read_problems(ProblemsConfig("builtin", count=2))
    assert len(chosen) == 10
    assert all(p.level == 3 for p in read_problems(ProblemsConfig("builtin", levels=(3,))))
    with pytest.raises(UserError, match="none is left"):
        read_problems(ProblemsConfig("builtin", levels=(9,)))


def write(path: Path, rows: list[dict[str, Any]], lines: bool = True) -> Path:
    """A file of objects, one a line or as a list."""
    text = "\n".join(json.dumps(row) for row in rows) if lines else json.dumps(rows)
    path.write_text(text, encoding="utf-8")
    return path


def load(source: str, path: Path) -> tuple[Problem, ...]:
    """Problems of a published form."""
    return read_problems(ProblemsConfig(source, path=str(path)))  # type: ignore[arg-type]


def right(problem: Problem, answer: str) -> bool:
    """Whether an answer is right."""
    return asyncio.run(grade(problem, answer, None)).correct


def test_math_in_its_published_form(tmp_path: Path) -> None:
    row = {"problem": "Half of 3?", "level": "Level 2", "solution": r"It is $\boxed{\frac{3}{2}}$."}
    text = {"problem": "Solve.", "answer": "x^2 + 1", "unique_id": "test/1"}
    first, second = load("math", write(tmp_path / "a.jsonl", [row, text]))
    assert (first.level, second.id) == (2, "test/1")
    assert right(first, "1.5")
    assert right(first, r"\boxed{\frac{3}{2}}")
    assert right(second, "x^2 + 1")
    assert not right(second, "x^2 + 2")


def test_dabench_in_its_published_form(tmp_path: Path) -> None:
    question = {"id": 7, "question": "Mean of a?", "concepts": [], "constraints": "Two decimals.",
                "format": "@mean[mean]", "file_name": "t.csv", "level": "easy"}  # fmt: skip
    write(tmp_path / "da-dev-questions.jsonl", [question])
    write(tmp_path / "da-dev-labels.jsonl", [{"id": 7, "common_answers": [["mean", "1.50"]]}])
    (tmp_path / "da-dev-tables").mkdir()
    (tmp_path / "da-dev-tables" / "t.csv").write_text("a\n1\n2\n")
    (problem,) = load("dabench", tmp_path)
    assert problem.files == {"t.csv": "a\n1\n2\n"}
    assert problem.format == "@mean[mean]"
    assert right(problem, "@mean[1.5]")
    assert not right(problem, "@mean[1.51]")
    (tmp_path / "da-dev-tables" / "t.csv").unlink()
    with pytest.raises(UserError, match=r"question 7 lacks its label or its table 't\.csv'"):
        load("dabench", tmp_path)


@pytest.mark.parametrize(
    ("unit", "good", "bad"),
    [
        (r"$\mathrm{~kJ} \mathrm{~mol}^{-1}$", "5020 J/mol", "5020 kJ/mol"),
        (r" $ 10^{-19} \mathrm{~J}$", "5.02e-19 J", "5.02 J"),
        (r"$\mathrm{K}$", "5.02 K", "6 K"),
        ("", "5.0", "4"),
        (r"$\mathrm{~m} / \mathrm{s}^2$", "5.02 m s^-2", "5.02 m/s"),
    ],
)
def test_scibench_in_its_published_form(unit: str, good: str, bad: str, tmp_path: Path) -> None:
    row = {"problem_text": "?", "answer_latex": "", "answer_number": "5.02", "unit": unit, "problemid": " 1.1",
           "source": "atkins", "comment": "", "solution": ""}  # fmt: skip
    write(tmp_path / "atkins.json", [row], lines=False)
    write(tmp_path / "atkins_sol.json", [row], lines=False)
    (problem,) = load("scibench", tmp_path)
    assert right(problem, good)
    assert not right(problem, bad)


def test_gaia_in_its_published_form(tmp_path: Path) -> None:
    row = {"task_id": "t1", "Question": "Which?", "Level": 2, "Final answer": "red, blue", "file_name": ""}
    write(tmp_path / "metadata.jsonl", [row])
    (problem,) = load("gaia", tmp_path)
    assert problem.level == 2
    assert right(problem, "Red, blue.")


def test_a_file_of_another_form_is_one_line_naming_it(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"question": "?"}])
    with pytest.raises(UserError, match=r"a\.jsonl.*no field 'solution'"):
        load("math", tmp_path / "a.jsonl")
    (tmp_path / "c.json").write_text("[1]")
    with pytest.raises(UserError, match=r"c\.json: 1 is no object"):
        load("math", tmp_path / "c.json")
    (tmp_path / "b.jsonl").write_text("{not json")
    with pytest.raises(UserError, match=r"b\.jsonl:1"):
        load("math", tmp_path / "b.jsonl")
    with pytest.raises(UserError, match=r"problems\.path is None"):
        read_problems(ProblemsConfig("scibench"))
