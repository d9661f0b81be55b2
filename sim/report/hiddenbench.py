"""HiddenBench's own table: accuracy before discussion, after it, and under full information, averaged over agents
and by strict majority (METHOD 11). From frames alone.
"""

from __future__ import annotations

import pandas as pd

from sim.report.frames import Frames
from sim.report.tables import BEFORE, FULL, REFERENCE, interval, note_on

_COLUMNS = {"average": "vote_accuracy", "majority": "majority"}
_STAGES = {"pre": BEFORE, "post": REFERENCE, "full": FULL}
_PAIR = ["task", "seed"]


def hiddenbench(frames: Frames) -> pd.DataFrame:
    """A row for each of `average` (share of correct votes) and `majority` (more than half of the votes correct).

    `pre`, `post` and `full` are the three conditions; `integration_gain` is post minus pre and `gap_to_full` full
    minus post, both paired by task and seed. Empty where one of the conditions was not held.
    """
    episodes = frames.episodes
    held = {stage: episodes[episodes["condition"] == name] for stage, name in _STAGES.items()}
    if not all(len(mine) for mine in held.values()):
        return pd.DataFrame()
    return pd.DataFrame([_row(rule, column, held) for rule, column in _COLUMNS.items()])


def _row(rule: str, column: str, held: dict[str, pd.DataFrame]) -> dict[str, object]:
    return {
        "rule": rule,
        "n_tasks": held["post"]["task"].nunique(),
        "n_episodes": len(held["post"]),
        **{
            key: value for stage, mine in held.items() for key, value in interval(stage, mine, column).items()
        },
        **_difference("integration_gain", held["post"], held["pre"], column),
        **_difference("gap_to_full", held["full"], held["post"], column),
        "note": note_on(held["post"]),
    }


def _difference(name: str, more: pd.DataFrame, less: pd.DataFrame, column: str) -> dict[str, float]:
    pairs = more[[*_PAIR, column]].merge(less[[*_PAIR, column]], on=_PAIR, suffixes=("", "_less"))
    return interval(name, pairs.assign(change=pairs[column] - pairs[f"{column}_less"]), "change")
