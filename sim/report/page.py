"""report.html: one self-contained page that shows one run or compares several. No network, no clock.

Data travel as gzip in base64 inside inert script elements; the page's script unpacks them and writes every
recorded text with textContent. A content security policy allows that script and style alone.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from math import isinf, isnan
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from sim.report.discussions import BUDGET_BYTES, SIGNALS, Chunks, discussion_chunks, pack
from sim.report.frames import Frames, opening_path
from sim.report.source import Run
from sim.report.tables import sorted_conditions

SCRIPTS = (
    "dom.js", "data.js", "charts.js", "tables.js", "overview.js", "episodes.js", "beliefs.js", "branches.js",
    "clues.js", "discussion.js", "compare.js", "main.js",
)  # fmt: skip
STYLES = ("page.css", "discussion.css")
_EPISODE_FIELDS = (
    "seed", "answer", "decision", "rounds", "messages", "words", "ending", "n_options",
)  # fmt: skip


@dataclass(frozen=True)
class PageRun:
    """One run as the page shows it: its records, frames and tables, and how it differs from the others."""

    run: Run
    frames: Frames
    tables: Mapping[str, pd.DataFrame]
    settings: Mapping[str, str]


def render_page(
    title: str, runs: Sequence[PageRun], comparison: Mapping[str, pd.DataFrame], notice: str
) -> str:
    """The whole page as text; equal records give equal pages."""
    chunks = [discussion_chunks(page_run.run, BUDGET_BYTES // len(runs)) for page_run in runs]
    index = {
        "title": title,
        "notice": notice,
        "signals": SIGNALS,
        "runs": [_run_index(page_run, part) for page_run, part in zip(runs, chunks, strict=True)],
        "comparison": {name: table_content(table) for name, table in comparison.items()},
    }
    script, style = static(SCRIPTS), static(STYLES)
    return template("sim.report", "page.html.j2").render(
        title=title,
        notice=notice,
        policy=Markup(
            f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; "
            "base-uri 'none'; form-action 'none'"
        ),
        script=Markup(script),
        style=Markup(style),
        index=pack(index),
        chunks=[(run, i, text) for run, part in enumerate(chunks) for i, text in enumerate(part.packed)],
    )


def table_content(table: pd.DataFrame) -> dict[str, Any]:
    """Columns and rows of a table; missing cells are null, infinities are texts."""
    return {
        "columns": list(table.columns),
        "rows": [[_cell(value) for value in row] for row in table.astype(object).to_numpy().tolist()],
    }


def _cell(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if isnan(value):
        return None
    return ("inf" if value > 0 else "-inf") if isinf(value) else float(f"{value:.6g}")


def _run_index(page_run: PageRun, chunks: Chunks) -> dict[str, Any]:
    run = page_run.run
    unfinished = run.status.unfinished
    return {
        "name": run.name,
        "unfinished": unfinished,
        "traceback": run.status.traceback if unfinished else "",
        "settings": page_run.settings,
        "provenance": run.provenance,
        "curves": run.curves,
        "openings": {c: p for c in _conditions(page_run) if (p := opening_path(c))},
        "tables": {name: table_content(table) for name, table in page_run.tables.items()},
        "episodes": _episode_columns(page_run, chunks),
    }


def _conditions(page_run: PageRun) -> list[str]:
    return sorted_conditions(page_run.frames.episodes["condition"])


def _episode_columns(page_run: PageRun, chunks: Chunks) -> dict[str, Any]:
    """The evaluation's episodes column by column: what the list shows, sorts and filters by."""
    frames = page_run.frames
    key = ["condition", "task", "seed"]
    decided = frames.decisions.groupby(key, sort=False)
    sums = decided.agg(regret=("regret", "mean"), replaced=("replaced", "sum")).reset_index()
    conditions = _conditions(page_run)
    table = frames.episodes.merge(sums, on=key, how="left")
    table = table.sort_values("condition", key=lambda c: c.map(conditions.index), kind="stable")
    names = {task: task_text.name for task, task_text in page_run.run.tasks.items()}
    tasks = sorted(set(table["task"]))
    return {
        "conditions": conditions,
        "tasks": tasks,
        "names": [names.get(task, task) for task in tasks],
        "chunks": [chunks.chunk_of.get(task) for task in tasks],
        "condition": [conditions.index(name) for name in table["condition"]],
        "task": pd.Categorical(table["task"], tasks).codes.tolist(),
        **{field: table[field].tolist() for field in _EPISODE_FIELDS},
        "correct": table["correct"].astype(int).tolist(),
        "regret": [_cell(round(value, 4)) for value in table["regret"]],
        "replaced": table["replaced"].fillna(0).astype(int).tolist(),
    }


@lru_cache(maxsize=2)
def template(package: str, name: str) -> jinja2.Template:
    """A page's template among a package's static files; what is filled in is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, "static"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


@lru_cache(maxsize=4)
def static(names: tuple[str, ...], package: str = "sim.report") -> str:
    """A package's own scripts or styles, one after the other."""
    folder = resources.files(package) / "static"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def digest(text: str) -> str:
    """What a content security policy calls a script or style by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
