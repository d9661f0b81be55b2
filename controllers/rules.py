"""The rules controller of METHOD 1, with its variants: with a vote, with noise, and stubborn noise."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from controllers.protocol import dice, draw_admissible, is_admissible
from sim.arrays import Bools, Floats, Ints, Words
from sim.discussion.actions import (
    CHALLENGE,
    CLARIFY,
    NOBODY,
    ROUTE,
    SEEK_EVIDENCE,
    VOTE,
    Candidates,
    settle,
)
from sim.discussion.public import PublicView, step_code
from sim.discussion.state import Features
from sim.errors import UserError
from sim.randomness import fold

_CONSENSUS = 0.35
_DISAGREEMENT = 0.30
_INFORMED = 0.6
_AGREED = 0.6
_CHALLENGE_EVERY = 3
_CODES_PER_ACTION = int(step_code(np.array([1]), np.array([NOBODY]), np.array([0]))[0])


def rule_table(view: PublicView, features: Features) -> Ints:
    """The rules of METHOD 1 (B,): route until everybody has spoken, then seek evidence; challenge every third
    round an early consensus; clarify an informed disagreement. Later lines win. METHOD's t is the number of
    rounds played.
    """
    s = features.signals
    challenge = (s.premature_consensus > _CONSENSUS) & (
        view.rounds % _CHALLENGE_EVERY == _CHALLENGE_EVERY - 1
    )
    clarify = (s.disagreement > _DISAGREEMENT) & (s.coverage_proxy > _INFORMED)
    action = np.where(features.heard < 1, ROUTE, SEEK_EVIDENCE)
    action = np.where(challenge, CHALLENGE, action)
    return np.where(clarify, CLARIFY, action)


def vote_rule(view: PublicView, features: Features) -> Bools:
    """Whether `rules_vote` would end the discussion (B,): from the second round on, agreed and informed."""
    s = features.signals
    ready: Bools = (view.rounds >= 1) & (s.agreement > _AGREED) & (s.coverage_proxy > _INFORMED)
    return ready


@dataclass(frozen=True)
class Rules:
    """METHOD 1's rules; with `vote` they may also end the discussion."""

    vote: bool = False

    @property
    def name(self) -> str:
        """`rules` or `rules_vote`."""
        return "rules_vote" if self.vote else "rules"

    async def propose(self, view: PublicView, features: Features, candidates: Candidates) -> Ints:
        """The rule table's interventions (B,)."""
        action = rule_table(view, features)
        return np.where(vote_rule(view, features), VOTE, action) if self.vote else action

    def describe(self) -> dict[str, object]:
        """Name only: the rules have no parameters."""
        return {"name": self.name}


@dataclass(frozen=True)
class NoisyRules:
    """The rules, replaced with probability `eps` by a uniform draw from the admissible set.

    A rule whose intervention is off the menu draws uniformly too, so that an ablation removes an intervention
    without favouring another one.
    """

    eps: float = 0.4

    def __post_init__(self) -> None:
        _check_probability("eps", self.eps)

    @property
    def name(self) -> str:
        """`noisy_rules`."""
        return "noisy_rules"

    async def propose(self, view: PublicView, features: Features, candidates: Candidates) -> Ints:
        """The noisy interventions (B,)."""
        return noisy_table(view, features, candidates, self.eps)

    def describe(self) -> dict[str, object]:
        """Name and noise."""
        return {"name": self.name, "eps": self.eps}


def noisy_table(view: PublicView, features: Features, candidates: Candidates, eps: float) -> Ints:
    """The proposals of `noisy_rules` (B,): two dice per discussion and round, one whether, one which."""
    chance = dice(view, 2)
    action = rule_table(view, features)
    replaced = (chance[:, 0] < eps) | ~is_admissible(action, candidates)
    return np.where(replaced, draw_admissible(candidates, chance[:, 1]), action)


@dataclass
class Stubborn:
    """Noisy rules that repeat a refused proposal with probability `again` (METHOD 4's stress study).

    It must remember what it proposed, because the record tells only what was executed. The memory is keyed by
    the discussion and its path so far, and an entry is dropped once it is used, so one instance serves any
    number of batches, one rollout of a discussion at a time. What was executed in place of a proposal is read
    from the path: no threshold is seen.
    """

    again: float = 0.85
    eps: float = 0.4
    _proposed: dict[int, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        _check_probability("eps", self.eps)
        _check_probability("again", self.again)

    @property
    def name(self) -> str:
        """`stubborn`."""
        return "stubborn"

    async def propose(self, view: PublicView, features: Features, candidates: Candidates) -> Ints:
        """The refused proposal again, or a fresh noisy one (B,).

        Raises LookupError for a discussion whose previous round was proposed by somebody else.
        """
        fresh = noisy_table(view, features, candidates, self.eps)
        started = view.rounds > 0
        refused = np.full(view.size, -1)
        refused[started] = self._refused(view, started)
        repeat = (refused >= 0) & (_third_die(view) < self.again) & is_admissible(refused, candidates)
        action = np.where(repeat, refused, fresh)
        column, _ = settle(action, candidates)
        settled = candidates.actions[np.arange(view.size), column]
        self._proposed.update(zip(path_key(view, 0).tolist(), settled.tolist(), strict=True))
        return action

    def _refused(self, view: PublicView, rows: Bools) -> Ints:
        """Of the discussions in `rows`: the last proposal where another was executed instead, or -1."""
        before = path_key(view, 1)[rows].tolist()
        missing = next((key for key in before if key not in self._proposed), None)
        if missing is not None:
            raise LookupError(
                "stubborn: the previous round was not proposed by this controller; start it anew"
            )
        proposed = np.array([self._proposed.pop(key) for key in before], dtype=np.int64)
        last = view.path[rows, view.rounds[rows] - 1] // _CODES_PER_ACTION
        return np.where(proposed == last, -1, proposed)

    def describe(self) -> dict[str, object]:
        """Name, noise and stubbornness."""
        return {"name": self.name, "eps": self.eps, "again": self.again}


def _third_die(view: PublicView) -> Floats:
    """The die `again` is held against (B,), apart from the two of the noise."""
    third: Floats = dice(view, 3)[:, 2]
    return third


def path_key(view: PublicView, back: int) -> Words:
    """64-bit identity of each discussion (B,) and its path, without the last `back` steps."""
    key = fold(view.key, view.rounds - back)
    for column in range(view.path.shape[1]):
        kept = column < view.rounds - back
        key = np.where(kept, fold(key, view.path[:, column] + 1), key)
    return key


def _check_probability(field_name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise UserError(f"controller.{field_name} is {value}; it must be a probability in [0, 1]")
