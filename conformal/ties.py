"""Randomised ties: lexicographic order on (score, uniform), under which coverage is exactly k / (n + 1)
(METHOD 3).

The plain closed inequality over-covers where scores tie (an atom at zero regret); exact two-sided tests need
these.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from conformal.ranks import Level, rank
from conformal.scores import BoolArray, FloatArray


class TiedThreshold(NamedTuple):
    """The k-th smallest pair; covered are smaller scores, and equal ones with a uniform no larger."""

    score: FloatArray
    uniform: FloatArray


def tied_threshold(scores: FloatArray, uniforms: FloatArray, alpha: Level) -> TiedThreshold:
    """The conformal order statistic of the pairs along the last axis; (+inf, 1) where n is too small."""
    n = scores.shape[-1]
    k = rank(n, alpha)
    if k > n:
        full = np.full(scores.shape[:-1], np.inf)
        return TiedThreshold(full, np.ones_like(full))
    place = np.lexsort((uniforms, scores), axis=-1)[..., k - 1 : k]
    return TiedThreshold(
        np.take_along_axis(scores, place, -1)[..., 0], np.take_along_axis(uniforms, place, -1)[..., 0]
    )


def tied_covered(scores: FloatArray, uniforms: FloatArray, threshold: TiedThreshold) -> BoolArray:
    """Whether test pairs fall at or below the threshold pair."""
    below = scores < threshold.score
    return np.asarray(below | ((scores == threshold.score) & (uniforms <= threshold.uniform)), dtype=np.bool_)
