"""Speed of the records: rows written and read back, and how long a resume takes to find its place."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from sim.bench.config import BenchConfig
from sim.bench.measure import Measurement, repeated, seconds
from sim.records.rows import BranchRow
from sim.records.store import RunStore, read_rows

_BELIEFS = [[0.123456789, 0.234567891, 0.64197532]] * 4


def _rows(count: int) -> list[BranchRow]:
    return [
        BranchRow(
            f"task-{i}", 0, "route@2/challenge@0", 2, "challenge", 0, 0, 1.0, 0.7123456, 0.2876544, _BELIEFS,
            [False] * 4,
        )
        for i in range(count)
    ]  # fmt: skip


def measure(config: BenchConfig) -> Iterator[Measurement]:
    """Rows a second written and read; seconds to resume on a million rows."""
    count = 20_000 if config.reduced else 1_000_000
    rows = _rows(count)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def write() -> float:
            (folder / "branches.jsonl").unlink(missing_ok=True)
            with RunStore(folder) as store:
                return count / seconds(lambda: store.append(rows))

        def resume() -> float:
            return seconds(lambda: RunStore(folder).close())

        value, low, high = repeated(write, 3)
        yield Measurement("records", "rows a second written", value, low, high, "1/s", "≥ 200,000")
        value, low, high = repeated(lambda: count / seconds(lambda: read_rows(folder, BranchRow)), 3)
        yield Measurement("records", "rows a second read", value, low, high, "1/s")
        value, low, high = repeated(resume, 3)
        yield Measurement("records", f"resume on {count:,} rows", value, low, high, "s")
