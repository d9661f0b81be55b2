"""Rows as two data frames, made once per run: one line per episode, one line per decision.

Tokens and words come from joining the decisions' paths with the branches recorded there. Nothing here
averages or tests anything; the tables do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, nan
from typing import TypeAlias

import numpy as np
import pandas as pd

from sim.discussion.ending import ABSTAIN
from sim.discussion.objective import SPREAD_FLOOR
from sim.errors import UserError
from sim.records.rows import FULL_INFORMATION, BranchRow, DecisionRow, EpisodeRow, VoteRow
from sim.records.store import FILES
from sim.report.source import EVALUATION, GATE_SUFFIX, Run

COSTS = ("words", "prompt_tokens", "completion_tokens")

Key: TypeAlias = tuple[str, int, str]
Cost: TypeAlias = tuple[float, float, float]
_NO_COST: Cost = (0.0, 0.0, 0.0)
_UNRECORDED: Cost = (nan, nan, nan)
_COUNTERFACTUAL = [f"counterfactual_{cost}" for cost in COSTS]
_EPISODE_KEY = ["stage", "condition", "task", "seed"]
_DECISION_KEY = [*_EPISODE_KEY, "round"]
_CHUNK = 20_000
"""Decisions held as rows at a time."""


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
    """The frames of a run. Raises UserError where rows of its finished discussions have been lost since."""
    costs = _costs(run.branches, run.votes)
    orders = {(row.task, row.seed, row.path): row.orders for row in run.votes}
    recorded = bool(run.branches)
    decisions = _decisions(run, costs["said"] if recorded else None)
    episodes = [
        (
            *_episode(row, costs, recorded),
            _displayed(row, orders.get((row.task, row.seed, vote_path(row)), ())),
        )
        for row in run.episodes
    ]
    frame = pd.DataFrame(episodes, columns=list(_EPISODE_TYPES)).astype(_EPISODE_TYPES)
    _check_complete(run, frame, decisions)
    return Frames(_with_counterfactual(frame, decisions, recorded), decisions.drop(columns=_COUNTERFACTUAL))


def _decisions(run: Run, said: Mapping[Key, Cost] | None) -> pd.DataFrame:
    """One line per decision with what its branches not taken cost, read a chunk at a time; the last line written
    of each decision counts."""
    same: dict[str, str] = {}
    rows = ((*_decision(row, same), *_counterfactual(row, said)) for row in run.iter_decisions())
    chunks = [_typed(())]
    while chunk := tuple(islice(rows, _CHUNK)):
        chunks.append(_typed(chunk))
    whole = pd.concat(chunks, ignore_index=True)
    chunks.clear()
    if (twice := whole.duplicated(_DECISION_KEY, keep="last")).any():
        whole = whole[~twice]
    whole = whole.sort_values(_DECISION_KEY, ignore_index=True)
    whole["family"] = whole["task"].map({row.task: row.family for row in run.episodes}).astype("str")
    whole["gated"] = _behind_a_gate(whole)
    return whole


def _check_complete(run: Run, episodes: pd.DataFrame, decisions: pd.DataFrame) -> None:
    """A finished discussion has a decision a round, and branches, where its configuration has them recorded."""
    record = run.config.get("record")
    held = episodes[(episodes["stage"] == EVALUATION) & ~episodes["failed"] & (episodes["rounds"] > 0)]
    found, expected = int((decisions["stage"] == EVALUATION).sum()), int(held["rounds"].sum())
    lost = "restore it from a copy, or evaluate again in a new run"
    if record in ("branches", "decisions") and found < expected:
        raise UserError(
            f"{run.directory / FILES[DecisionRow]}: holds {found:,} of the {expected:,} decisions of finished "
            f"discussions; {lost}"
        )
    if record == "branches" and len(held) and not run.branches:
        raise UserError(
            f"{run.directory / FILES[BranchRow]}: holds no branch of the finished discussions; {lost}"
        )


def _typed(rows: Sequence[tuple[object, ...]]) -> pd.DataFrame:
    types = _DECISION_TYPES | dict.fromkeys(_COUNTERFACTUAL, "float64")
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def _behind_a_gate(decisions: pd.DataFrame) -> pd.Series:
    """Whether a decision's condition has a gate: by its name, or because some decision of it had a threshold."""
    bounded = np.isfinite(decisions["threshold"])
    held: pd.Series = bounded.groupby([decisions["stage"], decisions["condition"]]).transform("any")
    return held.astype(bool) | decisions["condition"].str.endswith(GATE_SUFFIX).astype(bool)


