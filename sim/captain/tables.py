"""From rows to tables: pure functions, each answering with a data frame ready for CSV.

A failed episode is a wrong answer and stays in every denominator. Every mean is one over problems of each
problem's mean; intervals are 95%, clustered by problem family; comparisons are paired by problem and seed.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sim.discussion.text import overlap
from sim.records.captain_rows import CaptainCallRow, CaptainEpisodeRow, CaptainEventRow, Identity
from sim.records.store import read_rows
from sim.studies.intervals import FewTasks, clustered, holm, pair, t_test, task_means

ALL = "all"


@dataclass(frozen=True)
class Records:
    """The rows of a run. Calls of cut-short attempts stand in `calls` too: they were paid for."""

    episodes: tuple[CaptainEpisodeRow, ...]
    events: tuple[CaptainEventRow, ...]
    calls: tuple[CaptainCallRow, ...]

    def of(self, who: Identity) -> list[CaptainEventRow]:
        """The events of a finished episode."""
        return [row for row in self.events if row.episode == who]

    @property
    def conditions(self) -> list[str]:
        """Conditions in the order in which they first finished an episode."""
        return list(dict.fromkeys(row.episode.condition for row in self.episodes))


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


def _interval(name: str, values: Iterable[float], family: Iterable[str]) -> dict[str, Any]:
    """A mean with its interval; where there are few problems the note says so instead of a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewTasks)
        found = clustered(list(values), list(family))
    note = found.note.replace("task", "problem")
    return {name: found.estimate, f"{name}_low": found.low, f"{name}_high": found.high, "note": note}


def _slices(records: Records) -> Iterable[tuple[str, str, list[CaptainEpisodeRow]]]:
    """Condition, scenario (and all of them together), and their episodes."""
    for condition in records.conditions:
        mine = [row for row in records.episodes if row.episode.condition == condition]
        scenarios = list(dict.fromkeys(row.episode.scenario for row in mine))
        yield condition, ALL, mine
        if len(scenarios) > 1:
            for scenario in scenarios:
                yield condition, scenario, [row for row in mine if row.episode.scenario == scenario]


def accuracy(records: Records) -> pd.DataFrame:
    """One row per condition and scenario: accuracy with its interval, and what an answer costs."""
    prices: dict[Identity, list[float | None]] = defaultdict(list)
    for call in records.calls:
        prices[call.episode].append(call.price)
    rows = []
    for condition, scenario, mine in _slices(records):
        family = [row.family for row in mine]
        paid = [_sum(prices[row.episode]) for row in mine]
        tokens = float(task_means([row.tokens for row in mine], family).mean())
        right = _interval("accuracy", [row.correct for row in mine], family)
        note = right.pop("note")
        rows.append(
            {
                "condition": condition,
                "scenario": scenario,
                "n_problems": len(set(family)),
                "n_episodes": len(mine),
                "failed": sum(row.ending == "failed" for row in mine),
                "unfinished": sum(row.ending in ("unfinished", "budget") for row in mine),
                **right,
                "tokens": tokens,
                "accuracy_per_1k_tokens": 1000 * right["accuracy"] / tokens if tokens else nan,
                "price": nan if np.isnan(paid).any() else float(task_means(paid, family).mean()),
                "seconds": float(task_means([row.seconds for row in mine], family).mean()),
                "steps": float(task_means([row.steps for row in mine], family).mean()),
                "malformed": sum(row.malformed for row in mine),
                "note": note,
            }
        )
    return pd.DataFrame(rows)


def _sum(prices: Sequence[float | None]) -> float:
    """The sum of prices; NaN where one is unknown."""
    return nan if any(price is None for price in prices) else float(sum(price or 0.0 for price in prices))


def paired(records: Records, reference: str) -> pd.DataFrame:
    """Each condition minus the reference, paired by problem and seed; p-values corrected by Holm."""
    values: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)
    family = {row.episode.problem: row.family for row in records.episodes}
    for row in records.episodes:
        values[row.episode.condition][row.episode.problem, row.episode.seed] = float(row.correct)
    rows: list[dict[str, Any]] = []
    against = values.get(reference, {})
    for condition in records.conditions:
        both = values[condition].keys() & against.keys()
        if condition == reference or not both:
            continue
        mine, theirs, _ = pair({k: values[condition][k] for k in both}, {k: against[k] for k in both})
        groups = [family[problem] for problem, _ in sorted(both)]
        rows.append(
            {
                "condition": condition,
                "reference": reference,
                "n_pairs": len(both),
                "unpaired": len(values[condition]) - len(both),
                **_interval("difference", mine - theirs, groups),
                "p_value": t_test(task_means(mine - theirs, groups)),
            }
        )
    adjusted = holm([row["p_value"] for row in rows])
    return pd.DataFrame([row | {"p_holm": p} for row, p in zip(rows, adjusted, strict=True)])


