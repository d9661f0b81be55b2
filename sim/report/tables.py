"""From frames to tables: pure functions, each answering with a data frame ready for CSV (names of METHOD 11).

A failed episode counts as a wrong decision and wrong votes. What was not measured is missing (an empty cell),
never zero. Every mean is one over tasks of each task's mean; intervals are 95%, clustered by task. Coverage
has a room of its own, `coverage`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.report.frames import COSTS, Frames, controller_of
from sim.report.source import GATE_SUFFIX
from sim.studies.intervals import FEW_TASKS, FewTasks, Method, clustered, holm, t_test, task_means

REFERENCE = "hidden_post"
BEFORE, FULL = "hidden_pre", "full_info"
_ORDER = (
    BEFORE, REFERENCE, FULL, "rules", "rules_vote", "mlp", "mlp_vote", "llm", "llm_vote", "random",
    "fixed_challenge", "fixed_clarify", "fixed_seek_evidence", "fixed_route", "greedy", "best_of_4_free",
)  # fmt: skip
_PAIR = ["task", "seed"]
_PAIRED_METRICS = {"task_accuracy": "correct", "vote_accuracy": "vote_accuracy"}


def sorted_conditions(names: Iterable[str]) -> list[str]:
    """Conditions in the order of METHOD 11, each `X+gate` after its `X`, unknown ones last by name."""
    place = {name: i for i, name in enumerate(_ORDER)}

    def rank(name: str) -> tuple[int, str, bool]:
        controller = controller_of(name)
        return place.get(controller, len(place)), controller, name != controller

    return sorted(set(names), key=rank)


def accuracy(frames: Frames) -> pd.DataFrame:
    """One row per condition: accuracies, gains, costs and regrets.

    Columns of tokens exist only where a model was called; `words` are those of the discussion itself.
    """
    episodes, decisions = frames.episodes, frames.decisions
    rows = [
        _accuracy_row(
            name,
            episodes[episodes["condition"] == name],
            decisions[decisions["condition"] == name],
            episodes,
        )
        for name in sorted_conditions(episodes["condition"])
    ]
    table = pd.DataFrame(rows)
    return table.drop(columns=_absent_costs(table)) if len(table) else table


def _accuracy_row(
    name: str, mine: pd.DataFrame, decided: pd.DataFrame, everybody: pd.DataFrame
) -> dict[str, object]:
    gated = decided[decided["gated"]]
    return {
        "condition": name,
        "n_tasks": mine["task"].nunique(),
        "n_episodes": len(mine),
        "failed": int(mine["failed"].sum()),
        **interval("task_accuracy", mine, "correct"),
        **interval("vote_accuracy", mine, "vote_accuracy"),
        "majority": mean_over_tasks(mine, "majority"),
        "integration_gain": _mean_difference(mine, everybody, BEFORE),
        "gap_to_full": 0.0 - _mean_difference(mine, everybody, FULL),
        **{column: mean_over_tasks(mine, column) for column in ("rounds", "messages", "words")},
        **_costs(mine),
        "final_objective": mean_over_tasks(mine.dropna(subset=["final_objective"]), "final_objective"),
        "mean_regret": mean_known(decided, "regret"),
        "mean_normalised_regret": mean_known(decided, "normalised_regret"),
        "mean_executed_regret": mean_known(decided, "executed_regret"),
        "acceptance_rate": mean_over_tasks(gated, "accepted"),
        "set_size": mean_over_tasks(gated, "set_size"),
        "branches_evaluated": mean_over_tasks(mine, "branches_evaluated"),
        "malformed": int(mine["malformed"].sum()),
        "note": note_on(mine),
    }


def _costs(mine: pd.DataFrame) -> dict[str, float]:
    costs = {column: mean_over_tasks(mine, column) for column in _COST_COLUMNS}
    tokens = costs["committed_prompt_tokens"] + costs["committed_completion_tokens"]
    accuracy_per_1k = 1000 * mean_over_tasks(mine, "correct") / tokens if tokens > 0 else nan
    return costs | {"accuracy_per_1k_committed_tokens": accuracy_per_1k}


_COST_COLUMNS = (
    *(f"committed_{cost}" for cost in COSTS[1:]),
    *(f"counterfactual_{cost}" for cost in COSTS),
)
_TOKEN_COLUMNS = (*(c for c in _COST_COLUMNS if c.endswith("tokens")), "accuracy_per_1k_committed_tokens")


def _absent_costs(table: pd.DataFrame) -> list[str]:
    """Token columns where no token was counted; words of branches where branches were not recorded."""
    counted = bool(table[list(_TOKEN_COLUMNS)].fillna(0).to_numpy(dtype=float).any())
    unrecorded = bool(table["counterfactual_words"].isna().all())
    return ([] if counted else list(_TOKEN_COLUMNS)) + (["counterfactual_words"] if unrecorded else [])


def mean_over_tasks(frame: pd.DataFrame, column: str) -> float:
    """The mean over tasks of each task's mean; NaN where there is nothing, or where one value is missing."""
    values = frame[column].to_numpy(dtype=float)
    if not len(values) or np.isnan(values).any():
        return nan
    return float(task_means(values, _tasks(frame)).mean())


