"""Conformal-set sampling: dice of the discussion's own, draws inside the set, certificates behind that very gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from sim.errors import UserError
from sim.launch import composed
from sim.records.rows import DecisionRow
from sim.records.store import read_rows
from sim.studies.stages import read_thresholds
from sim.studies.verbs import run_stages

SMALL = (
    "task=method", "task.count=420", "world.novelty=drawn", "split.train=0", "split.pilot=100",
    "split.calibration=100", "split.test=200", "progress=false", "world.horizon=3", "record=decisions",
    "conditions=[noisy_rules,sampled]", "certified=[noisy_rules,sampled]",
    "+variants.sampled={controller:noisy_rules,gate:sample}", "conformal.alpha=0.2",
)  # fmt: skip

Config = Callable[..., dict[str, Any]]


@pytest.fixture(name="config", scope="module")
def _config() -> Config:
    def make(output: Path, *overrides: str) -> dict[str, Any]:
        return composed(*SMALL, f"output={output}", *overrides)

    return make


@pytest.fixture(name="run", scope="module")
def _run(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_stages(config(tmp_path_factory.mktemp("gates")), {}, ("calibrate", "evaluate"))


def decisions(run: Path, condition: str, stage: str = "evaluate") -> list[DecisionRow]:
    return [row for row in read_rows(run, DecisionRow) if (row.stage, row.condition) == (stage, condition)]


def test_every_draw_lies_in_the_set_and_is_uniform_over_it(run: Path) -> None:
    rows = decisions(run, "sampled+gate")
    assert all(row.admissible_set[row.executed] for row in rows)
    places = Counter[tuple[int, int]]()
    for row in rows:
        members = [column for column, inside in enumerate(row.admissible_set) if inside]
        places[len(members), members.index(row.executed)] += 1
    for size in (2, 3):
        counts = [places[size, place] for place in range(size)]
        assert sum(counts) > 50
        assert stats.chisquare(counts).pvalue > 1e-3
    assert sum(row.executed != row.proposal for row in rows if row.admissible_set[row.proposal]) > 50


def test_draws_do_not_depend_on_the_batch(run: Path, config: Config, tmp_path: Path) -> None:
    other = run_stages(config(tmp_path, "world.batch=17"), {}, ("calibrate", "evaluate"))
    executed = {
        path: {(row.task, row.round): row.executed for row in decisions(path, "sampled+gate")}
        for path in (run, other)
    }
    assert executed[run] == executed[other]


def test_certificates_are_made_behind_the_gate_that_is_deployed(run: Path) -> None:
    """The certification fold of the sampled condition executed draws, and its policy is another one."""
    rows = decisions(run, "sampled", stage="calibrate")
    assert any(row.executed != row.proposal and row.admissible_set[row.proposal] for row in rows)
    plain = decisions(run, "noisy_rules", stage="calibrate")
    assert not any(row.executed != row.proposal and row.admissible_set[row.proposal] for row in plain)
    found = read_thresholds(run)
    assert found["sampled"].policy["gate"] == '"sample"'
    assert "gate" not in found["noisy_rules"].policy
    np.testing.assert_array_equal(found["sampled"].acceptance, found["noisy_rules"].acceptance)


def test_executed_regret_stays_within_what_the_gate_accepts_at(run: Path) -> None:
    for row in decisions(run, "sampled+gate"):
        regret = row.regrets[row.executed]
        assert regret is not None
        assert row.threshold is None or regret <= row.threshold


@pytest.mark.parametrize("mode", ["trajectory", "audit", "lockstep"])
def test_modes_without_a_guarantee_for_draws_are_refused(mode: str, config: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'sampled' has gate 'sample' with conformal\.mode"):
        run_stages(config(tmp_path / "runs", f"conformal.mode={mode}"), {}, ("calibrate", "evaluate"))
    assert not (tmp_path / "runs").exists()


def test_halves_calibrate_each_other(config: Config, tmp_path: Path) -> None:
    """Swapped folds: what calibrated now tests, and the other way round (METHOD 8 on HiddenBench)."""
    sizes = ("conditions=[noisy_rules]", "certified=[noisy_rules]", "conformal=trajectory", "task.count=30")
    split = ("split.pilot=0", "split.train=4", "split.calibration=0.5", "split.test=0.5")
    folds = {}
    for swap in ("false", "true"):
        overrides = (*sizes, *split, f"split.swap={swap}")
        run = run_stages(config(tmp_path / swap, *overrides), {}, ("calibrate", "evaluate"))
        folds[swap] = {
            stage: {row.task for row in read_rows(run, DecisionRow) if row.stage == stage}
            for stage in ("calibrate", "evaluate")
        }
    assert folds["false"]["calibrate"] == folds["true"]["evaluate"]
    assert folds["false"]["evaluate"] == folds["true"]["calibrate"]
    assert not folds["false"]["calibrate"] & folds["false"]["evaluate"]
