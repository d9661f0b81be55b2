"""Routers: which agent a given intervention is addressed to (METHOD 1). They see the PublicView only.

Ties go to the lowest index; the last speaker is penalised by 10⁻³.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from sim.arrays import Floats, Ints, lowest
from sim.discussion.actions import (
    CHALLENGE,
    CLARIFY,
    FREE,
    NOBODY,
    ROUTE,
    SEEK_EVIDENCE,
    VOTE,
    Candidates,
    Menu,
)
from sim.discussion.beliefs import leader
from sim.discussion.public import PublicView
from sim.errors import UserError
from sim.randomness import integers, keys

LAST_SPEAKER_PENALTY = 1e-3

Router: TypeAlias = Callable[[PublicView, int], Ints]
"""(view, action) -> speaker (B,)."""


def _lowest(view: PublicView, score: Floats) -> Ints:
    spoke_last = np.arange(view.n_agents) == view.last_speaker[:, None]
    return lowest(score + LAST_SPEAKER_PENALTY * spoke_last)


def dissenter(view: PublicView, action: int) -> Ints:
    """The agent who believes least in the leading option."""
    return _lowest(view, view.beliefs[np.arange(view.size), :, leader(view.beliefs)])


def outlier(view: PublicView, action: int) -> Ints:
    """The agent whose belief is farthest from the group's mean."""
    return _lowest(view, -0.5 * np.abs(view.beliefs - view.beliefs.mean(1, keepdims=True)).sum(-1))


def least_evidence(view: PublicView, action: int) -> Ints:
    """The agent who contributed least evidence; ties by fewer words."""
    tie_break = LAST_SPEAKER_PENALTY * view.words / (view.horizon * view.max_words)
    return _lowest(view, view.evidence + tie_break)


def least_heard(view: PublicView, action: int) -> Ints:
    """The agent with the fewest words."""
    return _lowest(view, view.words)


def round_robin(view: PublicView, action: int) -> Ints:
    """Agents in turn."""
    turn: Ints = np.mod(view.rounds, view.n_agents)
    return turn


def random(view: PublicView, action: int) -> Ints:
    """An agent drawn uniformly, by a key of the discussion, round and action."""
    return integers(keys("router", view.key, view.rounds, action), 1, view.n_agents)[:, 0]


_CONDITIONAL: dict[int, Router] = {
    CHALLENGE: dissenter,
    CLARIFY: outlier,
    SEEK_EVIDENCE: least_evidence,
    ROUTE: least_heard,
    FREE: round_robin,
}


def action_conditional(view: PublicView, action: int) -> Ints:
    """Each intervention to the agent it concerns; the default."""
    return _CONDITIONAL[action](view, action)


def paper(view: PublicView, action: int) -> Ints:
    """The other reading of the summary: both evidence actions go to the least-heard agent."""
    return least_heard(view, action) if action == SEEK_EVIDENCE else action_conditional(view, action)


ROUTERS: dict[str, Router] = {
    "action_conditional": action_conditional,
    "paper": paper,
    "round_robin": round_robin,
    "random": random,
    "least_heard": least_heard,
    "dissenter": dissenter,
}


def make_router(name: str) -> Router:
    """The router of a name; UserError where there is none."""
    if name not in ROUTERS:
        raise UserError(f"routing.name is {name!r}; it must be one of {', '.join(ROUTERS)}")
    return ROUTERS[name]


def candidates(view: PublicView, menu: Menu, router: Router) -> Candidates:
    """The branches open from each state: menu columns with their speakers and the admissible set A_t.

    Vote is admissible from the second round on (METHOD 1). Free messages go round-robin whatever the router.
    """
    shape = (view.size, menu.size)
    columns = {action: _speakers(view, action, router) for action in set(menu.actions)}
    actions = np.broadcast_to(np.array(menu.actions), shape)
    return Candidates(
        actions=actions,
        speakers=np.stack([columns[action] for action in menu.actions], 1),
        draws=np.broadcast_to(np.array(menu.draws), shape),
        admissible=(actions != VOTE) | (view.rounds[:, None] >= 1),
    )


def _speakers(view: PublicView, action: int, router: Router) -> Ints:
    if action == VOTE:
        return np.full(view.size, NOBODY)
    return round_robin(view, action) if action == FREE else router(view, action)
