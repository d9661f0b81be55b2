"""Who did what in groups of several models: tables by seat and by member, from the records of a run.

Only committed discussions count; a failed one counts as wrong. Who sat where follows from the configuration, so it
regenerates from records alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import nan
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pandas as pd

from sim.config import SeatsConfig
from sim.discussion.beliefs import top_shares
from sim.discussion.seating import seated
from sim.records.rows import BranchRow, CallRow, EpisodeRow
from sim.report.frames import opening_path, prefixes, vote_path
from sim.report.source import EVALUATION, Run
from sim.report.tables import interval, mean_over_tasks, note_on, sorted_conditions

Place: TypeAlias = tuple[str, int, str]
_MEANS = ("messages", "words", "prompt_tokens", "completion_tokens")


def seats_of(config: Mapping[str, Any]) -> SeatsConfig:
    """The seats of a run's configuration; without an order where all seats were one model's."""
    return msgspec.convert(config.get("seats") or {}, SeatsConfig)


def composition(seats: SeatsConfig) -> str:
    """A group in a table: its models in the order of the seats, repeated ones counted."""
    names = [str(seats.members[name].model.get("name", name)) for name in seats.order]
    return " + ".join(
        f"{names.count(name)}×{name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )


def seat_tables(run: Run) -> dict[str, pd.DataFrame]:
    """`seats`: a row per condition, seat (1-based) and member; `members`: per condition and member.

    `belief_accuracy` is that of the last beliefs, ties split evenly; `vote_accuracy` that of the final votes;
    messages, words and tokens are means per discussion, tokens those of the agent's own calls on the committed
    path. Nothing for a run of one model.
    """
    seats = seats_of(run.config)
    if not seats.order:
        return {}
    lines = pd.DataFrame(_lines(run, seats), columns=[*_KEYS, *_VALUES])
    return {"seats": _table(lines, ["seat", "member"]), "members": _table(lines, ["member"])}


_KEYS = ("condition", "task", "seed", "seat", "member", "model")
_VALUES = ("belief_accuracy", "vote_accuracy", *_MEANS)


def _table(lines: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    rows = [
        {
            "condition": condition,
            **dict(zip(by, here, strict=True)),
            "model": mine["model"].iloc[0],
            "n_tasks": mine["task"].nunique(),
            "n": len(mine),
            **_interval_if_known("belief_accuracy", mine),
            **interval("vote_accuracy", mine, "vote_accuracy"),
            **{name: mean_over_tasks(mine, name) for name in _MEANS},
            "note": note_on(mine),
        }
        for condition in sorted_conditions(lines["condition"])
        for here, mine in lines[lines["condition"] == condition].groupby(by)
    ]
    return pd.DataFrame(rows)


def _interval_if_known(name: str, mine: pd.DataFrame) -> dict[str, float]:
    """A mean with its interval; NaN where a branch is not recorded, as in a replay that keeps outcomes only."""
    if mine[name].isna().any():
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"), nan)
    return interval(name, mine, name)


def _lines(run: Run, seats: SeatsConfig) -> Iterator[tuple[object, ...]]:
    """One line per discussion and agent."""
    branches = {(row.task, row.seed, row.path): row for row in run.branches}
    spent = _tokens(run.calls)
    for row in run.episodes:
        if row.stage != EVALUATION:
            continue
        members = seated(seats.order, seats.rotate, row.task, row.seed, row.n_agents)
        places = [opening_path(row.condition), *prefixes(row.path)]
        path = [branches.get((row.task, row.seed, place)) for place in places]
        for agent, member in enumerate(members):
            yield (
                row.condition, row.task, row.seed, agent + 1, member, seats.members[member].model.get("name", member),
                _belief_accuracy(row, path[-1], agent), float(row.votes[agent] == row.answer),
                *_said(path, agent, row.ending == "failed"), *(_committed(spent, row, agent) if spent else (nan, nan)),
            )  # fmt: skip


_Spent: TypeAlias = dict[Place, dict[tuple[int, bool], tuple[int, int]]]
_NONE = (0, 0)


def _tokens(calls: Iterable[CallRow]) -> _Spent:
    """Prompt and completion tokens by place, agent, and whether they were for a final vote."""
    spent: _Spent = {}
    for call in calls:
        place = spent.setdefault((call.task, call.seed, call.path), {})
        key = (call.agent, call.purpose == "vote")
        before = place.get(key, _NONE)
        place[key] = (before[0] + call.prompt_tokens, before[1] + call.completion_tokens)
    return spent


def _committed(spent: _Spent, row: EpisodeRow, agent: int) -> tuple[float, float]:
    """Prompt and completion tokens of an agent's calls in one discussion: opening, branches, final vote."""
    places = [(place, False) for place in (opening_path(row.condition), *prefixes(row.path))]
    parts = [
        spent.get((row.task, row.seed, place), {}).get((agent, vote), _NONE)
        for place, vote in [*places, (vote_path(row), True)]
    ]
    return float(sum(part[0] for part in parts)), float(sum(part[1] for part in parts))


def _belief_accuracy(row: EpisodeRow, last: BranchRow | None, agent: int) -> float:
    if row.ending == "failed":
        return 0.0
    return nan if last is None else float(top_shares(np.array(last.beliefs[agent]))[row.answer])


def _said(path: Iterable[BranchRow | None], agent: int, failed: bool) -> tuple[float, float]:
    """Messages and words of an agent along a path; NaN where a branch is not recorded. What a failed discussion
    never came to was not said."""
    rows = list(path)
    if None in rows and not failed:
        return nan, nan
    mine = [row.words for row in rows if row is not None and row.speaker == agent]
    return float(len(mine)), float(sum(mine))
