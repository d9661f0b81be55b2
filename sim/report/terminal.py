"""The report in a terminal: accuracy and coverage of one run, and the runs of a folder with their status.

Prints what the tables say; computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.errors import UserError
from sim.report.listing import RunListing, list_runs
from sim.report.source import read_status

_WIDE = 100
_PIPELINE = "explore+train+calibrate+evaluate+report"
_STATE_STYLES = {"finished": "green", "running": "yellow", "failed": "red", "interrupted": "yellow"}


def print_runs(root: str | Path, console: Console | None = None) -> None:
    """The runs below a folder, a line each, with their state and settings, and the error of those that failed."""
    out, folder, top = _out(console), Path(root).absolute(), Path(root).absolute()
    listed = list_runs(root)
    if not listed:
        out.print("no runs there")
        return
    width = max(len(listing.directory.name) for listing in listed)
    out.print(
        f"[bold]{'run':<{width}}  {'state':<11}  {'stage':<8}  discussions  settings[/]", soft_wrap=True
    )
    for listing in listed:
        path = listing.directory.absolute()
        if path.parent != folder and path != top:
            folder = path.parent
            out.print(f"[bold]{escape(str(folder.relative_to(top)))}/[/]", soft_wrap=True)
        out.print(_listed(listing, width), soft_wrap=True)


def _listed(listing: RunListing, width: int) -> str:
    status, style = listing.status, _STATE_STYLES.get(listing.status.state, "dim")
    stage = "pipeline" if status.verb == _PIPELINE else status.verb
    parts = [
        f"{escape(listing.directory.name):<{width}}",
        f"[{style}]{escape(status.state):<11}[/]",
        f"{escape(stage):<8}",
        f"{listing.episodes:>11,}",
        escape(" ".join(listing.settings)),
    ]
    error = f"\n    [red]{escape(status.error)}[/]" if status.error else ""
    return "  ".join(parts) + error


def print_comparison(directory: str | Path, console: Console | None = None) -> None:
    """The runs of a comparison that has been built, one table with a column per run, and every traceback.

    Raises UserError where there is no comparison.
    """
    out, folder = _out(console), Path(directory)
    cells, wide = _read(folder, "cells", as_text=True), _read(folder, "task_accuracy")
    names = [str(name) for name in wide.columns[1:]]
    number = {name: str(i) for i, name in enumerate(names, 1)}
    table = plain_table("Task accuracy by run", ["condition"], list(number.values()))
    for row in wide.to_dict("records"):
        table.add_row(escape(str(row["condition"])), *(_number(row[name], 2) for name in names))
    out.print(table)
    _print_contrasts(out, folder, "all_contrasts", "run", "contrast")
    out.print()
    for row in cells.to_dict("records"):
        _print_cell(out, row, number.get(str(row["run"]), "–"))
    out.print(f"\nreport: {escape(str(folder / 'report.html'))}", soft_wrap=True)


def _print_cell(out: Console, row: dict[Any, Any], number: str) -> None:
    """A run of a comparison: number in the table, name, state and settings, and what went wrong."""
    fixed = ("run", "state", "n_episodes", "error", "traceback")
    settings = " ".join(
        f"{key}={value}" for key, value in row.items() if key not in fixed and pd.notna(value)
    )
    style = _STATE_STYLES.get(str(row["state"]), "dim")
    line = (
        f"{number:>3}  {escape(str(row['run']))} [{style}]{escape(str(row['state']))}[/] {escape(settings)}"
    )
    out.print(line, soft_wrap=True)
    if pd.isna(row["error"]):
        return
    out.print(f"     [red]{escape(str(row['error']))}[/]", soft_wrap=True)
    if pd.notna(row["traceback"]) and row["traceback"] != row["error"]:
        out.print(escape(str(row["traceback"]).rstrip()), style="dim", highlight=False, soft_wrap=True)


def print_report(run_dir: str | Path, console: Console | None = None) -> None:
    """The accuracy and coverage tables of a run whose report has been built, and where the page is.

    Raises UserError where there is no report yet.
    """
    directory = Path(run_dir)
    out = _out(console)
    if unfinished := read_status(directory).unfinished:
        out.print(
            f"[red]{escape(unfinished)}[/] Continue it with resume={escape(str(directory))}", soft_wrap=True
        )
    accuracy, paired, coverage, certificates = (
        _read(directory, name) for name in ("accuracy", "paired", "coverage", "certificates")
    )
    if len(accuracy):
        out.print(accuracy_table(accuracy, paired, out.width >= _WIDE))
        _print_positions(out, _read(directory, "baselines"), _read(directory, "positions"))
    if len(certificates):
        out.print()
        _print_certificates(out, coverage, certificates)
    _print_contrasts(out, directory, "contrasts", "contrast")
    _print_draws(out, _read(directory, "draws"))
    if (directory / "tables" / "hiddenbench.csv").exists():
        _print_published(out, _read(directory, "hiddenbench"))
    if (directory / "tables" / "members.csv").exists():
        _print_members(out, _read(directory, "members"))
    failed = int(accuracy["failed"].sum()) if len(accuracy) else 0
    if failed:
        out.print(f"[red]{failed} discussions failed[/]: counted as wrong, listed in tables/failures.csv")
    out.print(f"\nreport: {escape(str(directory / 'report.html'))}", soft_wrap=True)


def _print_certificates(out: Console, coverage: pd.DataFrame, certificates: pd.DataFrame) -> None:
    missing = certificates[certificates["mode"] == "missing"]["condition"]
    if len(certificates) > len(missing):
        out.print(coverage_table(coverage, certificates))
    for name in missing:
        out.print(f"[red]{escape(str(name))}: certificate missing[/], nothing is certified")


def accuracy_table(accuracy: pd.DataFrame, paired: pd.DataFrame, wide: bool = True) -> Table:
    """Accuracy by condition with its interval, and the paired difference to the reference; costs and regret
    beside them, the less important only if the terminal is `wide`."""
    mine = paired[paired["metric"] == "task_accuracy"] if len(paired) else paired
    changes = mine.set_index("condition").to_dict("index") if len(mine) else {}
    reference = f"− {mine['reference'].iloc[0]}" if len(mine) else ""
    columns: dict[str, Callable[[dict[Any, Any]], str]] = {
        "task accuracy": lambda row: f"[bold]{row['task_accuracy']:.2f}[/] {_span(row, 'task_accuracy')}",
        reference: lambda row: _change(changes.get(row["condition"])),
        "rounds": lambda row: _number(row["rounds"], 1),
        "regret": lambda row: _number(row["mean_regret"]),
    }
    if wide:
        columns["vote accuracy"] = lambda row: _number(row["vote_accuracy"], 2)
        columns["accepted"] = lambda row: _number(row["acceptance_rate"], 2)
    table = plain_table("Accuracy", ["condition"], list(columns))
    for row in accuracy.to_dict("records"):
        table.add_row(escape(str(row["condition"])), *(text(row) for text in columns.values()))
    notes = sorted(set(accuracy["note"].dropna()) - {""})
    table.caption = escape("; ".join(notes)) or None
    return table


def _print_positions(out: Console, baselines: pd.DataFrame, positions: pd.DataFrame) -> None:
    """What blind answers would score, and the voters' position bias where they were shown a list."""
    scores = [f"{row['baseline']} {row['task_accuracy']:.2f}" for row in baselines.to_dict("records")]
    out.print(f"answering blindly: {', '.join(scores)}", highlight=False)
    if "displayed" not in positions:
        return
    every = positions[positions["condition"] == "(all votes)"].iloc[0]
    places = range(1, 1 + sum(name.startswith("chance_") for name in positions.columns))
    shares = [f"{every[f'displayed_{i}']:.2f} ({every[f'chance_{i}']:.2f})" for i in places]
    out.print(f"votes by displayed position, without bias in brackets: {', '.join(shares)}", highlight=False)


