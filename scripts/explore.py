"""Evaluate every branch along uniform paths of the training tasks."""

from __future__ import annotations

from functools import partial

from sim.config import parse
from sim.launch import launch
from sim.studies.verbs import run_stages

if __name__ == "__main__":
    launch(partial(run_stages, stages=("explore",)), check=parse)
