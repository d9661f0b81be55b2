"""The comparisons a study was made for: its contrasts, the spread over draws of the training tasks, what more
tasks would show, and what accuracy cost. Pure functions from frames to tables, as in `tables`.

A condition held for several draws (`name#0`, `name#1`, …) enters a contrast as the mean over its draws of each
(task, seed); how much the draws differ is a table of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from math import isfinite, nan
from typing import Any

import numpy as np
import pandas as pd

from sim.config import DRAW_MARK
from sim.report.frames import Frames
from sim.report.tables import interval, mean_known, mean_over_tasks, note_on, sorted_conditions
from sim.studies.intervals import holm, t_interval, t_test, task_means
from sim.studies.power import detectable_gap, tasks_needed, variance_components

GAP = 0.05
"""The gap in task accuracy that the table of power is about."""
NO_GAP = 0.03
"""A paired difference in task accuracy whose 95% interval lies within ± this is reported as no gap (METHOD 8's
question of held-out against all-task training)."""
_KEY = ["task", "seed"]
_MEANS = ("correct", "vote_accuracy", "rounds")

Pairs = Mapping[str, Sequence[str]]
"""Label -> (condition, the one it is compared with)."""


Row = dict[str, Any]


def contrasts(frames: Frames, pairs: Pairs, families: Mapping[str, float] | None = None) -> pd.DataFrame:
    """One row per contrast: paired differences in task and vote accuracy, with p-values corrected by Holm over
    the table; and, where branches were compared, the change in J per intervention and normalised regret.

    `families` says how many task families each learned condition was taught on. Final objectives are not
    compared: under other termination rules they mean something else (METHOD 11).
    """
    rows = [
        found
        for label, (name, reference) in pairs.items()
        if (found := _contrast(frames, label, name, reference))
    ]
    adjusted = holm([row["p_value"] for row in rows])
    notes = [_notes(row, rows, families or {}) for row in rows]
    return pd.DataFrame(
        [row | {"p_holm": p, "note": note} for row, p, note in zip(rows, adjusted, notes, strict=True)]
    )


def _contrast(frames: Frames, label: str, name: str, reference: str) -> Row:
    """One row; empty where either condition was not held."""
    mine, theirs = _over_draws(frames.episodes, name), _over_draws(frames.episodes, reference)
    pairs = _paired(mine, theirs)
    if not len(pairs):
        return {}
    change = pairs["correct_change"].to_numpy(dtype=float)
    found = interval("difference", pairs, "correct_change")
    return {
        "contrast": label,
        "condition": name,
        "reference": reference,
        "n_tasks": pairs["task"].nunique(),
        "n_pairs": len(pairs),
        "pairs_that_differ": int(np.count_nonzero(change)),
        "unpaired": len(mine) + len(theirs) - 2 * len(pairs),
        "task_accuracy": mean_over_tasks(pairs, "correct"),
        "reference_task_accuracy": mean_over_tasks(pairs, "correct_reference"),
        **found,
        **_by_draw(frames.episodes, name, reference),
        "no_gap": found["difference_low"] >= -NO_GAP and found["difference_high"] <= NO_GAP,
        "p_value": t_test(task_means(change, pairs["task"].to_numpy(dtype=str))),
        **interval("vote_accuracy_difference", pairs, "vote_accuracy_change"),
        "rounds_difference": mean_over_tasks(pairs, "rounds_change"),
        "lengths_that_differ": int(np.count_nonzero(pairs["rounds_change"])),
        **_of_decisions(frames.decisions, name, ""),
        **_of_decisions(frames.decisions, reference, "reference_"),
        "note": note_on(pairs),
    }


def _by_draw(episodes: pd.DataFrame, name: str, reference: str) -> Row:
    """The difference over draws of the training tasks, with Student's t interval: what other draws, and other
    seeds of training, would have shown on these tasks. A condition of one draw is the same in all of them."""
    mine, theirs = _accuracy_by_draw(episodes, name), _accuracy_by_draw(episodes, reference)
    if len(mine) == 1:
        mine = dict.fromkeys(theirs, *mine.values())
    if len(theirs) == 1:
        theirs = dict.fromkeys(mine, *theirs.values())
    shared = sorted(mine.keys() & theirs.keys())
    if len(shared) < 2:
        return {"draws": len(shared), **_spelt(nan, nan, nan)}
    found = t_interval(np.array([mine[draw] - theirs[draw] for draw in shared]))
    return {"draws": len(shared), **_spelt(found.estimate, found.low, found.high)}


def _accuracy_by_draw(episodes: pd.DataFrame, name: str) -> dict[str, float]:
    """Task accuracy of each draw of a condition, by the draw's number; by the empty text where there is one."""
    mine = episodes[_named(episodes, name)]
    return {
        str(condition).partition(DRAW_MARK)[2]: mean_over_tasks(part, "correct")
        for condition, part in mine.groupby("condition")
    }


