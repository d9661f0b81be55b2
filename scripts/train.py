"""Fit the learned controllers on the explored branches of a run: resume=<run directory>."""

from __future__ import annotations

from functools import partial

from sim.config import parse
from sim.launch import launch
from sim.studies.verbs import run_stages

if __name__ == "__main__":
    launch(partial(run_stages, stages=("train",)), check=parse)