def mean_known(frame: pd.DataFrame, column: str) -> float:
    """The same over the lines that have a value: regret exists only where branches were compared."""
    return mean_over_tasks(frame.dropna(subset=[column]), column)


def _tasks(frame: pd.DataFrame) -> npt.NDArray[np.str_]:
    return frame["task"].to_numpy(dtype=str)


def interval(name: str, frame: pd.DataFrame, column: str, method: Method = "percentile") -> dict[str, float]:
    """A mean with its interval; where there are few tasks, `note_on` says so instead of a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewTasks)
        found = clustered(frame[column].to_numpy(dtype=float), _tasks(frame), method=method)
    return {name: found.estimate, f"{name}_low": found.low, f"{name}_high": found.high}


def note_on(frame: pd.DataFrame) -> str:
    """What a reader must know of an interval over these lines; empty where there is nothing."""
    n_tasks = frame["task"].nunique()
    return f"only {n_tasks} tasks" if n_tasks < FEW_TASKS else ""


def _mean_difference(mine: pd.DataFrame, everybody: pd.DataFrame, reference: str) -> float:
    """Task accuracy minus the reference's, over the (task, seed) both have; NaN where they share none."""
    return mean_over_tasks(_pairs(mine, everybody[everybody["condition"] == reference]), "correct_change")


def _pairs(mine: pd.DataFrame, reference: pd.DataFrame) -> pd.DataFrame:
    """The (task, seed) both have, with the change of each metric."""
    columns = [*_PAIR, *_PAIRED_METRICS.values()]
    pairs = mine[columns].merge(reference[columns], on=_PAIR, suffixes=("", "_reference"))
    changes = {
        f"{column}_change": pairs[column].astype(float) - pairs[f"{column}_reference"].astype(float)
        for column in _PAIRED_METRICS.values()
    }
    return pairs.assign(**changes)


def paired(frames: Frames, reference: str = REFERENCE) -> pd.DataFrame:
    """Each condition minus the reference, paired by task and seed; `unpaired` episodes have no partner.

    `p_value` is Student's on task means, `p_holm` is corrected over the conditions of one metric.
    """
    episodes = frames.episodes
    against = episodes[episodes["condition"] == reference]
    rows: list[dict[str, object]] = []
    for metric, column in _PAIRED_METRICS.items():
        found = []
        for name in sorted_conditions(episodes["condition"]):
            mine = episodes[episodes["condition"] == name]
            pairs = _pairs(mine, against)
            if name != reference and len(pairs):
                head = {"condition": name, "reference": reference, "metric": metric}
                found.append(head | paired_row(pairs, column, len(mine) - len(pairs)))
        adjusted = holm([row["p_value"] for row in found])
        rows += [row | {"p_holm": p, "note": row["note"]} for row, p in zip(found, adjusted, strict=True)]
    return pd.DataFrame(rows)


def paired_row(pairs: pd.DataFrame, column: str, unpaired: int) -> dict[str, Any]:
    """A metric's mean change over pairs, in `<column>_change`, with interval and p-value by task."""
    change = f"{column}_change"
    return {
        "n_tasks": pairs["task"].nunique(),
        "n_pairs": len(pairs),
        "unpaired": unpaired,
        **interval("difference", pairs, change),
        "p_value": t_test(task_means(pairs[change].to_numpy(dtype=float), _tasks(pairs))),
        "note": note_on(pairs),
    }


def gates(frames: Frames) -> pd.DataFrame:
    """`X` and `X+gate` side by side, for every controller that has both; the difference is paired."""
    episodes = frames.episodes
    present = set(episodes["condition"])
    both = [name for name in sorted_conditions(present) if name + GATE_SUFFIX in present]
    return pd.DataFrame([_gate_row(name, frames) for name in both])


def _gate_row(name: str, frames: Frames) -> dict[str, object]:
    episodes, decisions = frames.episodes, frames.decisions
    plain, gated = (episodes[episodes["condition"] == n] for n in (name, name + GATE_SUFFIX))
    free, held = (decisions[decisions["condition"] == n] for n in (name, name + GATE_SUFFIX))
    pairs = _pairs(gated, plain)
    return {
        "controller": name,
        "n_pairs": len(pairs),
        "task_accuracy": mean_over_tasks(plain, "correct"),
        "task_accuracy_gate": mean_over_tasks(gated, "correct"),
        **(interval("difference", pairs, "correct_change") if len(pairs) else {}),
        "rounds": mean_over_tasks(plain, "rounds"),
        "rounds_gate": mean_over_tasks(gated, "rounds"),
        "executed_regret": mean_known(free, "executed_regret"),
        "executed_regret_gate": mean_known(held, "executed_regret"),
        "acceptance_rate": mean_over_tasks(held, "accepted"),
        "replaced": mean_over_tasks(held, "replaced"),
        "set_size": mean_over_tasks(held, "set_size"),
    }