def _print_contrasts(out: Console, folder: Path, name: str, *labels: str) -> None:
    """Paired differences in task accuracy, with what else changed; each line named by some columns."""
    contrasts = _read(folder, name)
    if not len(contrasts):
        return
    columns: dict[str, Callable[[dict[Any, Any]], str]] = {
        "difference": _change,
        "p (Holm)": lambda row: _number(row["p_holm"], 3),
        "tasks": lambda row: str(row["n_tasks"]),
    }
    if out.width >= _WIDE:
        columns["ΔJ a round"] = lambda row: _number(row["objective_change"])
        columns["norm. regret"] = lambda row: _number(row["mean_normalised_regret"])
    table = plain_table("Task accuracy, paired by task and seed", list(labels), list(columns))
    for row in contrasts.to_dict("records"):
        table.add_row(
            *(escape(str(row[label])) for label in labels), *(text(row) for text in columns.values())
        )
    out.print()
    out.print(table)
    for note in sorted(set(contrasts["note"].dropna()) - {""}):
        out.print(escape(f"warning: {note}"), highlight=False)


def _print_draws(out: Console, draws: pd.DataFrame) -> None:
    """Conditions trained on several draws of the training tasks."""
    for row in draws.to_dict("records"):
        out.print(
            f"{escape(str(row['condition']))}: {row['task_accuracy']:.3f} {_span(row, 'task_accuracy')} over "
            f"{row['draws']} draws of the training tasks; standard deviation over draws {_number(row['sd_over_draws'])}"
        )


