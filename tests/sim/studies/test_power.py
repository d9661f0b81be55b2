"""The power calculator against simulation, and its inverses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sim.errors import UserError
from sim.studies.power import (
    detectable_gap,
    power,
    power_table,
    standard_error,
    tasks_needed,
    variance_components,
)


@pytest.mark.parametrize(("gap", "tasks", "seeds"), [(0.1, 20, 4), (0.05, 60, 2), (0.0, 12, 3)])
def test_power_is_what_a_simulation_shows(gap: float, tasks: int, seeds: int) -> None:
    between, within, replicates = 0.12, 0.3, 8000
    rng = np.random.default_rng(1)
    means = gap + between * rng.standard_normal((replicates, tasks))
    means += within * rng.standard_normal((replicates, tasks, seeds)).mean(2)
    seen = np.mean(np.asarray(stats.ttest_1samp(means, 0.0, axis=1).pvalue) < 0.05)
    expected = power(gap, tasks, seeds, between, within)
    assert abs(seen - expected) < 3.3 * np.sqrt(expected * (1 - expected) / replicates)


def test_inverses_agree() -> None:
    needed = tasks_needed(0.05, 5, 0.1, 0.4)
    assert power(0.05, needed, 5, 0.1, 0.4) >= 0.8 > power(0.05, needed - 1, 5, 0.1, 0.4)
    gap = detectable_gap(60, 5, 0.1, 0.4, wanted=0.9)
    assert power(gap, 60, 5, 0.1, 0.4) == pytest.approx(0.9, abs=1e-6)


@pytest.mark.parametrize("tasks", [2, 20, 100_000])
def test_power_is_defined_for_every_gap(tasks: int) -> None:
    found = np.array([power(gap, tasks, 1, 0.1, 0.0) for gap in (0.0, 1e-6, 0.1, 1.0, 10.0, 1e3)])
    assert (np.diff(found) >= 0).all()
    assert found[0] == pytest.approx(0.05)
    assert found[-1] == pytest.approx(1.0)


def test_seeds_do_not_replace_tasks() -> None:
    table = power_table(0.05, [20, 60], [1, 1000], 0.2, 0.2)
    by_size = {(row["tasks"], row["seeds"]): row["power"] for row in table}
    assert by_size[20, 1000] < by_size[60, 1]
    assert standard_error(10, 10**9, 0.2, 1.0) == pytest.approx(0.2 / np.sqrt(10), rel=1e-6)


def test_variance_components_are_recovered() -> None:
    rng = np.random.default_rng(2)
    counts = rng.integers(2, 8, 4000)
    task = np.repeat(np.arange(4000), counts)
    difference = np.repeat(rng.normal(0, 0.3, 4000), counts) + rng.normal(0, 0.5, len(task))
    between, within = variance_components(difference, task)
    assert (between, within) == pytest.approx((0.3, 0.5), abs=0.015)
    assert variance_components([1.0, -1.0, 1.0, -1.0], [0, 0, 1, 1])[0] == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tasks_needed(0.0, 1, 0.1, 0.1), "gap other than 0"),
        (lambda: power(0.1, 0, 1, 0.1, 0.1), "at least one"),
        (lambda: power(0.1, 5, 1, -0.1, 0.1), "at least 0"),
        (lambda: detectable_gap(1, 1, 0.1, 0.1), "two tasks"),
        (lambda: variance_components([1.0, 2.0], [0, 1]), "two seeds"),
    ],
)
def test_bad_input_is_refused(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(UserError, match=message):
        call()
