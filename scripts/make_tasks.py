"""Write the tasks of a configuration to a file: task=travel_hard task.count=50 output=tasks.json."""

from __future__ import annotations

from sim.launch import launch
from sim.studies.verbs import write_task_file

if __name__ == "__main__":
    launch(write_task_file)