def _print_published(out: Console, published: pd.DataFrame) -> None:
    """HiddenBench's own metrics."""
    names = ["pre", "post", "full", "integration_gain"]
    table = plain_table("As HiddenBench publishes it", ["rule"], [name.replace("_", " ") for name in names])
    for row in published.to_dict("records"):
        table.add_row(escape(str(row["rule"])), *(f"{row[name]:.2f} {_span(row, name)}" for name in names))
    out.print()
    out.print(table)


def _print_members(out: Console, members: pd.DataFrame) -> None:
    """Who did what in a group of several models."""
    columns: dict[str, Callable[[dict[Any, Any]], str]] = {
        "belief accuracy": lambda row: f"{row['belief_accuracy']:.2f} {_span(row, 'belief_accuracy')}",
        "vote accuracy": lambda row: f"{row['vote_accuracy']:.2f} {_span(row, 'vote_accuracy')}",
        "messages": lambda row: _number(row["messages"], 1),
    }
    if out.width >= _WIDE:
        columns["prompt tokens"] = lambda row: _number(row["prompt_tokens"], 0)
        columns["completion tokens"] = lambda row: _number(row["completion_tokens"], 0)
    table = plain_table("By member of the group", ["condition", "member"], list(columns))
    for row in members.to_dict("records"):
        names = (escape(str(row[name])) for name in ("condition", "member"))
        table.add_row(*names, *(text(row) for text in columns.values()))
    out.print()
    out.print(table)


def plain_table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    """A table without lines, its numbers to the right."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for heading in names:
        table.add_column(escape(heading), no_wrap=True)
    for heading in numbers:
        table.add_column(escape(heading), justify="right", no_wrap=True)
    return table


def coverage_table(coverage: pd.DataFrame, certificates: pd.DataFrame) -> Table:
    """Coverage of the thresholds by round, a row per certified condition; red outside the 99.9% band, with a
    question mark where too few families reached the round to certify it."""
    known = certificates[certificates["mode"] != "missing"]
    shown = coverage[coverage["bound"] == "threshold"] if len(coverage) else coverage
    rounds = sorted(shown["round"].unique()) if len(shown) else []
    kinds = sorted({f"{row['mode']}, 1−α = {1 - row['alpha']:g}" for row in known.to_dict("records")})
    table = plain_table(
        f"Coverage by round ({'; '.join(kinds)})", ["condition"], [*map(str, rounds), "vacuous"]
    )
    for row in known.to_dict("records"):
        mine = shown[shown["condition"] == row["condition"]].set_index("round").to_dict("index")
        cells = [_covered(mine.get(number)) for number in rounds]
        table.add_row(escape(str(row["condition"])), *cells, _number(row["vacuous"], 2))
    if len(shown) and not shown["certified"].astype(bool).all():
        table.caption, table.caption_justify = "?: too few families reached the round to certify it", "left"
    return table


def _covered(row: dict[Any, Any] | None) -> str:
    if row is None or pd.isna(row["coverage"]):
        return "–"
    text = f"{row['coverage']:.2f}" + ("" if row["certified"] else "?")
    return f"[bold red]{text}[/]" if str(row["inside"]) == "False" else text


def _change(row: dict[Any, Any] | None) -> str:
    return "" if row is None else f"{row['difference']:+.2f} {_span(row, 'difference')}"


def _span(row: dict[Any, Any], name: str) -> str:
    return escape(f"[{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]")


def _number(value: float, digits: int = 3) -> str:
    return "–" if pd.isna(value) else f"{value:.{digits}f}"


def _read(directory: Path, name: str, as_text: bool = False) -> pd.DataFrame:
    path = directory / "tables" / f"{name}.csv"
    if not path.exists():
        raise UserError(f"{path}: is missing; build the report first (scripts/report.py {directory})")
    text = path.read_text(encoding="utf-8")
    return pd.read_csv(path, dtype=str if as_text else None) if text.strip() else pd.DataFrame()


def _out(console: Console | None) -> Console:
    return console or Console()
