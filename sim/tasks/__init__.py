"""Hidden-profile tasks: the task type, files, HiddenBench, generated benchmarks, and splits by family.

Knows nothing of discussions, worlds or models.
"""

from __future__ import annotations

from sim.tasks.demo import demo_task
from sim.tasks.families import family_names
from sim.tasks.files import load_recorded_tasks, load_tasks, tasks_hash, write_tasks
from sim.tasks.hiddenbench import fetch_hiddenbench, load_hiddenbench, position_baselines
from sim.tasks.methodmodel import MethodParams, generate_method, method_evidence
from sim.tasks.splits import check_disjoint, folds, halves, one_per_family, split_by_family
from sim.tasks.task import HiddenProfileTask, PublicTask
from sim.tasks.travel import generate_travel, verify_travel
from sim.tasks.travel_points import LEVELS
from sim.tasks.travel_text import read_points

__all__ = [
    "LEVELS",
    "HiddenProfileTask",
    "MethodParams",
    "PublicTask",
    "check_disjoint",
    "demo_task",
    "family_names",
    "fetch_hiddenbench",
    "folds",
    "generate_method",
    "generate_travel",
    "halves",
    "load_hiddenbench",
    "load_recorded_tasks",
    "load_tasks",
    "method_evidence",
    "one_per_family",
    "position_baselines",
    "read_points",
    "split_by_family",
    "tasks_hash",
    "verify_travel",
    "write_tasks",
]
