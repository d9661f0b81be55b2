"""The bench as a verb: chosen sub-benches, one table in the terminal, and the same as JSON and Markdown."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from sim.bench.config import BENCHES, BenchConfig
from sim.bench.measure import Measurement, machine
from sim.parsing import typed
from sim.records.run_dir import write_text


def run_bench(data: Mapping[str, Any], overridden: Mapping[str, Any]) -> None:
    """Measure, print the table as it grows, and write bench.json and bench.md anew after every sub-bench, so that
    one that cannot run (without vLLM, say) loses none of the others."""
    config = typed(data, BenchConfig, "config")
    console = Console()
    found: list[Measurement] = []
    console.print(machine())
    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    for name in config.only or BENCHES:
        with console.status(f"measuring {name}"):
            for measurement in importlib.import_module(f"sim.bench.{name}").measure(config):
                found.append(measurement)
                console.print(_line(measurement))
        _write(folder, found)
    console.print(_table(found))


def _write(folder: Path, found: list[Measurement]) -> None:
    content = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "measurements": found}
    write_text(folder / "bench.json", msgspec.json.format(msgspec.json.encode(content)).decode() + "\n")
    write_text(folder / "bench.md", _markdown(found))


def _line(m: Measurement) -> str:
    return f"{m.bench}: {m.what}: {_number(m.value)} {m.unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _cells(m: Measurement) -> tuple[str, ...]:
    return m.bench, m.what, _number(m.value), f"{_number(m.low)}-{_number(m.high)}", m.unit, m.target


def _table(found: list[Measurement]) -> Table:
    table = Table("bench", "what", "median", "range", "unit", "target")
    for measurement in found:
        table.add_row(*_cells(measurement))
    return table


def _markdown(found: list[Measurement]) -> str:
    lines = ["| bench | what | median | range | unit | target |", "|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(_cells(measurement)) + " |" for measurement in found]
    return f"Measured on {machine()}.\n\n" + "\n".join(lines) + "\n"