def regret_by_round(frames: Frames) -> pd.DataFrame:
    """Regret of the proposals by condition and round, where at least two branches were compared."""
    known = frames.decisions.dropna(subset=["regret"])
    rows: list[dict[str, object]] = []
    for name in sorted_conditions(known["condition"]):
        mine = known[known["condition"] == name]
        for number, here in mine.groupby("round"):
            rows.append(
                {
                    "condition": name,
                    "round": number,
                    "n": len(here),
                    **interval("mean_regret", here, "regret", "t"),
                    "mean_normalised_regret": mean_over_tasks(here, "normalised_regret"),
                    "mean_executed_regret": mean_known(here, "executed_regret"),
                }
            )
    return pd.DataFrame(rows)


def position_baselines(frames: Frames) -> pd.DataFrame:
    """What always answering the first or the last option of the published order would score, and chance."""
    episodes = frames.episodes.drop_duplicates("task")
    answers: Mapping[str, Callable[[pd.DataFrame], pd.Series]] = {
        "always_first": lambda e: e["answer"] == 0,
        "always_last": lambda e: e["answer"] == e["n_options"] - 1,
        "chance": lambda e: 1 / e["n_options"],
    }
    if not len(episodes):
        return pd.DataFrame()
    return pd.DataFrame(
        [
            {
                "baseline": name,
                "n_tasks": len(episodes),
                **interval("task_accuracy", episodes.assign(scored=rule(episodes)), "scored"),
            }
            for name, rule in answers.items()
        ]
    )


def positions(frames: Frames) -> pd.DataFrame:
    """Where final votes fall, by condition and over all, beside where the answers stand.

    `position_i` are shares of all votes in the published order of the options; abstentions, failed episodes'
    among them, have a column of their own. `displayed_i` are shares of the votes cast after a list was shown,
    by the position in that list: orders are seeded, so their deviation from even is the model's position
    bias. Without a list (cognitive agents) there are no such columns. Numbers of options must not be mixed to
    read it: `chance_i` is the share a voter without bias would give.
    """
    episodes = frames.episodes
    tasks = episodes.drop_duplicates("task")
    if not len(tasks):
        return pd.DataFrame()
    width = int(tasks["n_options"].max())
    truth = _shares(tasks["answer"].to_numpy(), tasks["n_options"].to_numpy(), width)
    rows: list[dict[str, object]] = [{"condition": "(answers)", **truth}]
    groups = [
        *(
            (name, episodes[episodes["condition"] == name])
            for name in sorted_conditions(episodes["condition"])
        ),
        ("(all votes)", episodes),
    ]
    for name, mine in groups:
        choice, options = _flat(mine, "votes")
        rows.append({"condition": name, **_shares(choice, options, width), **_displayed_shares(mine, width)})
    return pd.DataFrame(rows)


def _flat(episodes: pd.DataFrame, column: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The entries of a column of tuples, one after another, and the number of options each was chosen from."""
    entries = [entry for entry in episodes[column] for entry in entry]
    options = np.repeat(episodes["n_options"].to_numpy(), [len(entry) for entry in episodes[column]])
    return np.array(entries, dtype=np.int64), options


def _displayed_shares(episodes: pd.DataFrame, width: int) -> dict[str, object]:
    seen, options = _flat(episodes, "displayed")
    if not len(seen):
        return {}
    places = range(width)
    return {
        "displayed": len(seen),
        **{f"displayed_{i + 1}": float(np.mean(seen == i)) for i in places},
        **{f"chance_{i + 1}": float(np.mean((options > i) / options)) for i in places},
    }


def _shares(choice: npt.NDArray[np.int64], options: npt.NDArray[np.int64], width: int) -> dict[str, object]:
    by_position = {f"position_{i + 1}": float(np.mean(choice == i)) for i in range(width)}
    return {
        "n": len(choice),
        "first": by_position.get("position_1", nan),
        "last": float(np.mean(choice == options - 1)),
        "abstained": float(np.mean(choice < 0)),
        **by_position,
    }


def failures(frames: Frames) -> pd.DataFrame:
    """Every failed episode of every stage, with the round it failed in and the error."""
    lost = frames.episodes[frames.episodes["failed"]]
    columns = ["stage", "condition", "task", "seed", "round", "error"]
    return lost.assign(round=lost["rounds"] + 1)[columns].reset_index(drop=True)
