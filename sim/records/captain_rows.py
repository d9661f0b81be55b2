"""The typed rows of a captain run: the ledger of calls, what happened in an episode, and its outcome.

An episode is (condition, problem, seed). `attempt` tells the rows of a finished episode from those of one that
a crash cut short: both stay in the ledger, because both were paid for.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which episode a row belongs to. `problem` is empty for what a condition does once for a scenario."""

    condition: str
    scenario: str
    problem: str
    seed: int
    attempt: str

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes an episode unique in a run."""
        return self.condition, self.problem, self.seed


class CaptainCallRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the ledger. `price` is in US dollars, null where the price table does not name the model."""

    episode: Identity
    number: int
    component: str
    """captain, retriever, selector, generator, expert, reflector, verifier or executor."""
    purpose: str
    place: str
    agent: str
    model: str
    prompt_hash: str
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    latency_s: float
    retries: int
    finish_reason: str
    price: float | None
    error: str = ""


class CaptainEventRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that happened: decision, team, message, execution, intervention, review, verification, note."""

    episode: Identity
    number: int
    step: int
    kind: str
    who: str
    text: str
    details: dict[str, Any]


class CaptainEpisodeRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of one problem under one condition; a failed one stands here with its error."""

    episode: Identity
    method: str
    family: str
    level: int | None
    answer: str
    correct: bool
    reason: str
    """What the grader found."""
    ending: str
    """`finished`, `unfinished` (round limit), `budget` or `failed`."""
    steps: int
    teams: int
    malformed: int
    """Replies that could not be read as their type, after one repetition."""
    tokens: int
    seconds: float
    disputes: int
    """Conversations whose members gave different answers."""
    detected: int
    """Of those, the ones in which the reflector named a contradiction or asked for a check."""
    checked: int
    """Of those, the ones that were verified."""
    right_to_wrong: int
    wrong_to_right: int
    error: str = ""
