"""Beliefs from reports (METHOD 1): every route by which an agent's answer becomes a point of the simplex."""

from __future__ import annotations

import numpy as np

from sim.arrays import TIE, Floats, Ints, lowest
from sim.errors import UserError

FLOOR = 1e-3


def from_probabilities(report: Floats) -> Floats:
    """A full probability report (..., K), clipped below at 10⁻³ and renormalised.

    Raises UserError for a report that is not finite, is negative, or does not sum to 1 within 10⁻³.
    """
    if not np.isfinite(report).all() or (report < 0).any():
        raise UserError(f"belief {report.tolist()} has a negative or non-finite entry; give probabilities")
    if (np.abs(report.sum(-1) - 1.0) > 1e-3).any():
        raise UserError(f"belief {report.tolist()} does not sum to 1; give one probability per option")
    raised = np.maximum(report, FLOOR)
    belief: Floats = raised / raised.sum(-1, keepdims=True)
    return belief


def from_choice(choice: int, confidence: float, n_options: int) -> Floats:
    """An answer with a confidence in [0, 1]: b_choice = max(c, 1/K + 10⁻³), the rest shared equally (K,).

    An answer is never erased by a low confidence. Raises UserError for a confidence outside [0, 1] or a
    choice that is not an option.
    """
    if not 0.0 <= confidence <= 1.0:
        raise UserError(f"confidence {confidence} is outside [0, 1]")
    if not 0 <= choice < n_options:
        raise UserError(f"choice {choice} is not one of the {n_options} options")
    top = max(confidence, 1.0 / n_options + FLOOR)
    belief = np.full(n_options, (1.0 - top) / (n_options - 1))
    belief[choice] = top
    return belief


def uniform(n_options: int) -> Floats:
    """The belief of an agent that has never given a parsable report (K,)."""
    return np.full(n_options, 1.0 / n_options)


def top_shares(beliefs: Floats) -> Floats:
    """Each agent's vote (..., N, K): 1 on its top option, split evenly over exact ties (METHOD 1, Edges)."""
    tops = beliefs >= beliefs.max(-1, keepdims=True) - TIE
    shares: Floats = tops / tops.sum(-1, keepdims=True)
    return shares


def leader(beliefs: Floats) -> Ints:
    """The leading option of each group (B,): the largest mean of beliefs (B, N, K), ties to the lowest."""
    return lowest(-beliefs.mean(1))
