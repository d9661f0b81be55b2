"""Counter-based random numbers: keyed, independent of shape and batch, uniform."""

from __future__ import annotations

import numpy as np
from scipy import stats

from sim.randomness import integers, keys, normal, text_key, uniform

KNOWN_KEY = 5964468168201158204
KNOWN_UNIFORMS = [0.9351472411992918, 0.5187604227973008]


def test_the_same_key_gives_the_same_numbers_whatever_the_batch() -> None:
    seeds = np.arange(1000)
    whole = uniform(keys("branch", seeds, 3, "route"), 5)
    np.testing.assert_array_equal(whole[[7, 500]], uniform(keys("branch", seeds[[7, 500]], 3, "route"), 5))
    np.testing.assert_array_equal(whole[:, :2], uniform(keys("branch", seeds, 3, "route"), 2))


def test_every_part_of_a_key_matters() -> None:
    base = keys("branch", 1, 2, 3)[0]
    others = [
        keys("vote", 1, 2, 3),
        keys("branch", 2, 1, 3),
        keys("branch", 1, 2),
        keys("branch", 1, 2, 3, 0),
    ]
    assert len({int(base), *(int(key[0]) for key in others)}) == 5
    assert text_key("a") != text_key("b")


def test_known_values_never_change() -> None:
    """Recorded runs depend on these: a change here makes every replay wrong."""
    assert int(keys("branch", 1, 2, 3)[0]) == KNOWN_KEY
    np.testing.assert_allclose(uniform(keys("branch", 1), 2)[0], KNOWN_UNIFORMS, rtol=0, atol=0)


def test_uniforms_and_normals_have_their_laws() -> None:
    drawn = uniform(keys("law", np.arange(20_000)), 3)
    assert ((drawn > 0) & (drawn < 1)).all()
    for column in drawn.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    assert abs(np.asarray(np.corrcoef(drawn.T))[0, 1]) < 3.29 / np.sqrt(20_000)
    assert stats.kstest(normal(keys("law", np.arange(20_000)), 1)[:, 0], "norm").pvalue > 1e-3


def test_integers_cover_their_range_evenly() -> None:
    counts = np.bincount(integers(keys("die", np.arange(60_000)), 1, 6)[:, 0], minlength=6)
    assert stats.chisquare(counts).pvalue > 1e-3
