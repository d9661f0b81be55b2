"""What every sub-bench shares: repeated timing with its spread, and the row of the table it fills."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec


class Measurement(msgspec.Struct, frozen=True):
    """One line of the table: the median over repetitions, with the smallest and the largest."""

    bench: str
    what: str
    value: float
    low: float
    high: float
    unit: str
    target: str = ""


def repeated(run: Callable[[], float], repetitions: int) -> tuple[float, float, float]:
    """Median, smallest and largest of a figure measured `repetitions` times after one warm-up."""
    run()
    values = [run() for _ in range(repetitions)]
    return statistics.median(values), min(values), max(values)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def machine() -> str:
    """The machine in words."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


_WRAPPED = """
import resource, time
start = time.perf_counter()
{code}
wall = time.perf_counter() - start
try:
    with open("/proc/self/status") as lines:
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(wall, peak / 1024)
"""


def peak_memory_mb(code: str) -> tuple[float, float]:
    """Wall seconds and peak resident memory (MB) of a Python snippet in a process of its own.

    Linux's `ru_maxrss` starts at the memory of the process that made this one; VmHWM does not.
    """
    command = [sys.executable, "-c", _WRAPPED.format(code=code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall, peak = done.stdout.split()[-2:]
    return float(wall), float(peak)