def _spelt(estimate: float, low: float, high: float) -> dict[str, float]:
    name = "difference_by_draw"
    return {name: estimate, f"{name}_low": low, f"{name}_high": high}


def _notes(row: Row, rows: Sequence[Row], families: Mapping[str, float]) -> str:
    """What a reader must know of a contrast: few tasks, no pair that differs, what a gap is made of."""
    notes = [str(row["note"]), _unchanged(row), _parts(row, rows, families)]
    return "; ".join(note for note in notes if note)


def _unchanged(row: Row) -> str:
    """An interval of no width is no precision: it comes from pairs of which none differs."""
    if row["pairs_that_differ"]:
        return ""
    return (
        f"{row['contrast']}: the outcome is the same in all {row['n_pairs']} pairs (the number of rounds differs in "
        f"{row['lengths_that_differ']}), so the interval has no width and says nothing"
    )


def _parts(row: Row, rows: Sequence[Row], families: Mapping[str, float]) -> str:
    """A gap between two learned conditions, where two other contrasts lead from one end to the other: how large
    each of them is, and what the ends were taught on."""
    ends = (row["condition"], row["reference"])
    if row["no_gap"] or not families.keys() >= set(ends):
        return ""
    for first, second in permutations(rows, 2):
        if (first["condition"], second["reference"]) == ends and first["reference"] == second["condition"]:
            taught = ", ".join(f"{name} learned from {families[name]:g} task families" for name in ends)
            parts = f"it is {_gap(first)} and {_gap(second)}"
            return f"{_gap(row)} is not within ±{NO_GAP}: {parts}{_other_draws(row)}; {taught}"
    return ""


def _gap(row: Row) -> str:
    low, high = row["difference_low"], row["difference_high"]
    return f"{row['contrast']} {row['difference']:+.3f} [{low:.3f}, {high:.3f}]"


def _other_draws(row: Row) -> str:
    """What the draws say of a gap: an interval over tasks holds the networks fixed."""
    if row["draws"] < 2:
        return ""
    low, high = row["difference_by_draw_low"], row["difference_by_draw_high"]
    other = (
        "which other draws need not have shown" if low <= 0 <= high else "which other draws would show too"
    )
    return f"; over {row['draws']} draws of the training tasks [{low:.3f}, {high:.3f}], {other}"


def _of_decisions(decisions: pd.DataFrame, name: str, prefix: str) -> dict[str, float]:
    mine = decisions[_named(decisions, name)]
    return {
        f"{prefix}objective_change": mean_known(mine, "objective_change"),
        f"{prefix}mean_normalised_regret": mean_known(mine, "normalised_regret"),
    }


def _named(frame: pd.DataFrame, name: str) -> pd.Series:
    """Which lines belong to a condition, whatever the draw."""
    return (frame["condition"] == name) | frame["condition"].str.startswith(name + DRAW_MARK)


