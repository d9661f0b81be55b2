"""From rows to tables: pure functions from frames of episodes, events and calls, ready for CSV.

A failed episode is a wrong answer and stays in every denominator. Every mean is one over problem families of each
family's mean; intervals are 95%, clustered by family; comparisons are paired by problem and seed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import nan
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from sim.discussion.text import overlap
from sim.records.captain_rows import CaptainCallRow, CaptainEpisodeRow, CaptainEventRow, Identity
from sim.records.store import read_rows
from sim.report.tables import interval, mean_over_tasks, note_on, paired_row
from sim.studies.intervals import holm

ALL = "all"
_EPISODE = list(Identity.__struct_fields__)
_PAIR = ["problem", "seed"]
_UNFINISHED = ("unfinished", "budget")
_OUTCOMES = ("selected", "abstained", "nothing_near", "unknown", "unreadable")


@dataclass(frozen=True)
class Records:
    """The rows of a run. Calls of cut-short attempts stand in `calls` too: they were paid for."""

    episodes: tuple[CaptainEpisodeRow, ...]
    events: tuple[CaptainEventRow, ...]
    calls: tuple[CaptainCallRow, ...]

    def of(self, who: Identity) -> list[CaptainEventRow]:
        """The events of a finished episode."""
        return [row for row in self.events if row.episode == who]

    @cached_property
    def outcomes(self) -> pd.DataFrame:
        """Episodes line by line; `task`, the unit that clusters, is the problem's family."""
        return (
            _flat(self.episodes, CaptainEpisodeRow)
            .rename(columns={"family": "task"})
            .astype({"correct": float})
        )

    @cached_property
    def ledger(self) -> pd.DataFrame:
        """Calls line by line; the price of one whose model has none is missing."""
        return _flat(self.calls, CaptainCallRow).astype({"price": float})

    @cached_property
    def conditions(self) -> list[str]:
        """Conditions in the order in which they first finished an episode."""
        return list(dict.fromkeys(row.episode.condition for row in self.episodes))


def _flat(rows: Iterable[CaptainEpisodeRow | CaptainCallRow], kind: type[msgspec.Struct]) -> pd.DataFrame:
    lines = [msgspec.structs.asdict(row) | msgspec.structs.asdict(row.episode) for row in rows]
    return pd.DataFrame(lines, columns=[*_EPISODE, *kind.__struct_fields__[1:]])


def read_records(directory: Path) -> Records:
    """All rows of a run directory; events of finished episodes and of static teams only."""
    episodes = tuple(read_rows(directory, CaptainEpisodeRow))
    finished = {row.episode for row in episodes}
    events = read_rows(directory, CaptainEventRow)
    kept = tuple(row for row in events if row.episode in finished or not row.episode.problem)
    return Records(episodes, kept, tuple(read_rows(directory, CaptainCallRow)))


def tables(records: Records, tags: Mapping[str, Sequence[str]], reference: str) -> dict[str, pd.DataFrame]:
    """Every table of a run by name; `tags` are the labelled roles of each problem."""
    return {
        "accuracy": accuracy(records),
        "paired": paired(records, reference),
        "reflector": reflector(records),
        "selection": selection(records, tags),
        "agents": agents(records),
        "teams": teams(records),
        "components": components(records),
        "failures": failures(records),
    }


