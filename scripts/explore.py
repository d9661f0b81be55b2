"""Evaluate every branch along uniform paths of the training tasks."""

from __future__ import annotations

from functools import partial

from sim.launch import launch
from sim.studies.verbs import check_study, run_stages

if __name__ == "__main__":
    stages = ("explore",)
    launch(partial(run_stages, stages=stages), check=partial(check_study, stages=stages))
