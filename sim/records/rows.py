"""The typed rows of a run directory. A row is plain data: no arrays, no objects, readable by any JSON tool.

Keys: a branch is (task, seed, path); a decision (stage, condition, task, seed, round); an episode
(stage, condition, task, seed). A path lists the steps taken so far, `route@2/challenge@0`; the path of the
opening is empty, and `full_info` for the opening in which everybody holds every clue.
"""

from __future__ import annotations

import msgspec

FULL_INFORMATION = "full_info"
OPENING = "open"


class BranchRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One evaluated branch: what was said and what everybody then believed. The opening is a row too."""

    task: str
    seed: int
    path: str
    """Path up to and including this branch."""
    round: int
    """1-based round of the decision that evaluated it; 0 for the opening."""
    action: str
    speaker: int
    draw: int
    words: float
    novelty: float
    overlap: float
    beliefs: list[list[float]]
    """(N, K)."""
    stale: list[bool]
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class VoteRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Final answers of all agents at the end of a path; choice -1 is an abstention."""

    task: str
    seed: int
    path: str
    choice: list[int]
    beliefs: list[list[float]]
    orders: list[list[int]] = []
    """Order in which each agent was shown the options; empty where nothing is shown."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class DecisionRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One round of one condition: the proposal, every branch's objective and regret, what was executed."""

    stage: str
    condition: str
    task: str
    seed: int
    round: int
    """1-based."""
    path: str
    """Path before this round; a candidate's branch is at path + "/" + candidate."""
    candidates: list[str]
    objective: float
    """J(s_t) before the round."""
    objectives: list[float | None]
    """J of each candidate; null where it was not admissible or not evaluated."""
    regrets: list[float | None]
    proposal: int
    """Column of the proposal, after mapping if it was malformed."""
    malformed: bool
    executed: int
    replaced: bool
    threshold: float | None
    """What the gate accepted at; null for +inf (no finite threshold) or no gate."""
    certified: bool
    admissible_set: list[bool]
    state: list[float]
    """The state vector, named by `sim.discussion.inputs.STATE_NAMES`."""


class EpisodeRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of one discussion under one condition. A failed one stands here with its error."""

    stage: str
    condition: str
    task: str
    family: str
    seed: int
    n_agents: int
    n_options: int
    answer: int
    """Index of the correct option."""
    decision: int
    """Index of the group's decision; -1 where there was none (everybody abstained, no strict majority, failed)."""
    votes: list[int]
    rounds: int
    messages: int
    words: float
    path: str
    ending: str
    """`vote`, `agreement`, `horizon`, `no_discussion` or `failed`; `tree` where every branch of every branch was
    explored, which has no path, decision or votes of its own."""
    final_objective: float | None
    malformed: int
    branches_evaluated: int
    error: str = ""


class CallRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model call of a language world."""

    task: str
    seed: int
    path: str
    purpose: str
    """`message`, `belief`, `vote` or `proposal`."""
    agent: int
    prompt_hash: str
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    latency_s: float
    retries: int
    finish_reason: str
    model: str
    replica: int = 0
    error: str = ""
