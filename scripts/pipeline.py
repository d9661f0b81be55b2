"""Explore, train, calibrate, evaluate and report in one go: the main job."""

from __future__ import annotations

from functools import partial

from sim.launch import launch
from sim.studies.verbs import check_study, run_stages

if __name__ == "__main__":
    stages = ("explore", "train", "calibrate", "evaluate", "report")
    launch(partial(run_stages, stages=stages), check=partial(check_study, stages=stages))
