"""Making a report: tables, figures and the page of one run, or of several side by side. All files are written
whole or not at all; equal records give equal files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from sim.errors import UserError
from sim.records.run_dir import ARMS, CONFIG, read_config, write_text
from sim.report import contrasts, coverage, tables
from sim.report.across import across
from sim.report.figures import FIGURES, save_figure
from sim.report.frames import Frames, make_frames
from sim.report.hiddenbench import hiddenbench
from sim.report.learners import families_of, learners
from sim.report.page import PageRun, render_page
from sim.report.seats import seat_tables
from sim.report.source import Curves, Run, Status, read_run, read_status

UNREADABLE = "unreadable"
_NOT_SETTINGS = ("notice", "output", "resume", "progress", "conditions")
_NOT_SETTINGS_BELOW = ("contrasts.", "variants.")


@dataclass(frozen=True)
class ReportPaths:
    """Where a report was written; tables and figures by name. A figure with nothing to show is absent."""

    directory: Path
    tables: Mapping[str, Path]
    figures: Mapping[str, Path]
    page: Path


def report_tables(run: Run, frames: Frames) -> dict[str, pd.DataFrame]:
    """Every table of a run by name; each stands in tables/<name>.csv."""
    evaluation = frames.evaluation()
    accuracy = tables.accuracy(evaluation)
    pairs = run.config.get("contrasts") or {}
    taught = learners(run.cards, evaluation)
    return {
        "accuracy": accuracy,
        "paired": tables.paired(evaluation, str(run.config.get("reference", tables.REFERENCE))),
        "gates": tables.gates(evaluation),
        "coverage": coverage.coverage(frames, run.certificates),
        "certificates": coverage.certificates_table(frames, run.certificates),
        "regret_by_round": tables.regret_by_round(evaluation),
        "baselines": tables.position_baselines(evaluation),
        "positions": tables.positions(evaluation),
        "failures": tables.failures(frames),
        "contrasts": contrasts.contrasts(evaluation, pairs, families_of(taught)),
        "draws": contrasts.draws(evaluation),
        "learners": taught,
        "power": contrasts.power(evaluation, pairs),
        "efficiency": contrasts.efficiency(accuracy),
        **seat_tables(run),
        **_published(run, evaluation),
    }


def _published(run: Run, evaluation: Frames) -> dict[str, pd.DataFrame]:
    """HiddenBench's table, for runs that decide as it does."""
    return {"hiddenbench": hiddenbench(evaluation)} if run.config.get("decision") == "strict_majority" else {}


def build_report(run_dir: str | Path) -> ReportPaths:
    """Write tables/*.csv, figures/*.png and report.html into a run directory, from its records alone.

    Raises UserError naming the file that cannot be read or written.
    """
    return _write_run(_page_run(read_run(run_dir)))


def _write_run(page_run: PageRun) -> ReportPaths:
    directory, run = page_run.run.directory, page_run.run
    written = _write_tables(directory / "tables", page_run.tables)
    figures = _write_figures(directory / "figures", page_run.tables, run.curves)
    notice = str(run.config.get("notice") or "")
    write_text(directory / "report.html", render_page(run.name, [page_run], {}, notice))
    return ReportPaths(directory, written, figures, directory / "report.html")


def compare(run_dirs: Sequence[str | Path], output: str | Path) -> ReportPaths:
    """Write one report over several runs (the cells of a sweep): a column per run, failed cells listed.

    Raises UserError where no run can be read or the output cannot be written.
    """
    return _write_comparison(*_readable([Path(path) for path in run_dirs]), Path(output))


def _write_comparison(
    page_runs: Sequence[PageRun], broken: Mapping[str, Status], directory: Path
) -> ReportPaths:
    if not page_runs:
        errors = "; ".join(status.error for status in broken.values())
        raise UserError(f"no run can be read; give run directories ({errors or 'none was given'})")
    runs = [page_run.run for page_run in page_runs]
    settings = differing_settings({run.name: run.config for run in runs})
    page_runs = [replace(page_run, settings=settings[page_run.run.name]) for page_run in page_runs]
    comparison = comparison_tables(page_runs, broken)
    written = _write_tables(directory / "tables", comparison)
    notice = " · ".join(dict.fromkeys(n for run in runs if (n := str(run.config.get("notice") or ""))))
    write_text(directory / "report.html", render_page("Comparison", page_runs, comparison, notice))
    return ReportPaths(directory, written, {}, directory / "report.html")


def report_arms(directory: str | Path) -> ReportPaths:
    """Write the report of every arm of a study into the arm, and that across them into the study's directory.

    Raises UserError naming an arm that cannot be read.
    """
    page_runs, broken = _readable(arm_directories(directory))
    for status in broken.values():
        raise UserError(status.error)
    for page_run in page_runs:
        _write_run(page_run)
    return _write_comparison(page_runs, broken, Path(directory))


