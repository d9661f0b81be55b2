"""Team building: one problem from the command line, or a study of methods, ablations and speaker policies."""

from __future__ import annotations

from sim.captain.study import check, run_captain
from sim.launch import launch

if __name__ == "__main__":
    launch(run_captain, "captain", check)
