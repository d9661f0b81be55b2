"""State features of a public record (METHOD 1), vectorised over the batch; they see the PublicView only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Floats
from sim.discussion.beliefs import leader, top_shares
from sim.discussion.public import PublicView


@dataclass(frozen=True)
class Signals:
    """What the objective needs, each (B,) in [0, 1]; METHOD 1's table gives the formulas."""

    uncertainty: Floats
    disagreement: Floats
    evidence_gain: Floats
    redundancy: Floats
    coverage_proxy: Floats
    agreement: Floats
    premature_consensus: Floats
    cost: Floats


@dataclass(frozen=True)
class Features:
    """The state s_t: the signals and the rest of METHOD 1's table, each (B,) unless said otherwise."""

    signals: Signals
    shift: Floats
    leader_support: Floats
    plurality: Floats
    confidence: Floats
    participation: Floats
    heard: Floats
    least_share: Floats
    clock: Floats
    agent_support: Floats
    """(B, N): each agent's belief in the leading option."""


def entropy(p: Floats) -> Floats:
    """Entropy in nats over the last axis."""
    value: Floats = -(p * np.log(np.maximum(p, 1e-300))).sum(-1)
    return value


def plurality_share(view: PublicView) -> Floats:
    """v (B,): the largest share of agents with one top option, ties split evenly."""
    share: Floats = top_shares(view.beliefs).mean(1).max(-1)
    return share


def signals(view: PublicView) -> Signals:
    """The six signals of the objective, with the coverage proxy and the agreement they rest on."""
    n, k = view.n_agents, view.n_options
    mean_entropy = entropy(view.beliefs).mean(1)
    spread = entropy(view.beliefs.mean(1)) - mean_entropy
    coverage = view.evidence.mean(1)
    agreement = (plurality_share(view) - 1 / k) / (1 - 1 / k) * view.beliefs.max(-1).mean(1)
    return Signals(
        uncertainty=mean_entropy / np.log(k),
        disagreement=np.maximum(0.0, spread) / np.log(min(n, k)),
        evidence_gain=view.novelty * (1 + view.shift) / 2,
        redundancy=view.overlap,
        coverage_proxy=coverage,
        agreement=agreement,
        premature_consensus=np.where(view.voted, 1.0, agreement) * (1 - coverage),
        cost=view.words.sum(1) / (view.horizon * view.max_words),
    )


def word_shares(view: PublicView) -> Floats:
    """q (B, N): each agent's share of the words spoken; zero while nobody has spoken."""
    shares: Floats = view.words / np.maximum(view.words.sum(1, keepdims=True), 1e-9)
    return shares


def observe(view: PublicView) -> Features:
    """The state s_t of every discussion in the batch."""
    shares = word_shares(view)
    mean_belief = view.beliefs.mean(1)
    lead = leader(view.beliefs)
    rows = np.arange(view.size)
    return Features(
        signals=signals(view),
        shift=view.shift,
        leader_support=mean_belief[rows, lead],
        plurality=plurality_share(view),
        confidence=view.beliefs.max(-1).mean(1),
        participation=entropy(shares) / np.log(view.n_agents),
        heard=(view.words > 0).mean(1),
        least_share=view.n_agents * shares.min(1),
        clock=view.rounds / view.horizon,
        agent_support=view.beliefs[rows, :, lead],
    )
