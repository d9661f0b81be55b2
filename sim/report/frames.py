"""Rows as two data frames, made once per run: one line per episode, one line per decision.

Tokens and words come from joining the decisions' paths with the branches recorded there. Nothing here
averages or tests anything; the tables do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import TypeAlias

import numpy as np
import pandas as pd

from sim.discussion.ending import ABSTAIN
from sim.discussion.objective import SPREAD_FLOOR
from sim.records.rows import FULL_INFORMATION, BranchRow, DecisionRow, EpisodeRow, VoteRow
from sim.report.source import EVALUATION, GATE_SUFFIX, Run

COSTS = ("words", "prompt_tokens", "completion_tokens")

Key: TypeAlias = tuple[str, int, str]
Cost: TypeAlias = tuple[float, float, float]
_NO_COST: Cost = (0.0, 0.0, 0.0)
_UNRECORDED: Cost = (nan, nan, nan)


@dataclass(frozen=True)
class Frames:
    """`episodes`: one line per (stage, condition, task, seed); `decisions`: one line per round of each.

    Both are sorted by key. Episodes are of every stage, decisions of evaluation and calibration;
    `evaluation()` is what tables of results are about.
    """

    episodes: pd.DataFrame
    decisions: pd.DataFrame

    def evaluation(self) -> Frames:
        """Only the episodes of the evaluation, and their decisions."""
        return Frames(
            self.episodes[self.episodes["stage"] == EVALUATION].reset_index(drop=True),
            self.decisions[self.decisions["stage"] == EVALUATION].reset_index(drop=True),
        )


def make_frames(run: Run) -> Frames:
    """The frames of a run."""
    costs = _costs(run.branches, run.votes)
    orders = {(row.task, row.seed, row.path): row.orders for row in run.votes}
    decisions: dict[tuple[str, str, str, int], list[DecisionRow]] = {}
    for row in run.decisions:
        decisions.setdefault((row.stage, row.condition, row.task, row.seed), []).append(row)
    recorded = bool(run.branches)
    episodes = [
        (
            *_episode(
                row, decisions.get((row.stage, row.condition, row.task, row.seed), ()), costs, recorded
            ),
            _displayed(row, orders.get((row.task, row.seed, vote_path(row)), ())),
        )
        for row in run.episodes
    ]
    families = {row.task: row.family for row in run.episodes}
    gated = _gated_conditions(run)
    lines = [_decision(row, families[row.task], (row.stage, row.condition) in gated) for row in run.decisions]
    return Frames(
        pd.DataFrame(episodes, columns=list(_EPISODE_TYPES)).astype(_EPISODE_TYPES),
        pd.DataFrame(lines, columns=list(_DECISION_TYPES)).astype(_DECISION_TYPES),
    )


def join(path: str, step: str) -> str:
    """The path after one more step."""
    return f"{path}/{step}" if path else step


def prefixes(path: str) -> list[str]:
    """Every path on the way to a path, itself included, the empty opening excluded."""
    steps = path.split("/") if path else []
    return ["/".join(steps[: i + 1]) for i in range(len(steps))]


def opening_path(condition: str) -> str:
    """Path of the opening row of a condition."""
    return FULL_INFORMATION if condition == FULL_INFORMATION else ""


def vote_path(row: EpisodeRow) -> str:
    """Path under which an episode's final votes stand."""
    return row.path or opening_path(row.condition)


def controller_of(condition: str) -> str:
    """The controller behind a condition: `rules` for `rules+gate`."""
    return condition.removesuffix(GATE_SUFFIX)


def _gated_conditions(run: Run) -> set[tuple[str, str]]:
    """(stage, condition) run behind a gate: by name, or because a decision had a threshold."""
    named = {(row.stage, row.condition) for row in run.episodes if row.condition.endswith(GATE_SUFFIX)}
    return named | {(row.stage, row.condition) for row in run.decisions if row.threshold is not None}


def _costs(branches: Iterable[BranchRow], votes: Iterable[VoteRow]) -> dict[str, dict[Key, Cost]]:
    said = {
        (b.task, b.seed, b.path): (b.words, float(b.prompt_tokens), float(b.completion_tokens))
        for b in branches
    }
    voted = {
        (v.task, v.seed, v.path): (0.0, float(v.prompt_tokens), float(v.completion_tokens)) for v in votes
    }
    return {"said": said, "voted": voted}


_KEY_TYPES = {"stage": "str", "condition": "str", "task": "str", "seed": "int64", "family": "str"}
_EPISODE_TYPES = _KEY_TYPES | {
    "n_agents": "int64", "n_options": "int64", "answer": "int64", "decision": "int64", "correct": "bool",
    "vote_accuracy": "float64", "majority": "float64", "votes": "object", "rounds": "int64",
    "messages": "int64", "words": "float64", "path": "str", "ending": "str", "final_objective": "float64",
    "malformed": "int64", "branches_evaluated": "int64", "failed": "bool", "error": "str",
    **{f"committed_{cost}": "float64" for cost in COSTS[1:]},
    **{f"counterfactual_{cost}": "float64" for cost in COSTS}, "displayed": "object",
}  # fmt: skip


