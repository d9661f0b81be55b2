"""The state vector a learned controller reads (METHOD 8): fixed length for any number of agents, invariant
under a renaming of agents, a function of the public record only.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from sim.arrays import Floats
from sim.discussion.actions import ACTION_NAMES, NOBODY, SPOKEN, Candidates
from sim.discussion.public import PublicView
from sim.discussion.state import Features, word_shares

_BELIEF = (
    "uncertainty",
    "disagreement",
    "shift",
    "agreement",
    "leader_support",
    "plurality",
    "confidence",
    "support_min",
    "support_q25",
    "support_median",
    "support_q75",
    "support_max",
)
_INFORMATION = (
    "evidence_gain",
    "redundancy",
    "coverage_proxy",
    "premature_consensus",
    *(f"evidence_of_{ACTION_NAMES[action]}" for action in SPOKEN),
)
_COST = (
    "cost",
    "participation",
    "heard",
    "least_share",
    "clock",
    *(f"words_of_{ACTION_NAMES[action]}" for action in SPOKEN),
)
STATE_NAMES = (*_BELIEF, *_INFORMATION, *_COST)
STATE_GROUPS = MappingProxyType(
    {
        name: group
        for group, names in (("belief", _BELIEF), ("information", _INFORMATION), ("cost", _COST))
        for name in names
    }
)


def state_vector(view: PublicView, features: Features, candidates: Candidates) -> Floats:
    """The state vector (B, len(STATE_NAMES)), columns as STATE_NAMES.

    `evidence_of_a` and `words_of_a` describe the agent that intervention a would reach (its e_i, and its
    share of the words); 0 for an intervention that is not on the menu.
    """
    s = features.signals
    support = np.quantile(features.agent_support, [0.0, 0.25, 0.5, 0.75, 1.0], axis=1)
    evidence = _of_reached(view.evidence, candidates)
    words = _of_reached(word_shares(view), candidates)
    columns = [
        s.uncertainty, s.disagreement, features.shift, s.agreement,
        features.leader_support, features.plurality, features.confidence, *support,
        s.evidence_gain, s.redundancy, s.coverage_proxy, s.premature_consensus, *evidence.T,
        s.cost, features.participation, features.heard, features.least_share, features.clock, *words.T,
    ]  # fmt: skip
    return np.stack(columns, axis=1)


def _of_reached(per_agent: Floats, candidates: Candidates) -> Floats:
    """(B, 4): a per-agent quantity (B, N) of the agent each spoken intervention would reach."""
    reached = np.zeros((len(per_agent), len(SPOKEN)))
    for column in range(candidates.actions.shape[1]):
        action = int(candidates.actions[0, column]) if len(per_agent) else NOBODY
        if action in SPOKEN:
            speakers = candidates.speakers[:, column]
            reached[:, SPOKEN.index(action)] = per_agent[np.arange(len(per_agent)), speakers]
    return reached
