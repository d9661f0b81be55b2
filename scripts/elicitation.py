"""How beliefs are asked of a model: agreement, cost and position bias of the three ways, on the same discussions."""

from __future__ import annotations

from sim.launch import launch
from sim.studies.elicitation_study import run_elicitation

if __name__ == "__main__":
    launch(run_elicitation, "elicitation")
