"""What happens to a proposal before it becomes a score: malformed ones are mapped, excluded ones leave no
score.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from conformal.scores import BoolArray, FloatArray, IntArray


def map_malformed(
    proposal: npt.ArrayLike, admissible: npt.ArrayLike, order: Sequence[int]
) -> tuple[IntArray, BoolArray]:
    """Proposals (B,) with every malformed or inadmissible one replaced by the first admissible of `order`.

    Returns the mapped proposals and the mask of mapped rows, to be counted; malformed is any index outside
    the C candidates, such as -1. Rows without an admissible candidate have ended and pass through. Raises
    ValueError if `order` holds none of a row's admissible candidates. The mapping comes before scoring
    (METHOD 3).
    """
    p, a = np.asarray(proposal, dtype=np.int64), np.asarray(admissible, dtype=np.bool_)
    rows, running = np.arange(len(p)), a.any(1)
    known = (p >= 0) & (p < a.shape[1])
    malformed = running & ~(known & a[rows, np.where(known, p, 0)])
    ordered = a[:, list(order)]
    if (malformed & ~ordered.any(1)).any():
        row = int(np.argmax(malformed & ~ordered.any(1)))
        raise ValueError(
            f"order: {list(order)} holds no admissible candidate of row {row}; expected at least one"
        )
    fallback = np.asarray(order, dtype=np.int64)[ordered.argmax(1)]
    return np.where(malformed, fallback, p), malformed


def vote_outside(reached: npt.ArrayLike, proposes_vote: npt.ArrayLike) -> BoolArray:
    """Reached entries (n, T) when a vote stays outside the candidates: voting leaves no score at that round.

    The certified event is then "reaches round t and proposes something to say". With the vote inside the
    candidates the mask needs no change: a vote is scored like any other proposal.
    """
    mask = np.asarray(reached, dtype=np.bool_)
    votes = np.asarray(proposes_vote, dtype=np.bool_)
    if votes.shape != mask.shape:
        raise ValueError(f"proposes_vote: shape {votes.shape}; expected {mask.shape} as reached")
    return mask & ~votes


def outside_regrets(
    regrets: npt.ArrayLike, admissible: npt.ArrayLike, vote: int
) -> tuple[FloatArray, BoolArray]:
    """Regrets and mask (B, C) without the vote candidate, regrets again measured from the best of what
    remains.
    """
    mask = np.array(admissible, dtype=np.bool_)
    mask[:, vote] = False
    left = np.where(mask, np.asarray(regrets, dtype=np.float64), np.inf)
    best = left.min(axis=1, keepdims=True)
    return np.where(mask, left - np.where(np.isfinite(best), best, 0.0), np.inf), mask
