"""Tables of the study of learning, from its outcomes alone: one row per recipe, draw and test task.

Means are over tasks of each task's mean over draws, with intervals clustered by task; the spread over draws
stands beside them, because which tasks were drawn matters as much as how they were learned from.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from math import nan
from pathlib import Path

import pandas as pd

from sim.errors import UserError
from sim.records.run_dir import write_text
from sim.studies.intervals import (
    FEW_TASKS,
    FewTasks,
    Interval,
    clustered,
    holm,
    t_interval,
    t_test,
    task_means,
)

OUTCOMES = "outcomes.csv"
_METRICS = ("expected_regret", "task_accuracy")
_COLUMNS = {"recipe", "trained_on", "draw", "task", *_METRICS}


def write_tables(directory: Path, compared_with: str) -> dict[str, pd.DataFrame]:
    """Write tables/*.csv of a study from its outcomes.csv and print them. UserError where that is not one."""
    path = directory / OUTCOMES
    if not path.is_file():
        raise UserError(f"{path}: is missing; give the directory of a finished study of learning")
    outcomes = pd.read_csv(path, dtype={"task": str, "recipe": str, "trained_on": str})
    if set(outcomes.columns) != _COLUMNS:
        raise UserError(f"{path}: columns are {list(outcomes.columns)}; expected {sorted(_COLUMNS)}")
    tables = {"recipes": recipes(outcomes), "contrasts": contrasts(outcomes, compared_with)}
    (directory / "tables").mkdir(exist_ok=True)
    for name, table in tables.items():
        write_text(directory / "tables" / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))
        print(_for_terminal(table).to_string(index=False, na_rep="–"), end="\n\n")
    print(directory)
    return tables


def _for_terminal(table: pd.DataFrame) -> pd.DataFrame:
    """The table without what a terminal has no room for, under short names."""
    dropped = ("_lowest_draw", "_highest_draw", "p_value", "compared_with", "n_tasks")
    kept = [name for name in table.columns if not name.endswith(dropped)]
    short = {"expected_regret": "regret", "task_accuracy": "accuracy", "sd_over_draws": "sd"}
    names = {name: name for name in kept}
    for long, brief in short.items():
        names = {name: shown.replace(long, brief) for name, shown in names.items()}
    return table[kept].round(4).rename(columns=names)


def recipes(outcomes: pd.DataFrame) -> pd.DataFrame:
    """One row per recipe and kind of training: both metrics with intervals and their spread over draws."""
    rows = []
    for (kind, recipe), part in outcomes.groupby(["trained_on", "recipe"], sort=False):
        row: dict[str, object] = {
            "trained_on": kind,
            "recipe": recipe,
            "draws": part["draw"].nunique(),
            "n_tasks": part["task"].nunique(),
        }
        for metric in _METRICS:
            row |= _summary(part, metric)
        rows.append(row | {"note": _note(part)})
    return pd.DataFrame(rows)


def _summary(part: pd.DataFrame, metric: str) -> dict[str, float]:
    known = part.dropna(subset=[metric])
    if not len(known):
        return dict.fromkeys((metric, f"{metric}_low", f"{metric}_high", f"{metric}_sd_over_draws"), nan)
    draws = known.groupby("draw")[metric].mean()
    return {
        **_spelt(metric, _clustered(known, metric)),
        f"{metric}_sd_over_draws": float(draws.std(ddof=1)) if len(draws) > 1 else nan,
        f"{metric}_lowest_draw": float(draws.min()),
        f"{metric}_highest_draw": float(draws.max()),
    }


def contrasts(outcomes: pd.DataFrame, compared_with: str) -> pd.DataFrame:
    """Each recipe minus one of them, paired by task and draw: an interval over tasks, and one over draws, which
    says what another draw of the training tasks would have shown. Holm's correction over the table."""
    rows = list(_contrast_rows(outcomes, compared_with))
    for metric in _METRICS:
        mine = [row for row in rows if row["metric"] == metric]
        for row, adjusted in zip(mine, holm([row["p_value"] for row in mine]), strict=True):
            row["p_holm"] = float(adjusted)
    return pd.DataFrame(rows)


def _contrast_rows(outcomes: pd.DataFrame, compared_with: str) -> Iterator[dict[str, float | str]]:
    few = outcomes[outcomes["trained_on"] == "few"]
    reference = few[few["recipe"] == compared_with]
    for metric in _METRICS:
        for recipe in dict.fromkeys(few["recipe"]):
            if recipe != compared_with:
                pairs = few[few["recipe"] == recipe].merge(
                    reference, on=["draw", "task"], suffixes=("", "_of")
                )
                pairs["difference"] = pairs[metric] - pairs[f"{metric}_of"]
                yield {"metric": metric, "recipe": recipe, "compared_with": compared_with, **_contrast(pairs)}


def _contrast(pairs: pd.DataFrame) -> dict[str, float]:
    by_draw = pairs.groupby("draw")["difference"].mean().to_numpy(dtype=float)
    over_draws = t_interval(by_draw)
    return {
        **_spelt("difference", _clustered(pairs, "difference")),
        "sd_over_draws": float(by_draw.std(ddof=1)) if len(by_draw) > 1 else nan,
        "low_over_draws": over_draws.low,
        "high_over_draws": over_draws.high,
        "p_value": t_test(task_means(pairs["difference"], pairs["task"].to_numpy(dtype=str))),
        "p_holm": nan,
    }


def _clustered(frame: pd.DataFrame, column: str) -> Interval:
    with warnings.catch_warnings():  # the note says it
        warnings.simplefilter("ignore", FewTasks)
        return clustered(frame[column].to_numpy(dtype=float), frame["task"].to_numpy(dtype=str))


def _spelt(name: str, found: Interval) -> dict[str, float]:
    return {name: found.estimate, f"{name}_low": found.low, f"{name}_high": found.high}


def _note(part: pd.DataFrame) -> str:
    tasks = part["task"].nunique()
    return f"only {tasks} tasks" if tasks < FEW_TASKS else ""
