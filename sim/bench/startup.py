"""Start-up: nothing heavy is loaded before it is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sim.bench.config import BenchConfig
from sim.bench.measure import Measurement, repeated, seconds

_SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"


def measure(config: BenchConfig) -> Iterator[Measurement]:
    """Seconds to import what a pipeline starts with, beyond Python itself, and to print its help."""
    commands = {
        "import of all that a pipeline starts with": (
            [sys.executable, "-c", "import sim.studies.verbs"],
            "< 0.5",
        ),
        "scripts/pipeline.py --help": ([sys.executable, str(_SCRIPTS / "pipeline.py"), "--help"], "< 1"),
    }
    empty = repeated(lambda: _run([sys.executable, "-c", "pass"]), 3)[0]
    for what, (command, target) in commands.items():
        value, low, high = repeated(lambda command=command: _run(command), 2 if config.reduced else 5)  # type: ignore[misc]
        shift = empty if "import" in what else 0.0
        yield Measurement("startup", what, value - shift, low - shift, high - shift, "s", target)


def _run(command: list[str]) -> float:
    return seconds(lambda: subprocess.run(command, check=True, capture_output=True))
