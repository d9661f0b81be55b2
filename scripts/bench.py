"""The performance table: one command, ratios measured in one run."""

from __future__ import annotations

from sim.bench.table import run_bench
from sim.launch import launch

if __name__ == "__main__":
    launch(run_bench, "bench")