def _displayed(row: EpisodeRow, orders: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Positions at which the voters saw the options they chose; nothing for abstentions and where no list
    was shown."""
    seen = zip(row.votes, orders, strict=False)
    return tuple(order.index(vote) for vote, order in seen if vote != ABSTAIN)


def _episode(
    row: EpisodeRow,
    decisions: Sequence[DecisionRow],
    costs: Mapping[str, Mapping[Key, Cost]],
    recorded: bool,
) -> tuple[object, ...]:
    right = [vote == row.answer for vote in row.votes]
    failed = row.ending == "failed"
    committed = _committed(row, costs, _NO_COST if failed else _UNRECORDED) if recorded else _UNRECORDED
    counterfactual = _counterfactual(row, decisions, costs["said"]) if recorded else _UNRECORDED
    return (
        row.stage, row.condition, row.task, row.seed, row.family, row.n_agents, row.n_options, row.answer,
        row.decision, not failed and row.decision == row.answer, sum(right) / row.n_agents,
        float(sum(right) > row.n_agents / 2), tuple(row.votes), row.rounds, row.messages, row.words, row.path,
        row.ending, nan if row.final_objective is None else row.final_objective, row.malformed,
        row.branches_evaluated, failed, row.error, *committed[1:], *counterfactual,
    )  # fmt: skip


def _committed(row: EpisodeRow, costs: Mapping[str, Mapping[Key, Cost]], absent: Cost) -> Cost:
    """What the discussion itself cost: opening, every committed branch, final votes; `absent` for a part that
    is not recorded (a failed episode has no votes, and perhaps no opening)."""
    place = (row.task, row.seed)
    opening = costs["said"].get((*place, opening_path(row.condition)), absent)
    steps = [costs["said"].get((*place, path), absent) for path in prefixes(row.path)]
    votes = costs["voted"].get((*place, vote_path(row)), absent)
    return _total([opening, *steps, votes])


def _counterfactual(row: EpisodeRow, decisions: Sequence[DecisionRow], said: Mapping[Key, Cost]) -> Cost:
    """What the branches evaluated and not taken cost."""
    return _total(
        said.get((row.task, row.seed, join(d.path, name)), _UNRECORDED)
        for d in decisions
        for column, name in enumerate(d.candidates)
        if column != d.executed and d.objectives[column] is not None
    )


def _total(costs: Iterable[Cost]) -> Cost:
    listed = [_NO_COST, *costs]
    return (sum(c[0] for c in listed), sum(c[1] for c in listed), sum(c[2] for c in listed))


_DECISION_TYPES = _KEY_TYPES | {
    "round": "int64", "proposal": "str", "executed": "str", "malformed": "bool", "replaced": "bool",
    "gated": "bool", "threshold": "float64", "certified": "bool", "accepted": "bool", "set_size": "int64",
    "evaluated": "int64", "regret": "float64", "executed_regret": "float64", "spread": "float64",
    "normalised_regret": "float64", "objective_change": "float64",
}  # fmt: skip


def _decision(row: DecisionRow, family: str, gated: bool) -> tuple[object, ...]:
    objectives = [value for value in row.objectives if value is not None]
    compared = len(objectives) > 1
    spread = max(objectives) - min(objectives) if compared else nan
    regret = _regret(row, row.proposal) if compared else nan
    return (
        row.stage, row.condition, row.task, row.seed, family, row.round,
        action_of(row.candidates[row.proposal]), action_of(row.candidates[row.executed]), row.malformed,
        row.replaced, gated, inf if row.threshold is None else row.threshold, row.certified,
        bool(row.admissible_set[row.proposal]), sum(row.admissible_set), len(objectives), regret,
        _regret(row, row.executed) if compared else nan, spread, _normalised(regret, spread), _change(row),
    )  # fmt: skip


def _regret(row: DecisionRow, column: int) -> float:
    """Regret of a candidate; NaN where it was not evaluated."""
    value = row.regrets[column]
    return nan if value is None else value


def _change(row: DecisionRow) -> float:
    """J after the executed branch minus J before it; NaN where it was not evaluated."""
    after = row.objectives[row.executed]
    return nan if after is None else after - row.objective


def _normalised(regret: float, spread: float) -> float:
    if np.isnan(spread):
        return nan
    return regret / spread if spread > SPREAD_FLOOR else 0.0


def action_of(candidate: str) -> str:
    """The intervention of a candidate's name: `route` of `route@2`, `free` of `free@0#3`."""
    return candidate.split("@")[0].split("#")[0]
