"""The committed studies refuse what they cannot run with, in one line, before a run directory is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.errors import UserError
from sim.launch import composed
from sim.studies.certificate_study import run_certificates
from sim.studies.elicitation_study import run_elicitation
from sim.studies.learning_study import run_learning

VERBS: dict[str, Callable[[Any, Any], object]] = {
    "certificates": run_certificates,
    "learning": run_learning,
    "elicitation": run_elicitation,
}
WRONG = [
    ("certificates", "alpha=2", "alpha is 2.0; give a level"),
    ("certificates", "alpha=0", "alpha is 0.0; give a level"),
    ("certificates", "alpha=-1", "alpha is -1.0; give a level"),
    ("certificates", "alpha=nan", "alpha is nan; give a level"),
    ("certificates", "alpha=text", "alpha: Expected `float`, got `str` 'text'"),
    ("certificates", "stress_factors=[-1]", r"stress_factors is \[-1.0\]; give numbers from 0"),
    ("certificates", "stress_replicates=0", "stress_replicates is 0; it must be at least 1"),
    ("certificates", "screened_rounds=[0]", r"screened_rounds is \[0\]; rounds are counted from 1"),
    ("certificates", "screened_replicates=-1", "screened_replicates is -1; it must be at least 1"),
    ("certificates", "screened_n=0", "screened_n is 0; it must be at least 1"),
    ("learning", "task.count=5", "task.count is 5; the pool must be larger than families = 5"),
    ("learning", "seed=-1", "seed is -1; a seed is a whole number from 0"),
    ("learning", "task.seed=-1", "task.seed is -1; a seed is a whole number from 0"),
    ("learning", "training.seed=-1", "training.seed is -1; a seed is a whole number from 0"),
    ("learning", "all_task_networks=-1", "all_task_networks is -1; give 0 or more"),
    ("elicitation", "seed=-1", "seed is -1; a seed is a whole number from 0"),
    ("elicitation", "model.tensor_parallel=0", "model.tensor_parallel is 0; it must be at least 1"),
    ("elicitation", "model.active_billions=0", "model.active_billions is 0.0; give a positive number"),
    ("elicitation", "model.sampling.top_k=-2", "model.sampling.top_k is -2; give at least 1"),
    ("elicitation", "model.sampling.min_p=2", r"model.sampling.min_p is 2.0; it must lie in \[0, 1\]"),
    ("elicitation", "model.sampling.repetition_penalty=0", "repetition_penalty is 0.0; it must be positive"),
]


@pytest.mark.parametrize(("script", "override", "words"), WRONG)
def test_a_wrong_number_is_refused_before_a_directory_is_made(
    script: str, override: str, words: str, tmp_path: Path
) -> None:
    data = composed(override, f"output={tmp_path / 'runs'}", config_name=script)
    with pytest.raises(UserError, match=words):
        VERBS[script](data, {})
    assert list(tmp_path.iterdir()) == []
