"""The report of a large run: how long it takes to build, and how large the page is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from sim.bench.config import BenchConfig
from sim.bench.measure import Measurement, repeated, seconds
from sim.launch import composed
from sim.report.build import build_report
from sim.studies.verbs import run_stages


def measure(config: BenchConfig) -> Iterator[Measurement]:
    """Seconds to build tables, figures and page, and megabytes of the page, for 5,000 discussions."""
    tasks = 250 if config.reduced else 2_500
    with tempfile.TemporaryDirectory() as output:
        data = composed(
            f"task.count={tasks}", f"split={{train: 0, pilot: 0, calibration: 0, test: {tasks}}}",
            "conditions=[hidden_post,rules]", "certified=[]", "progress=false", f"output={output}",
        )  # fmt: skip
        run = run_stages(data, {}, ("evaluate",))
        what = f"report of {2 * tasks:,} discussions with every branch"
        value, low, high = repeated(lambda: seconds(lambda: build_report(run)), 2 if config.reduced else 3)
        yield Measurement("viewer", f"{what}, build", value, low, high, "s")
        size = (Path(run) / "report.html").stat().st_size / 1e6
        yield Measurement("viewer", f"{what}, page", size, size, size, "MB")
