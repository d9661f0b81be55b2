"""Explore, train, calibrate, evaluate and report in one go: the main job."""

from __future__ import annotations

from functools import partial

from sim.config import parse
from sim.launch import launch
from sim.studies.verbs import run_stages

if __name__ == "__main__":
    launch(partial(run_stages, stages=("explore", "train", "calibrate", "evaluate", "report")), check=parse)
