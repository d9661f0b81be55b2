"""The report of a captain run: tables as CSV, and a page in the viewer's style that shows teams, transcripts,
reviews and costs. It is made from the records alone; recorded text is escaped, and the page runs no script.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from sim.captain.config import parse
from sim.captain.problems import Problem
from sim.captain.study import asked
from sim.captain.tables import Records, read_records, tables
from sim.errors import UserError
from sim.records.run_dir import read_config, write_text
from sim.report.page import STYLES, digest, static, table_content, template

MOST_EPISODES = 400


def build_captain_report(directory: Path) -> Path:
    """Write tables/*.csv and report.html into a run directory; returns the page.

    Raises UserError naming what cannot be read or written.
    """
    config, problems = asked(parse(read_config(directory)))
    records = read_records(directory)
    if not records.episodes:
        raise UserError(f"{directory}: no finished episode is recorded; run or resume it first")
    found = tables(records, {problem.id: problem.tags for problem in problems}, config.reference)
    try:
        (directory / "tables").mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory / 'tables'}: {error.strerror}; make it writable") from error
    for name, table in found.items():
        write_text(directory / "tables" / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))
    page = directory / "report.html"
    write_text(
        page, render_page(config.name, config.notice, records, found, {one.id: one for one in problems})
    )
    return page


def render_page(
    title: str,
    notice: str,
    records: Records,
    found: dict[str, pd.DataFrame],
    problems: dict[str, Problem],
) -> str:
    """The whole page as text; equal records give equal pages."""
    style = "\n".join((static(STYLES), static(("captain.css",), "sim.captain")))
    shown = records.episodes[:MOST_EPISODES]
    episodes: list[dict[str, Any]] = [
        {"row": row, "events": records.of(row.episode), "problem": problems.get(row.episode.problem)}
        for row in shown
    ]
    return template("sim.captain", "captain.html.j2").render(
        title=title,
        notice=notice,
        policy=Markup(
            f"default-src 'none'; style-src '{digest(style)}'; base-uri 'none'; form-action 'none'"
        ),
        style=Markup(style),
        tables={name: table_content(table) for name, table in found.items() if len(table)},
        episodes=episodes,
        cell=cell,
        left_out=len(records.episodes) - len(shown),
    )


def cell(value: object) -> str:
    """A table's cell as text."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
