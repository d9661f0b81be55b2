"""METHOD 4's stress world: modes keep their promise, naive calibration is rejected, figures reproduced."""

from __future__ import annotations

import math

import numpy as np
import pytest

from conformal.bands import Side
from conformal.stress import MODES, Design, StressRow, bonferroni, simultaneous, stress
from conformal.toy import ToyWorld

LEVEL = 1e-3

TABLE = {
    (2.5, 99): {
        "roundwise": (0.900, 0.868, 0.843, 0.825, 0.807, 0.794, 0.782, 0.775),
        "audit": (0.901, 0.905, 0.904, 0.907, 0.907, 0.906, 0.907, 0.907),
        "sequential": (0.900, 0.903, 0.903, 0.904, 0.904, 0.909, 0.905, 0.906),
        "lockstep": (0.898, 0.901, 0.900, 0.898, 0.898, 0.897, 0.899, 0.897),
        "pilot": (0.899, 0.904, 0.903, 0.906, 0.905, 0.905, 0.906, 0.905),
        "pilot, stated bound": (0.916, 0.921, 0.921, 0.922, 0.922, 0.922, 0.924, 0.926),
    },
    (0.4, 99): {
        "roundwise": (0.899, 0.927, 0.943, 0.952, 0.960, 0.965, 0.968, 0.973),
        "pilot": (0.900, 0.905, 0.904, 0.906, 0.904, 0.908, 0.907, 0.907),
    },
    (2.5, 29): {
        "sequential": (0.902, 0.925, 0.923, 0.921, 0.917, 0.915, 0.918, 0.925),
        "lockstep": (0.902, 0.917, 0.911, 0.904, 0.895, 0.894, 0.894, 0.899),
    },
}
TARGET = {
    99: (0.900, 0.905, 0.905, 0.905, 0.906, 0.906, 0.906, 0.907),
    29: (0.900, 0.923, 0.924, 0.920, 0.916, 0.915, 0.918, 0.923),
}


def standard_error(row: StressRow) -> float:
    """Largest Monte Carlo error of a coverage over the rounds, from the spread of replicates."""
    shares = row.hits / np.maximum(row.tests, 1)
    return float(shares.std(0).max()) / math.sqrt(len(shares))


def rows(factor: float, n: int, replicates: int, seed: int) -> dict[str, StressRow]:
    """All rows of one stress world that METHOD's table holds."""
    rng = np.random.default_rng(seed)
    design = Design(ToyWorld(factor), replicates, n)
    wanted = {mode.split(",")[0] for mode in TABLE[factor, n]}
    return {row.mode: row for mode in MODES if mode in wanted for row in stress(mode, design, rng)}


def rejected(row: StressRow, side: Side = "two-sided") -> bool:
    """Whether any round's hits contradict the exact law at 1e-3 over all rounds (Bonferroni)."""
    rounds = row.hits.shape[1]
    return bool(min(row.count(t, side).p_value for t in range(1, rounds + 1)) < LEVEL / rounds)


def check_table(factor: float, n: int, found: dict[str, StressRow], published_error: float) -> None:
    """Coverage by round within 4.5 joint Monte Carlo errors (and rounding) of METHOD's."""
    for mode, expected in TABLE[factor, n].items():
        error = np.hypot(standard_error(found[mode]), published_error)
        assert found[mode].coverage == pytest.approx(np.array(expected), abs=4.5 * error + 5e-4), mode
        assert found[mode].target == pytest.approx(np.array(TARGET[n]), abs=2e-3)


@pytest.mark.parametrize(("factor", "n"), TABLE)
def test_rows_of_the_table_at_reduced_size(factor: float, n: int) -> None:
    found = rows(factor, n, replicates=400, seed=4)
    check_table(factor, n, found, published_error=0.0016)
    assert all(row.exceeded == 0 for row in found.values())
    for mode in found.keys() & {"audit", "sequential", "pilot"}:
        assert not rejected(found[mode]), mode


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "n"), TABLE)
def test_rows_of_the_table_in_full(factor: float, n: int) -> None:
    found = rows(factor, n, replicates=2000 if n == 99 else 4000, seed=40)
    check_table(factor, n, found, published_error=0.0016)
    for mode in found.keys() & {"audit", "sequential", "pilot"}:
        assert not rejected(found[mode]), mode


def test_naive_calibration_is_rejected_with_twenty_replicates() -> None:
    rng = np.random.default_rng(20)
    design = Design(ToyWorld(2.5), replicates=20, n=99, n_test=500)
    (naive,) = stress("roundwise", design, rng)
    assert rejected(naive, "below")
    for mode in ("audit", "sequential", "pilot"):
        assert not any(rejected(row, "below") for row in stress(mode, design, rng)), mode


def test_lockstep_is_only_approximate() -> None:
    (row,) = stress("lockstep", Design(ToyWorld(2.5), 4000, 29), np.random.default_rng(29))
    assert rejected(row)
    assert row.coverage == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize("factor", [2.5, 0.4])
def test_base_policy_fold_covers_the_gated_policy_simultaneously(factor: float) -> None:
    design = Design(ToyWorld(factor), replicates=600)
    rng = np.random.default_rng(7)
    found = simultaneous(design, rng)
    assert found.p_value > LEVEL
    assert found.mean == pytest.approx(0.9 * 600 * 50)
    assert 0.93 < bonferroni(design, rng) <= 1


def test_roundwise_thresholds_leave_a_violation_in_a_third_of_episodes() -> None:
    (naive,) = stress("roundwise", Design(ToyWorld(2.5), 600), np.random.default_rng(8))
    assert 1 - naive.kept == pytest.approx(0.334, abs=0.02)
