"""The report of a captain run: tables as CSV, and a page in the viewer's style that shows teams, transcripts,
reviews and costs. It is made from the records alone; recorded text is escaped, and the page runs no script.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from sim.captain.config import parse
from sim.captain.problems import Problem
from sim.captain.study import asked
from sim.captain.tables import Records, read_records, tables
from sim.errors import UserError
from sim.records.run_dir import read_config, write_text
from sim.report.page import table_content

MOST_EPISODES = 400
_STYLES = ("page.css", "discussion.css")


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
    style = _style()
    shown = records.episodes[:MOST_EPISODES]
    episodes: list[dict[str, Any]] = [
        {"row": row, "events": records.of(row.episode), "problem": problems.get(row.episode.problem)}
        for row in shown
    ]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return _template().render(
        title=title,
        notice=notice,
        policy=Markup(
            f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        ),
        style=Markup(style),
        tables={name: table_content(table) for name, table in found.items() if len(table)},
        episodes=episodes,
        left_out=len(records.episodes) - len(shown),
    )


@lru_cache(maxsize=1)
def _style() -> str:
    viewer = resources.files("sim.report") / "static"
    own = resources.files("sim.captain") / "static" / "captain.css"
    return "\n".join(
        [*((viewer / name).read_text(encoding="utf-8") for name in _STYLES), own.read_text("utf-8")]
    )


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sim.captain", "static"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = _cell
    return environment.get_template("captain.html.j2")


def _cell(value: object) -> str:
    """A table's cell as text."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
