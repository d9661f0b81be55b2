"""Fitting the band of a screened condition: a fresh part of the screening fold for every round (METHOD 4, 7).

Round t's part runs under the bands of the rounds before and is evaluated in full at t, so that the statement
holds at every round of the policy deployed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from conformal import Thresholds, order_statistic, rank
from conformal.screened import (
    GRID,
    Predictions,
    constant_predictions,
    problem,
    procedure_scores,
    union_scores,
)
from sim.arrays import Floats, Ints
from sim.config import SCREEN_SUFFIX
from sim.discussion.actions import ACTION_NAMES, parse_action
from sim.errors import UserError
from sim.records.rows import DecisionRow, EpisodeRow
from sim.records.run_dir import read_json, write_json
from sim.studies.calibration import calibration_work, rounds_of
from sim.studies.rollout import Policy
from sim.studies.screening import Forecast, ScreenedGate
from sim.studies.study import Advance, Study, fold, hold
from sim.tasks import folds as cut_folds

SCREENS = "screens.json"


class Band(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fitted band by round; null is +inf: evaluate everything. `n` and `k` are the families and the rank
    behind each; `means` and `scales` are the forecast, a constant per action."""

    alpha_s: float
    kind: str
    values: list[float | None]
    n: list[int]
    k: list[int]
    means: dict[str, float]
    scales: dict[str, float]
    guarantee: str

    @property
    def widths(self) -> Floats:
        """The bands (T,) with +inf spelled out."""
        return np.array([np.inf if value is None else value for value in self.values])


@dataclass(frozen=True)
class ConstantForecast:
    """One objective per action, whatever the state. Learned forecasts saved no more (scripts/certificates.py)."""

    means: Floats
    scales: Floats

    def __call__(self, states: Floats, actions: Ints) -> Predictions:
        """Means and scales of the actions (n, C)."""
        return Predictions(self.means[actions], self.scales[actions])


def constant_forecast(decisions: list[DecisionRow]) -> tuple[dict[str, float], dict[str, float]]:
    """Mean and scale of J by action over the explored branches, of the actions that occur there.

    Raises UserError where nothing was explored.
    """
    table = np.full((len(decisions), len(ACTION_NAMES)), np.nan)
    for row, decision in zip(table, decisions, strict=True):
        for candidate, objective in zip(decision.candidates, decision.objectives, strict=True):
            if objective is not None:
                row[parse_action(candidate.split("@")[0])] = objective
    seen = np.flatnonzero(~np.isnan(table).all(0)) if len(table) else np.array([], np.int64)
    if not len(seen):
        raise UserError("screening needs explored branches; give the split a train fold and run explore")
    found = constant_predictions(table[:, seen], ~np.isnan(table[:, seen]))
    names = [ACTION_NAMES[action] for action in seen.tolist()]
    means, scales = (dict(zip(names, column.tolist(), strict=True)) for column in found)
    return means, scales


def forecast_of(band: Band) -> Forecast:
    """The forecast that a stored band was fitted with."""
    missing = np.full(len(ACTION_NAMES), np.nan)
    means, scales = missing.copy(), missing.copy()
    for name, value in band.means.items():
        means[parse_action(name)], scales[parse_action(name)] = value, band.scales[name]
    return ConstantForecast(means, scales)


def screened(policy: Policy, thresholds: Thresholds, band: Band, audit_fraction: float) -> Policy:
    """The condition `X+screen`: the same policy, evaluating only what its band cannot rule out."""
    gate = ScreenedGate(thresholds, band.widths, forecast_of(band), audit_fraction)
    return replace(policy, name=policy.name + SCREEN_SUFFIX, gate=gate)


async def fit_band(
    study: Study, policy: Policy, thresholds: Thresholds, decisions: list[DecisionRow], advance: Advance
) -> Band:
    """The band of a condition at the configured alpha_s, from a fresh part of the fold for every round."""
    config = study.config.screening
    tasks = fold(study, "screening")
    rounds = rounds_of(study)
    means, scales = constant_forecast(decisions)
    band = Band(
        alpha_s=config.alpha_s, kind=config.band, values=[None] * rounds, n=[0] * rounds,
        k=[1] * rounds, means=means, scales=scales,
        guarantee=f"P(executed regret <= q_t | round t reached) >= {1 - config.alpha_s:g} at every round of "
        "this policy, over new task families; not surely, as without screening",
    )  # fmt: skip
    for t, part in enumerate(cut_folds(tasks, rounds, study.config.split.seed), 1):
        running = screened(policy, thresholds, band, audit_fraction=0.0)
        work = calibration_work(study, f"screen-{t}", running, None, part)
        await hold(study, [work], advance)
        stage = work.stage
        scores = round_scores(
            study.episodes(stage, running.name), study.decisions(stage, running.name), t, thresholds, band
        )
        band = _with_round(band, t, scores)
    return band


def round_scores(
    episodes: list[EpisodeRow], decisions: list[DecisionRow], t: int, thresholds: Thresholds, band: Band
) -> Floats:
    """Screening scores of the families that reached round t; +inf for a discussion that failed by then."""
    rows = [row for row in decisions if row.round == t]
    failed = [row for row in episodes if row.ending == "failed" and row.rounds < t]
    lost = np.full(len(failed), np.inf)
    if not rows:
        return lost
    actions = np.array([[parse_action(name.split("@")[0]) for name in row.candidates] for row in rows])
    objectives = np.array(
        [[np.inf if value is None else value for value in row.objectives] for row in rows], dtype=np.float64
    )
    given = problem(
        np.array([row.proposal for row in rows]),
        forecast_of(band)(np.empty((len(rows), 0)), actions),
        thresholds.acceptance[t - 1],
        0.0,
        np.isfinite(objectives),
    )
    score = (
        procedure_scores(given, objectives, GRID)
        if band.kind == "procedure"
        else union_scores(given, objectives)
    )
    return np.concatenate([score, lost])


def _with_round(band: Band, t: int, scores: Floats) -> Band:
    width = order_statistic(scores, band.alpha_s, signed=True) if len(scores) else np.inf
    values, n, k = list(band.values), list(band.n), list(band.k)
    values[t - 1] = float(width) if np.isfinite(width) else None
    n[t - 1], k[t - 1] = len(scores), rank(len(scores), band.alpha_s)
    return msgspec.structs.replace(band, values=values, n=n, k=k)


def read_bands(directory: Path) -> dict[str, Band]:
    """The bands of a run by condition; empty before they are fitted."""
    path = directory / SCREENS
    if not path.is_file():
        return {}
    try:
        return msgspec.convert(read_json(path), dict[str, Band])
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {error}") from error


def write_bands(directory: Path, bands: dict[str, Band]) -> None:
    """Keep the bands of a run."""
    content: dict[str, Any] = {name: msgspec.to_builtins(band) for name, band in bands.items()}
    write_json(directory / SCREENS, content)