def _over_draws(episodes: pd.DataFrame, name: str) -> pd.DataFrame:
    """A condition's outcome per (task, seed), averaged over its draws."""
    mine = episodes[_named(episodes, name)]
    return mine.astype({"correct": float}).groupby(_KEY, as_index=False, sort=True)[list(_MEANS)].mean()


def _paired(mine: pd.DataFrame, reference: pd.DataFrame) -> pd.DataFrame:
    pairs = mine.merge(reference, on=_KEY, suffixes=("", "_reference"))
    changes = {f"{column}_change": pairs[column] - pairs[f"{column}_reference"] for column in _MEANS}
    return pairs.assign(**changes)


def draws(frames: Frames) -> pd.DataFrame:
    """One row per condition held for several draws of its training tasks: the mean with its interval over
    tasks, and beside it the spread of the draws' own accuracies."""
    names = {name.partition(DRAW_MARK)[0] for name in frames.episodes["condition"] if DRAW_MARK in name}
    return pd.DataFrame([_spread(frames.episodes, name) for name in sorted_conditions(names)])


def _spread(episodes: pd.DataFrame, name: str) -> dict[str, float | str | int]:
    mine = episodes[_named(episodes, name)]
    accuracies = np.array([mean_over_tasks(part, "correct") for _, part in mine.groupby("condition")])
    pooled = _over_draws(episodes, name)
    return {
        "condition": name,
        "draws": len(accuracies),
        "n_tasks": pooled["task"].nunique(),
        **interval("task_accuracy", pooled, "correct"),
        "sd_over_draws": float(accuracies.std(ddof=1)) if len(accuracies) > 1 else nan,
        "lowest_draw": float(accuracies.min()),
        "highest_draw": float(accuracies.max()),
        "note": note_on(pooled),
    }


def power(frames: Frames, pairs: Pairs) -> pd.DataFrame:
    """One row per contrast held over two seeds or more: how its difference varies between and within tasks, the
    gap that this design sees with power 0.8, and the tasks it takes to see a gap of 0.05, by seeds per task."""
    rows = []
    for label, (name, reference) in pairs.items():
        found = _paired(_over_draws(frames.episodes, name), _over_draws(frames.episodes, reference))
        if len(found) > found["task"].nunique() >= 2:
            rows.append({"contrast": label, **_power_row(found)})
    return pd.DataFrame(rows)


def _power_row(pairs: pd.DataFrame) -> dict[str, float]:
    tasks = pairs["task"].nunique()
    seeds = max(1, round(len(pairs) / tasks))
    between, within = variance_components(pairs["correct_change"], pairs["task"].to_numpy(dtype=str))
    return {
        "n_tasks": tasks,
        "seeds": seeds,
        "sd_between_tasks": between,
        "sd_within_tasks": within,
        "detectable_gap": detectable_gap(tasks, seeds, between, within),
        **{f"tasks_for_{GAP}_at_{m}_seeds": tasks_needed(GAP, m, between, within) for m in (1, 5, 20)},
    }


def efficiency(accuracy: pd.DataFrame) -> pd.DataFrame:
    """What accuracy cost in communication: the columns of the accuracy table that say so, and accuracy per
    message."""
    if not len(accuracy):
        return pd.DataFrame()
    wanted = (
        "condition", "n_tasks", "task_accuracy", "rounds", "messages", "words", "committed_prompt_tokens",
        "committed_completion_tokens", "counterfactual_prompt_tokens", "counterfactual_completion_tokens",
        "branches_evaluated", "accuracy_per_1k_committed_tokens", "note",
    )  # fmt: skip
    table = accuracy[[column for column in wanted if column in accuracy]].copy()
    table.insert(
        len(table.columns) - 1, "accuracy_per_message", _ratio(table["task_accuracy"], table["messages"])
    )
    return table


def _ratio(value: pd.Series, per: pd.Series) -> list[float]:
    return [
        float(a / b) if isfinite(b) and b > 0 else nan
        for a, b in zip(value.tolist(), per.tolist(), strict=True)
    ]
