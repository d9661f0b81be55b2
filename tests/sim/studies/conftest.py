"""The smallest study that has every stage, composed as a user would, and one finished run of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.launch import composed
from sim.studies.verbs import run_stages

SMALL = (
    "task.count=80", "split.train=12", "split.pilot=20", "split.calibration=20", "split.test=20",
    "training.epochs=3", "progress=false", "world.horizon=4",
    "conditions=[hidden_pre,hidden_post,full_info,rules,mlp]", "certified=[rules,mlp]",
)  # fmt: skip

Config = Callable[..., dict[str, Any]]


@pytest.fixture(name="config", scope="session")
def _config() -> Config:
    def make(output: Path, *overrides: str) -> dict[str, Any]:
        return composed(*SMALL, f"output={output}", *overrides)

    return make


@pytest.fixture(name="finished", scope="session")
def _finished(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    stages = ("explore", "train", "calibrate", "evaluate")
    return run_stages(config(tmp_path_factory.mktemp("runs")), {}, stages)
