"""The plan of a study as a table in the terminal: what each condition, or each arm, costs at most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.config import LanguageWorldConfig, SeatsConfig, StudyConfig
from sim.engines.models import parse_model
from sim.studies.arms import separate_studies
from sim.studies.opening import Check, checked_tasks
from sim.studies.plan import Cost, Line, plan
from sim.studies.progress import Reporter
from sim.studies.study import Tasks

_WIDEST = 1000
_HEADINGS = (
    "discus-\nsions", "\nbranches", "\ncalls", "tokens\nread", "from\ncache", "tokens\nwritten", "GPU-\nhours",
)  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """A study that was rehearsed; `hours` are None where the model's size is not known."""

    name: str
    config: StudyConfig
    lines: list[Line]

    @property
    def cost(self) -> Cost:
        """All stages together."""
        return sum((line.cost for line in self.lines), Cost())

    @property
    def discussions(self) -> int:
        """Discussions of all stages."""
        return sum(line.discussions for line in self.lines)

    def hours(self, cost: Cost, cache: bool = True) -> float | None:
        """GPU-hours of a cost with this arm's model; of a group, with the mean of its members' sizes."""
        billions = _billions(self.config)
        return None if billions is None else cost.gpu_hours(self.config.throughput, billions, cache)


def _billions(config: StudyConfig) -> float | None:
    seats = config.seats
    models = [seats.members[name].model for name in seats.order] or [config.model]
    sizes = [parse_model(model).active_billions for model in models]
    known = [size for size in sizes if size is not None]
    return sum(known) / len(known) if len(known) == len(sizes) else None


def print_plan(
    data: Mapping[str, Any], stages: tuple[str, ...], check: Check, console: Console | None = None
) -> None:
    """Rehearse a study, or every arm of it, and print what it would cost; nothing is written.

    Raises UserError for what would stop the study itself, by `check` among others, and for a world without a model.
    """
    out = console or Console()
    arms = rehearsed(data, stages, check)
    table = _table("What the study costs at most" + (", by arm" if len(arms) > 1 else ""))
    if len(arms) == 1:
        for line in arms[0].lines:
            name = f"{line.stage} {line.condition}"
            table.add_row(escape(name), *_cells(line.discussions, line.cost, arms[0].hours(line.cost)))
    for arm in arms if len(arms) > 1 else ():
        table.add_row(escape(arm.name), *_cells(arm.discussions, arm.cost, arm.hours(arm.cost)))
    total = sum((arm.cost for arm in arms), Cost())
    hours = _sum([arm.hours(arm.cost) for arm in arms])
    table.add_row("together", *_cells(sum(arm.discussions for arm in arms), total, hours), style="bold")
    # A number cut short is worse than a line that wraps.
    wanted = out.measure(table, options=out.options.update(max_width=_WIDEST)).maximum
    out.width = max(out.width, wanted)
    out.print(table)
    without = _sum([arm.hours(arm.cost, cache=False) for arm in arms])
    for sentence in _notes(arms[0], without):
        out.print(sentence, highlight=False, style="dim", soft_wrap=True)


def rehearsed(data: Mapping[str, Any], stages: tuple[str, ...], check: Check) -> list[Arm]:
    """The study, or its arms; those that differ in nothing but the model are rehearsed once."""
    configs = separate_studies(data)
    known: dict[bytes, list[Line]] = {}
    arms = []
    with Reporter(bool(data["progress"])).stage("plan", len(configs)) as advance:
        for name, config in configs.items():
            tasks = checked_tasks(config, check)
            key = _alike(config, tasks)
            if key not in known:
                known[key] = plan(config, tasks, stages)
            arms.append(Arm(name, config, known[key]))
            advance(1)
    return arms


def _alike(config: StudyConfig, tasks: Tasks) -> bytes:
    """What decides the work of a study: all but the models and where things are written."""
    bare = msgspec.structs.replace(
        config, name="any", model={}, engine={}, seats=SeatsConfig(), output="any", resume=None
    )
    return msgspec.json.encode([bare, tasks], order="sorted")


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _cells(discussions: int, cost: Cost, hours: float | None) -> Iterator[str]:
    yield f"{discussions:,}"
    yield f"{cost.branches:,.0f}"
    yield f"{cost.calls:,.0f}"
    yield _short(cost.prompt_tokens)
    yield f"{cost.cached_tokens / cost.prompt_tokens:.0%}" if cost.prompt_tokens else "–"
    yield _short(cost.completion_tokens)
    yield "–" if hours is None else f"{hours:,.2f}"


def _short(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.0f}"


def _sum(hours: list[float | None]) -> float | None:
    known = [each for each in hours if each is not None]
    return sum(known) if len(known) == len(hours) else None


def _notes(arm: Arm, without_cache: float | None) -> Iterator[str]:
    world, rates = arm.config.world, arm.config.throughput
    assert isinstance(world, LanguageWorldConfig)
    yield (
        "At most: every discussion runs to its end, every message to its bound, and conditions share only the branches "
        "they must share."
    )
    if without_cache is None:
        yield "A model's size is not known (model.active_billions), so only its tokens are planned."
        return
    yield (
        f"GPU-hours at {rates.prefill:,.0f} tokens read (outside the cache) and {rates.decode:,.0f} written a second "
        "by one GPU for a model of one billion active parameters: throughput.prefill and throughput.decode, assumed; "
        f"give your own. Without a prefix cache: {without_cache:,.1f}."
    )
