"""What the terminal shows: one problem's team at work as it happens, and a study's tables at its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.captain.config import CaptainConfig
from sim.captain.report import cell
from sim.captain.tables import read_records
from sim.records.captain_rows import CaptainEventRow
from sim.report.terminal import plain_table


def shower(config: CaptainConfig, console: Console | None = None) -> Callable[[CaptainEventRow], None]:
    """Prints every event of a single problem; a study is silent. A model's text is never read as markup."""
    out = console or Console()
    return (lambda row: _print(out, row)) if config.problem is not None else (lambda row: None)


def _print(out: Console, row: CaptainEventRow) -> None:
    details = row.details
    if row.kind in ("policy", "static_team"):
        return
    head = f"[bold]{escape(row.kind)}[/] [cyan]{escape(row.who)}[/]"
    if row.kind == "decision":
        head = f"\n[bold green]step {row.step}: {escape(str(details['decision']))}[/]"
    out.print(head, highlight=False)
    if row.text:
        out.print(escape(row.text), highlight=False, soft_wrap=True)
    for member in details.get("members", ()):
        tools = ", ".join(member["tools"]) or "no tools"
        out.print(
            escape(f"  {member['name']} ({member['source']}; {tools}): {member['profile']}"), highlight=False
        )
    for name in ("answer", "contradictions", "options", "proposal"):
        if details.get(name):
            out.print(f"  [dim]{name}:[/] {escape(str(details[name]))}", highlight=False)


def print_outcome(directory: Path, config: CaptainConfig, console: Console | None = None) -> None:
    """The answer of a single problem, or the tables of a study; and where the page is."""
    out = console or Console()
    if config.problem is not None:
        for row in read_records(directory).episodes:
            out.print(f"\n[bold]{escape(row.episode.condition)}[/] ({row.ending}, {row.tokens} tokens):")
            out.print(escape(row.answer or row.error or "no answer"), highlight=False)
    else:
        for name in _SHOWN:
            path = directory / "tables" / f"{name}.csv"
            if path.read_text(encoding="utf-8").strip():
                out.print(_table(name, pd.read_csv(path)))
    out.print(f"\nreport: {escape(str(directory / 'report.html'))}", soft_wrap=True)


_SHOWN = {
    "accuracy": ("condition scenario", "accuracy accuracy_low accuracy_high tokens failed"),
    "paired": ("condition reference", "difference difference_low difference_high p_holm"),
    "reflector": ("condition", "disputes detected checked right_to_wrong wrong_to_right"),
}
"""Per table: the columns that name a line, and its numbers."""


def _table(title: str, content: pd.DataFrame) -> Table:
    names, numbers = (columns.split() for columns in _SHOWN[title])
    table = plain_table(title.capitalize(), names, [column.replace("_", " ") for column in numbers])
    for row in content[[*names, *numbers]].to_dict("records"):
        table.add_row(*(escape(cell(value)) for value in row.values()))
    return table
