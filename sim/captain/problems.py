"""A problem, what its answer is checked against, and the built-in sets. It knows no grader and no method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from sim.captain.config import ProblemsConfig, Scenario
from sim.errors import UserError, shown

LIBRARY = Path(__file__).parent / "library"
CORPUS = LIBRARY / "corpus.jsonl"
_DATA = LIBRARY / "data"


class Number(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="number"):
    """A number; right within the larger of a relative and an absolute tolerance, in `unit` or one like it."""

    value: float
    unit: str = ""
    relative: Annotated[float, msgspec.Meta(ge=0)] = 1e-6
    absolute: Annotated[float, msgspec.Meta(ge=0)] = 1e-9


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="text"):
    """One of several texts, compared without case, articles, punctuation and space; lists by their items."""

    texts: tuple[str, ...]


class ProgramTests(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="tests"):
    """A program: `prompt` opens it, `check(<entry_point>)` in `tests` must pass in the sandbox."""

    prompt: str
    tests: str
    entry_point: str


class Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="fields"):
    """Several named values in the published form `@name[value]`; all must be there and right."""

    values: dict[str, str]


Expected: TypeAlias = Number | Words | ProgramTests | Fields


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One problem. `task` is the user's text, passed on verbatim; `files` are given to every program.

    `tags` label the roles that fit it; `distractor` is a plausible wrong answer, for planted disputes.
    Problems that share facts share a `family`.
    """

    id: str
    scenario: Scenario
    task: str
    expected: Expected
    format: str = ""
    files: dict[str, str] = {}
    level: int | None = None
    tags: tuple[str, ...] = ()
    distractor: str = ""
    family: str = ""

    @property
    def unit_of_analysis(self) -> str:
        """What clusters and certificates count as one."""
        return self.family or self.id


def read_problems(config: ProblemsConfig) -> tuple[Problem, ...]:
    """The problems of a configuration; UserError where its source cannot give them."""
    if config.source == "builtin":
        problems = _builtin(config.scenarios)
    else:
        from sim.captain.loaders import load

        problems = load(config)
    kept = [one for one in problems if not config.levels or one.level in config.levels]
    chosen: list[Problem] = []
    for one in kept:
        if config.count is None or sum(other.scenario == one.scenario for other in chosen) < config.count:
            chosen.append(one)
    if not chosen:
        raise UserError(f"problems: none is left of {config.source}; check scenarios, levels and count")
    twice = next((one.id for i, one in enumerate(chosen) if one.id in {o.id for o in chosen[:i]}), None)
    if twice:
        raise UserError(f"problems: id {shown(twice)} stands there twice; ids are unique")
    return tuple(chosen)


def _builtin(scenarios: tuple[Scenario, ...]) -> list[Problem]:
    wanted = scenarios or ("mathematics", "programming", "data_analysis", "science", "information_retrieval")
    problems: list[Problem] = []
    for scenario in wanted:
        content = (LIBRARY / "problems" / f"{scenario}.json").read_bytes()
        problems += msgspec.json.decode(content, type=list[Problem])
    return [with_files(problem, _DATA) for problem in problems]


def with_files(problem: Problem, folder: Path) -> Problem:
    """A problem with the content of the files it names. Raises UserError for one that is missing."""
    try:
        content = {name: (folder / name).read_text(encoding="utf-8") for name in problem.files}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"problem {shown(problem.id)}: files: {error}; give text files in {folder}"
        ) from error
    return msgspec.structs.replace(problem, files=content)
