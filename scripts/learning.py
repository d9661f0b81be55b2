"""METHOD 8's study: every way of learning from explored branches, over repeated draws of the training tasks."""

from __future__ import annotations

from sim.launch import launch
from sim.studies.learning_study import run_learning

if __name__ == "__main__":
    launch(run_learning, "learning")