def _with_counterfactual(episodes: pd.DataFrame, decisions: pd.DataFrame, recorded: bool) -> pd.DataFrame:
    """Episodes with what the branches evaluated and not taken cost: missing where one of them is."""
    total = decisions.groupby(_EPISODE_KEY)[_COUNTERFACTUAL].sum(skipna=False)
    index = pd.MultiIndex.from_frame(episodes[_EPISODE_KEY])
    absent = 0.0 if recorded else nan
    decided = index.isin(total.index)
    values = total.reindex(index).to_numpy()
    return episodes.assign(
        **{name: np.where(decided, values[:, i], absent) for i, name in enumerate(_COUNTERFACTUAL)}
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
    **{f"committed_{cost}": "float64" for cost in COSTS[1:]}, "displayed": "object",
}  # fmt: skip


def _displayed(row: EpisodeRow, orders: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Positions at which the voters saw the options they chose; nothing for abstentions and where no list
    was shown."""
    seen = zip(row.votes, orders, strict=False)
    return tuple(order.index(vote) for vote, order in seen if vote != ABSTAIN)


def _episode(row: EpisodeRow, costs: Mapping[str, Mapping[Key, Cost]], recorded: bool) -> tuple[object, ...]:
    right = [vote == row.answer for vote in row.votes]
    failed = row.ending == "failed"
    committed = _committed(row, costs, _NO_COST if failed else _UNRECORDED) if recorded else _UNRECORDED
    return (
        row.stage, row.condition, row.task, row.seed, row.family, row.n_agents, row.n_options, row.answer,
        row.decision, not failed and row.decision == row.answer, sum(right) / row.n_agents,
        float(sum(right) > row.n_agents / 2), tuple(row.votes), row.rounds, row.messages, row.words, row.path,
        row.ending, nan if row.final_objective is None else row.final_objective, row.malformed,
        row.branches_evaluated, failed, row.error, *committed[1:],
    )  # fmt: skip


def _committed(row: EpisodeRow, costs: Mapping[str, Mapping[Key, Cost]], absent: Cost) -> Cost:
    """What the discussion itself cost: opening, every committed branch, final votes; `absent` for a part that
    is not recorded (a failed episode has no votes, and perhaps no opening)."""
    place = (row.task, row.seed)
    opening = costs["said"].get((*place, opening_path(row.condition)), absent)
    steps = [costs["said"].get((*place, path), absent) for path in prefixes(row.path)]
    votes = costs["voted"].get((*place, vote_path(row)), absent)
    return _total([opening, *steps, votes])


def _counterfactual(row: DecisionRow, said: Mapping[Key, Cost] | None) -> Cost:
    """What the branches of a decision that were evaluated and not taken cost; `said` is None where no branch is
    recorded."""
    if said is None:
        return _UNRECORDED
    return _total(
        said.get((row.task, row.seed, join(row.path, name)), _UNRECORDED)
        for column, name in enumerate(row.candidates)
        if column != row.executed and row.objectives[column] is not None
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


def _decision(row: DecisionRow, same: dict[str, str]) -> tuple[object, ...]:
    """A line; family and gate are filled in for all lines together. `same` holds one copy of each text."""
    objectives = [value for value in row.objectives if value is not None]
    compared = len(objectives) > 1
    spread = max(objectives) - min(objectives) if compared else nan
    regret = _regret(row, row.proposal) if compared else nan
    texts = (row.stage, row.condition, row.task)
    actions = (action_of(row.candidates[column]) for column in (row.proposal, row.executed))
    return (
        *(same.setdefault(text, text) for text in texts), row.seed, "", row.round,
        *(same.setdefault(text, text) for text in actions), row.malformed, row.replaced, False,
        inf if row.threshold is None else row.threshold, row.certified, bool(row.admissible_set[row.proposal]),
        sum(row.admissible_set), len(objectives), regret, _regret(row, row.executed) if compared else nan, spread,
        _normalised(regret, spread), _change(row),
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