def _slices(records: Records) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Condition, scenario (and all of them together), and their episodes."""
    for condition in records.conditions:
        mine = records.outcomes[records.outcomes["condition"] == condition]
        yield condition, ALL, mine
        if mine["scenario"].nunique() > 1:
            for scenario, part in mine.groupby("scenario", sort=False):
                yield condition, str(scenario), part


def _note(lines: pd.DataFrame) -> str:
    return note_on(lines).replace("task", "problem")


def accuracy(records: Records) -> pd.DataFrame:
    """One row per condition and scenario: accuracy with its interval, and what an answer costs."""
    paid = records.ledger.groupby(_EPISODE)["price"].agg(_total).to_dict()
    rows = []
    for condition, scenario, lines in _slices(records):
        episodes = lines[_EPISODE].itertuples(index=False, name=None)
        mine = lines.assign(price=[paid.get(episode, 0.0) for episode in episodes])
        right, tokens = interval("accuracy", mine, "correct"), mean_over_tasks(mine, "tokens")
        rows.append(
            {
                "condition": condition,
                "scenario": scenario,
                "n_problems": mine["task"].nunique(),
                "n_episodes": len(mine),
                "failed": int((mine["ending"] == "failed").sum()),
                "unfinished": int(mine["ending"].isin(_UNFINISHED).sum()),
                **right,
                "tokens": tokens,
                "accuracy_per_1k_tokens": 1000 * right["accuracy"] / tokens if tokens else nan,
                **{name: mean_over_tasks(mine, name) for name in ("price", "seconds", "steps")},
                "malformed": int(mine["malformed"].sum()),
                "note": _note(mine),
            }
        )
    return pd.DataFrame(rows)


def _total(values: pd.Series) -> float:
    """The sum; missing where one value is."""
    return float(values.sum(skipna=False))


def paired(records: Records, reference: str) -> pd.DataFrame:
    """Each condition minus the reference, paired by problem and seed; p-values corrected by Holm."""
    lines = records.outcomes
    against = lines.loc[lines["condition"] == reference, [*_PAIR, "correct"]]
    rows: list[dict[str, Any]] = []
    for condition in records.conditions:
        mine = lines[lines["condition"] == condition]
        pairs = mine.merge(against, on=_PAIR, suffixes=("", "_reference"))
        if condition == reference or not len(pairs):
            continue
        pairs["correct_change"] = pairs["correct"] - pairs["correct_reference"]
        found = paired_row(pairs, "correct", len(mine) - len(pairs))
        rows.append({"condition": condition, "reference": reference, **found, "note": _note(pairs)})
    adjusted = holm([row["p_value"] for row in rows])
    table = pd.DataFrame([row | {"p_holm": p} for row, p in zip(rows, adjusted, strict=True)])
    return table.rename(columns={"n_tasks": "n_problems"})


def reflector(records: Records) -> pd.DataFrame:
    """Disputes, planted or real: how many were there, detected, and checked; and which answers were flipped."""
    fields = ["disputes", "detected", "checked", "right_to_wrong", "wrong_to_right"]
    table = records.outcomes.groupby("condition", sort=False)[fields].sum()
    for name in ("detected", "checked"):
        table[f"{name}_share"] = table[name] / table["disputes"].replace(0, nan)
    return table.reset_index()


def selection(records: Records, tags: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """What became of every role, and the selector's precision: the share of chosen agents whose tags are among
    the roles labelled for the problem."""
    rows = []
    for condition in records.conditions:
        roles = [
            (row.episode.problem, one)
            for row in _teams_of(records, condition)
            for one in row.details.get("selections", ())
        ]
        chosen = [
            {"task": problem, "right": bool(set(one["tags"]) & set(tags[problem]))}
            for problem, one in roles
            if one["outcome"] == "selected" and tags.get(problem)
        ]
        outcomes = Counter(one["outcome"] for _, one in roles)
        precision = interval("precision", pd.DataFrame(chosen), "right") if chosen else {}
        counts = {name: outcomes[name] for name in _OUTCOMES}
        rows.append({"condition": condition, "roles": len(roles), **counts, **precision})
    return pd.DataFrame(rows)


def _teams_of(records: Records, condition: str) -> list[CaptainEventRow]:
    return [row for row in records.events if row.kind == "team" and row.episode.condition == condition]


def agents(records: Records) -> pd.DataFrame:
    """Which agents sat in a team in which scenario, and how often."""
    seats = [
        (condition, row.episode.scenario, member["agent"], member["source"])
        for condition in records.conditions
        for row in _teams_of(records, condition)
        if not row.details["recalled"]
        for member in row.details["members"]
    ]
    columns = ["condition", "scenario", "agent", "source", "teams"]
    return pd.DataFrame([(*seat, n) for seat, n in Counter(seats).most_common()], columns=columns)


def teams(records: Records) -> pd.DataFrame:
    """Redundancy of a conversation's messages (mean overlap with earlier ones) and diversity of a team's members
    (one minus the mean overlap of their profiles), by condition."""
    rows = []
    for condition in records.conditions:
        built = [
            row.details["members"] for row in _teams_of(records, condition) if not row.details["recalled"]
        ]
        talks: dict[tuple[Identity, int], list[str]] = defaultdict(list)
        for row in records.events:
            if row.kind == "message" and row.episode.condition == condition:
                talks[row.episode, row.step].append(row.text)
        repeated = [overlap(text, said[:i]) for said in talks.values() for i, text in enumerate(said) if i]
        rows.append(
            {
                "condition": condition,
                "teams": len(built),
                "members": _mean([len(members) for members in built]),
                "messages": _mean([len(said) for said in talks.values()]),
                "redundancy": _mean(repeated),
                "diversity": _mean([d for members in built for d in _diversity(members)]),
            }
        )
    return pd.DataFrame(rows)


def _diversity(members: Sequence[Mapping[str, Any]]) -> list[float]:
    pairs = combinations([member["profile"] for member in members], 2)
    alike = [(overlap(a, [b]) + overlap(b, [a])) / 2 for a, b in pairs]
    return [1 - _mean(alike)] if alike else []


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else nan


def components(records: Records) -> pd.DataFrame:
    """The ledger by condition and component: calls, tokens, latency, price; cut-short attempts included."""
    calls = records.ledger.assign(calls=1, errors=records.ledger["error"] != "")
    sums = dict.fromkeys(("calls", "prompt_tokens", "completion_tokens", "latency_s"), "sum")
    grouped = calls.groupby(["condition", "component"], sort=False)
    return grouped.agg({**sums, "price": _total, "errors": "sum"}).reset_index()


def failures(records: Records) -> pd.DataFrame:
    """Episodes the engine gave up on."""
    lines = records.outcomes
    return lines.loc[lines["ending"] == "failed", ["condition", "problem", "seed", "error"]]