def reflector(records: Records) -> pd.DataFrame:
    """Disputes, planted or real: how many were there, detected, and checked; and which answers were flipped."""
    fields = ("disputes", "detected", "checked", "right_to_wrong", "wrong_to_right")
    rows = []
    for condition in records.conditions:
        mine = [row for row in records.episodes if row.episode.condition == condition]
        counts = {name: sum(getattr(row, name) for row in mine) for name in fields}
        shares = {
            f"{name}_share": counts[name] / counts["disputes"] if counts["disputes"] else nan
            for name in ("detected", "checked")
        }
        rows.append({"condition": condition, **counts, **shares})
    return pd.DataFrame(rows)


def selection(records: Records, tags: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """What became of every role, and the selector's precision: the share of chosen agents whose tags are among
    the roles labelled for the problem."""
    rows = []
    for condition in records.conditions:
        outcomes: Counter[str] = Counter()
        right: list[float] = []
        problems: list[str] = []
        for row in records.events:
            if row.episode.condition != condition or row.kind != "team":
                continue
            for one in row.details.get("selections", ()):
                outcomes[one["outcome"]] += 1
                wanted = tags.get(row.episode.problem, ())
                if one["outcome"] == "selected" and wanted:
                    right.append(float(bool(set(one["tags"]) & set(wanted))))
                    problems.append(row.episode.problem)
        precision = _interval("precision", right, problems) if right else {}
        names = ("selected", "abstained", "nothing_near", "unknown", "unreadable")
        rows.append(
            {
                "condition": condition,
                "roles": outcomes.total(),
                **{n: outcomes[n] for n in names},
                **precision,
            }
        )
    return pd.DataFrame(rows)


def agents(records: Records) -> pd.DataFrame:
    """Which agents sat in a team in which scenario, and how often."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for row in records.events:
        if row.kind == "team" and not row.details["recalled"]:
            for member in row.details["members"]:
                who = row.episode
                counts[who.condition, who.scenario, member["agent"], member["source"]] += 1
    columns = ["condition", "scenario", "agent", "source", "teams"]
    return pd.DataFrame(
        [(*key, n) for key, n in sorted(counts.items(), key=lambda item: -item[1])], columns=columns
    )


def teams(records: Records) -> pd.DataFrame:
    """Redundancy of a conversation's messages (mean overlap with earlier ones) and diversity of a team's members
    (one minus the mean overlap of their profiles), by condition."""
    rows = []
    for condition in records.conditions:
        talks: dict[tuple[Identity, int], list[str]] = defaultdict(list)
        diversity: list[float] = []
        sizes: list[int] = []
        for row in records.events:
            if row.episode.condition != condition:
                continue
            if row.kind == "message":
                talks[row.episode, row.step].append(row.text)
            elif row.kind == "team" and not row.details["recalled"]:
                members = row.details["members"]
                sizes.append(len(members))
                diversity += _diversity([member["profile"] for member in members])
        redundancy = [overlap(text, said[:i]) for said in talks.values() for i, text in enumerate(said) if i]
        rows.append(
            {
                "condition": condition,
                "teams": len(sizes),
                "members": _mean(sizes),
                "messages": _mean([len(said) for said in talks.values()]),
                "redundancy": _mean(redundancy),
                "diversity": _mean(diversity),
            }
        )
    return pd.DataFrame(rows)


def _diversity(profiles: Sequence[str]) -> list[float]:
    pairs = [(overlap(a, [b]) + overlap(b, [a])) / 2 for a, b in combinations(profiles, 2)]
    return [1 - float(np.mean(pairs))] if pairs else []


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else nan


def components(records: Records) -> pd.DataFrame:
    """The ledger by condition and component: calls, tokens, latency, price; cut-short attempts included."""
    columns: dict[str, Callable[[CaptainCallRow], float]] = {
        "calls": lambda call: 1,
        "prompt_tokens": lambda call: call.prompt_tokens,
        "completion_tokens": lambda call: call.completion_tokens,
        "latency_s": lambda call: call.latency_s,
        "price": lambda call: nan if call.price is None else call.price,
        "errors": lambda call: bool(call.error),
    }
    groups: dict[tuple[str, str], list[CaptainCallRow]] = defaultdict(list)
    for call in records.calls:
        groups[call.episode.condition, call.component].append(call)
    rows = [
        {"condition": condition, "component": component}
        | {name: sum(value(call) for call in calls) for name, value in columns.items()}
        for (condition, component), calls in groups.items()
    ]
    return pd.DataFrame(rows)


def failures(records: Records) -> pd.DataFrame:
    """Episodes the engine gave up on."""
    failed = [row for row in records.episodes if row.ending == "failed"]
    return pd.DataFrame(
        [(r.episode.condition, r.episode.problem, r.episode.seed, r.error) for r in failed],
        columns=["condition", "problem", "seed", "error"],
    )