def arm_directories(directory: str | Path) -> list[Path]:
    """The runs that are the arms of a study, in its order; none for an ordinary run."""
    path = Path(directory)
    arms = read_config(path).get("arms") if (path / CONFIG).exists() else None
    return [path / ARMS / name for name in arms or ()]


def comparison_tables(runs: Sequence[PageRun], broken: Mapping[str, Status]) -> dict[str, pd.DataFrame]:
    """`cells`: every run with its state, settings and traceback; one wide table per accuracy, a column per
    run; `summary`: means over runs, and how many runs reach their own full_info; and those of `across`."""
    return {
        "cells": _cells(runs, broken),
        "task_accuracy": _wide(runs, "task_accuracy"),
        "vote_accuracy": _wide(runs, "vote_accuracy"),
        "summary": _summary(runs),
        **across(runs),
    }


def run_names(directories: Sequence[Path]) -> list[str]:
    """A short name for each directory: its own, with its parent's where that is not enough."""
    short = [path.resolve().name for path in directories]
    return [
        name if short.count(name) == 1 else "/".join(path.resolve().parts[-2:])
        for name, path in zip(short, directories, strict=True)
    ]


def differing_settings(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """For each run, the flat config entries in which the runs differ."""
    flat = {
        name: {
            key: value
            for key, value in _flatten(config)
            if key not in _NOT_SETTINGS and not key.startswith(_NOT_SETTINGS_BELOW)
        }
        for name, config in configs.items()
    }
    keys = sorted({key for entries in flat.values() for key in entries})
    differ = [key for key in keys if len({entries.get(key, "") for entries in flat.values()}) > 1]
    return {name: {key: entries.get(key, "") for key in differ} for name, entries in flat.items()}


def _flatten(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in config.items():
        name = f"{prefix}{key}"
        found += _flatten(value, f"{name}.") if isinstance(value, Mapping) else [(name, str(value))]
    return found


def _page_run(run: Run) -> PageRun:
    frames = make_frames(run)
    return PageRun(run, frames.evaluation(), report_tables(run, frames), {})


def _readable(directories: Sequence[Path]) -> tuple[list[PageRun], dict[str, Status]]:
    """The runs that can be read, and what is wrong with the others; one bad cell does not hide the rest."""
    runs: list[PageRun] = []
    broken: dict[str, Status] = {}
    for name, path in zip(run_names(directories), directories, strict=True):
        try:
            runs.append(_page_run(read_run(path, name)))
        except ValueError as error:
            broken[name] = Status(UNREADABLE, error=str(error))
    return runs, broken


def _cells(runs: Sequence[PageRun], broken: Mapping[str, Status]) -> pd.DataFrame:
    rows: list[dict[str, object]] = [
        {
            "run": page_run.run.name,
            "state": read_status(page_run.run.directory).state,
            "n_episodes": len(page_run.frames.episodes),
            **page_run.settings,
            "error": page_run.run.status.error,
            "traceback": page_run.run.status.traceback,
        }
        for page_run in runs
    ]
    rows += [
        {"run": name, "state": status.state, "error": status.error, "traceback": status.error}
        for name, status in broken.items()
    ]
    return pd.DataFrame(rows)


def _wide(runs: Sequence[PageRun], metric: str) -> pd.DataFrame:
    """A metric with a row per condition and a column per run."""
    columns = {
        page_run.run.name: table.set_index("condition")[metric]
        for page_run in runs
        if len(table := page_run.tables["accuracy"])
    }
    names = tables.sorted_conditions(name for column in columns.values() for name in column.index)
    wide = pd.DataFrame(columns).reindex(names)
    return wide.rename_axis("condition").reset_index()


def _summary(runs: Sequence[PageRun]) -> pd.DataFrame:
    wide = _wide(runs, "task_accuracy").set_index("condition")
    reached = (
        (wide >= wide.loc[tables.FULL]).sum(axis=1) if tables.FULL in wide.index else pd.Series(0, wide.index)
    )
    summary = pd.DataFrame(
        {
            "runs": wide.notna().sum(axis=1),
            "task_accuracy": wide.mean(axis=1),
            "models_at_or_above_full_info": reached,
        }
    )
    return summary.reset_index()


def _write_tables(folder: Path, content: Mapping[str, pd.DataFrame]) -> dict[str, Path]:
    paths = {name: folder / f"{name}.csv" for name in content}
    _make(folder)
    for name, table in content.items():
        write_text(paths[name], table.to_csv(index=False, lineterminator="\n") if len(table.columns) else "")
    return paths


def _write_figures(folder: Path, content: Mapping[str, pd.DataFrame], curves: Curves) -> dict[str, Path]:
    drawn = {name: figure for name, make in FIGURES.items() if (figure := make(content, curves)) is not None}
    _make(folder)
    for name, figure in drawn.items():
        draft = folder / f"{name}.png.partial"
        try:
            save_figure(figure, draft)
            draft.replace(folder / f"{name}.png")
        except OSError as error:
            raise UserError(f"{draft}: {error.strerror}; free some space or make it writable") from error
    return {name: folder / f"{name}.png" for name in drawn}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; choose a writable folder") from error
