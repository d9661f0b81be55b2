"""Calibrate the gate of every certified condition."""

from __future__ import annotations

from functools import partial

from sim.launch import launch
from sim.studies.verbs import check_study, run_stages

if __name__ == "__main__":
    stages = ("calibrate",)
    launch(partial(run_stages, stages=stages), check=partial(check_study, stages=stages))
