"""METHOD 9's task model: deterministic by index, and distributed as its formulas say."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from scipy import stats

from sim.errors import UserError
from sim.tasks import MethodParams, generate_method, method_evidence

N_TASKS = 20_000
QUIET = MethodParams(sd_task=0.0, sd_private=0.0, sd_clue=0.0)


def test_a_task_does_not_depend_on_how_many_there_are() -> None:
    few, many = method_evidence(7, 5), method_evidence(50, 5)
    for short, long in zip(few, many, strict=True):
        np.testing.assert_array_equal(short, long[:7])
    assert generate_method(3, 5) == generate_method(9, 5)[:3]
    assert not np.array_equal(method_evidence(7, 6)[0], few[0])


def test_without_spread_the_formulas_hold_exactly() -> None:
    evidence, truth, decoy = method_evidence(500, 0, QUIET)
    rows, third = np.arange(500), 3 - truth - decoy
    np.testing.assert_allclose(evidence.mean(axis=-1), 0, atol=1e-12)
    shared, private = evidence[:, :4], evidence[:, 4:]
    lead = shared[rows, :, decoy] - shared[rows, :, truth]
    assert (lead > 0).all()
    np.testing.assert_allclose(lead.sum(axis=-1), 3.0)
    np.testing.assert_allclose(shared[rows, :, third], shared[rows, :, truth])
    np.testing.assert_allclose(private[rows, :, truth] - private[rows, :, decoy], 1.65)
    share = (private[rows, :, truth] - private[rows, :, third]) / 1.65
    assert stats.kstest(share.ravel(), "uniform").pvalue > 1e-3


def test_shared_lead_is_spread_by_a_dirichlet() -> None:
    evidence, truth, decoy = method_evidence(N_TASKS, 1, QUIET)
    rows = np.arange(N_TASKS)
    share = (evidence[rows, 0, decoy] - evidence[rows, 0, truth]) / 3.0
    assert stats.kstest(share, stats.beta(4, 12).cdf).pvalue > 1e-3


def test_spreads_are_lognormal_and_shared_by_a_task() -> None:
    calm = msgspec.structs.replace(QUIET, sd_task=0.25, sd_private=0.4)
    evidence, truth, decoy = method_evidence(N_TASKS, 2, calm)
    rows = np.arange(N_TASKS)
    lead = np.log((evidence[rows, :4, decoy] - evidence[rows, :4, truth]).sum(axis=-1) / 3.0)
    gains = np.log((evidence[rows, 4:, truth] - evidence[rows, 4:, decoy]) / 1.65)
    assert stats.kstest(lead / 0.25, "norm").pvalue > 1e-3
    assert stats.kstest(gains[:, 0] / math.hypot(0.25, 0.4), "norm").pvalue > 1e-3
    correlation = np.corrcoef(gains[:, 0], gains[:, 1])[0, 1]
    assert abs(correlation - 0.25**2 / (0.25**2 + 0.4**2)) < 5 / math.sqrt(N_TASKS)
    assert abs(np.corrcoef(lead, gains[:, 0])[0, 1]) < 5 / math.sqrt(N_TASKS)


def test_clue_noise_has_half_of_sd_clue() -> None:
    plain, _, _ = method_evidence(N_TASKS, 3, QUIET)
    noisy, _, _ = method_evidence(N_TASKS, 3, msgspec.structs.replace(QUIET, sd_clue=0.5))
    noise = noisy - plain
    difference = (noise[..., 0] - noise[..., 1]).ravel()
    assert stats.kstest(difference[::8] / (0.25 * math.sqrt(2)), "norm").pvalue > 1e-3


def test_truth_and_decoy_are_uniform_and_differ() -> None:
    _, truth, decoy = method_evidence(N_TASKS, 4, MethodParams(n_options=4))
    assert (truth != decoy).all()
    counts = np.bincount(truth * 4 + decoy, minlength=16).reshape(4, 4)
    off = counts[~np.eye(4, dtype=bool)]
    assert stats.chisquare(off).pvalue > 1e-3


def test_tasks_carry_the_evidence_and_say_what_it_favours() -> None:
    params = MethodParams(n_agents=5, n_options=4, n_shared=2)
    evidence, truth, _ = method_evidence(40, 9, params)
    for place, task in enumerate(generate_method(40, 9, params)):
        np.testing.assert_array_equal(task.evidence_array(), evidence[place])
        assert (task.n_agents, task.n_options, task.n_shared) == (5, 4, 2)
        assert task.answer_index == truth[place]
        assert task.family == task.id == f"method-9-{place}"
        for clue, row in zip(task.clues, evidence[place], strict=True):
            top = int(np.abs(row).argmax())
            word = "for" if row[top] > 0 else "against"
            assert clue.endswith(f"{word} {task.possible_answers[top]}.")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_agents", 1),
        ("n_options", 1),
        ("n_shared", 0),
        ("shared_strength", math.nan),
        ("sd_clue", -0.1),
        ("sd_task", math.inf),
    ],
)
def test_bad_parameters_are_one_line(field: str, value: float) -> None:
    with pytest.raises(UserError, match=f"'{field}': {value}; give"):
        MethodParams(**{field: value})  # type: ignore[arg-type]


def test_no_tasks_are_an_error() -> None:
    with pytest.raises(UserError, match="'n': 0; give"):
        method_evidence(0, 0)
