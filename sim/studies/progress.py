"""Progress of long work, on a terminal or in a log: stage, share done, rate and remaining time (rich)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as ProgressTask
from rich.text import Text


class _Rate(ProgressColumn):
    def render(self, task: ProgressTask) -> Text:
        elapsed = task.finished_time or task.elapsed
        whole = task.completed / elapsed if elapsed else 0.0
        return Text(rate_text(task.finished_speed or task.speed or whole))


def rate_text(rate: float) -> str:
    """A rate (items a second) as it is shown: a minute where items take longer; empty before the first."""
    if rate <= 0:
        return ""
    unit, value = ("/s", rate) if rate >= 1 else ("/min", 60 * rate)
    return f"{value:,.0f}{unit}" if value >= 10 else f"{value:.1f}{unit}"


@dataclass(frozen=True)
class Reporter:
    """Shows one bar per stage on stderr; silent if `shown` is off."""

    shown: bool = True

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar of `total` items for the time of the block; gives the function that advances it."""
        columns = (
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        with Progress(*columns, console=Console(stderr=True), disable=not self.shown) as bar:
            task = bar.add_task(name, total=total)
            yield lambda n: bar.update(task, advance=n)
