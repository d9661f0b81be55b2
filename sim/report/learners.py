"""What each learned condition was taught: its networks, the tasks behind them, and how training went, from the
model cards beside the weights. Pure functions, as in `tables`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import numpy as np
import pandas as pd

from sim.config import DRAW_MARK, FOLD_MARK
from sim.report.frames import Frames
from sim.report.source import Cards
from sim.report.tables import sorted_conditions

_REGRETS = ("regret", "uniform_regret", "constant_regret")


def learners(cards: Cards, frames: Frames) -> pd.DataFrame:
    """One row per learned condition; numbers are means over its networks (draws, folds of the test tasks).

    `families` were trained on or validated on, `test_tasks_seen` of them are tasks of the evaluation. Regrets are
    one-step, on the validation families: of the network, of a uniform draw, of the best constant intervention.
    """
    tested = set(frames.episodes["task"])
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for folder, card in cards.items():
        grouped.setdefault(_condition_of(folder), []).append(card)
    return pd.DataFrame([_row(name, grouped[name], tested) for name in sorted_conditions(grouped)])


def _condition_of(folder: str) -> str:
    """The condition whose weights a folder holds: `mlp_five` of `mlp_five#3`."""
    return folder.partition(FOLD_MARK)[0].partition(DRAW_MARK)[0]


def _row(name: str, cards: Sequence[Mapping[str, Any]], tested: set[str]) -> dict[str, object]:
    training = cards[0]["training"]
    counts = {
        key: _mean(card["statistics"][key] for card in cards) for key in ("families", "decisions", "branches")
    }
    return {
        "condition": name,
        "networks": len(cards),
        "target": training["target"],
        "horizon": training["horizon"],
        "groups": "+".join(training["groups"]),
        **counts,
        "validation_families": _mean(card["validation"]["families"] for card in cards),
        "test_tasks_seen": _mean(
            len(tested.intersection(card["train_tasks"] + card["validation_tasks"])) for card in cards
        ),
        "best_epoch": _mean(card["validation"]["best_epoch"] for card in cards),
        **{f"validation_{key}": _mean(card["validation"][key] for card in cards) for key in _REGRETS},
    }


def _mean(values: Any) -> float:
    """The mean of what is known; NaN where nothing is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else nan


def families_of(table: pd.DataFrame) -> dict[str, float]:
    """How many task families each learned condition was taught on."""
    return dict(zip(table["condition"], table["families"], strict=True)) if len(table) else {}
