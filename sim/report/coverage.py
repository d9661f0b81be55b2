"""Whether certificates keep their promise on the test tasks: coverage by round, bands, what is vacuous.

The unit is the task family (METHOD 3): one test discussion per family, the first by task and seed. A failed
test discussion is not covered from its failure on. Exact laws come from `conformal`; thresholds are taken as
stored and, where the calibration rows are at hand, checked against them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, nan
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from conformal import Thresholds, beta_binomial_band, lower_band, tied_covered, tied_threshold
from sim.arrays import Bools, Floats
from sim.errors import UserError
from sim.randomness import keys, text_keys, uniform
from sim.report.frames import Frames, controller_of
from sim.report.source import CALIBRATION, EVALUATION, GATE_SUFFIX
from sim.report.tables import sorted_conditions

BAND_LEVEL = 0.999
ROUND_BY_ROUND = ("pilot", "sequential")
"""Modes whose thresholds are tested on both sides, with randomised ties (METHOD 10)."""
FROM_BELOW = ("audit",)

Certificates: TypeAlias = Mapping[str, Thresholds]


@dataclass(frozen=True)
class Scores:
    """Scores of the proposals (n, T), the rounds reached (n, T), and task and seed of each discussion."""

    values: Floats
    reached: Bools
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]

    def uniforms(self) -> Floats:
        """Seeded uniforms (n, T) that order ties; functions of task, seed and round alone."""
        key = keys("report ties", text_keys(self.tasks), np.array(self.seeds, dtype=np.int64))
        return uniform(key, self.values.shape[1])


def scores_by_round(episodes: pd.DataFrame, decisions: pd.DataFrame, rounds: int) -> Scores:
    """Scores of the given episodes of one condition; +inf from the round on in which an episode failed."""
    place = {
        key: i
        for i, key in enumerate(zip(episodes["stage"], episodes["task"], episodes["seed"], strict=True))
    }
    values = np.full((len(episodes), rounds), nan)
    columns = (decisions[name] for name in ("stage", "task", "seed", "round", "regret"))
    for stage, task, seed, number, regret in zip(*columns, strict=True):
        row = place.get((stage, task, seed))
        if row is not None and number <= rounds:
            values[row, number - 1] = inf if np.isnan(regret) else regret
    for row, (failed, done) in enumerate(zip(episodes["failed"], episodes["rounds"], strict=True)):
        if failed:
            values[row, done:] = inf
    return Scores(values, ~np.isnan(values), tuple(episodes["task"]), tuple(episodes["seed"]))


@dataclass(frozen=True)
class Count:
    """Test families at one round: reached, covered, and what the threshold's rank promises of them."""

    n: int
    covered: int
    k: int
    n_calibration: int

    def below(self) -> tuple[int, int]:
        """The band of a test from below."""
        return lower_band(self.n, self.k, self.n_calibration, BAND_LEVEL), self.n

    def central(self) -> tuple[int, int]:
        """The central band."""
        return beta_binomial_band(self.n, self.k, self.n_calibration, BAND_LEVEL)


def coverage(frames: Frames, certificates: Certificates) -> pd.DataFrame:
    """Coverage by round of every certified condition: of the threshold q, and in mode `pilot` of the bound
    max(eta, q) as well.

    `claim` says how a row is tested: two-sided, from below, or not at all (`none`). `inside` is missing where
    nothing is claimed, nothing was reached or no finite threshold exists.
    """
    rows: list[dict[str, object]] = []
    for condition in sorted_conditions(certificates):
        thresholds = certificates[condition]
        test = _test_scores(frames, condition, thresholds)
        spreads = _spreads(frames, condition)
        for t in range(1, thresholds.rounds + 1):
            tied = _tied_count(frames, condition, thresholds, test, t)
            here = spreads[spreads["round"] == t]
            rows += [
                {
                    "condition": condition,
                    "mode": thresholds.mode,
                    **row,
                    "vacuous": _vacuous(here, row["value"]),
                }
                for row in _rows_of_round(thresholds, test, t, tied)
            ]
    return pd.DataFrame(rows)


def certificates_table(frames: Frames, certificates: Certificates) -> pd.DataFrame:
    """What each gated condition promises, over what, and whether whole discussions kept it.

    A gated condition without stored thresholds is listed as `missing`. `no_refusal` counts test families in
    which no proposal exceeded its threshold; only mode `trajectory` claims anything about it.
    """
    gated = frames.episodes[frames.episodes["stage"] == EVALUATION]["condition"]
    named = {name for name in gated if name.endswith(GATE_SUFFIX)}
    rows: list[dict[str, object]] = []
    for condition in sorted_conditions(named | set(certificates)):
        if condition not in certificates:
            rows.append({"condition": condition, "mode": "missing"})
            continue
        thresholds = certificates[condition]
        row = {
            "condition": condition,
            "mode": thresholds.mode,
            "alpha": thresholds.alpha,
            "rounds": thresholds.rounds,
            "certified_rounds": int(thresholds.certified.sum()),
            "calibration_families": _fold_size(thresholds),
            **_whole_discussions(thresholds, _test_scores(frames, condition, thresholds)),
            "vacuous": _vacuous_overall(_spreads(frames, condition), thresholds),
            "guarantee": thresholds.guarantee,
            "assumptions": thresholds.assumptions,
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _fold_size(thresholds: Thresholds) -> int:
    """Families behind the stored thresholds; pilot and scale folds only shape the policy."""
    shaping = ("pilot", "scale")
    return sum(len(units) for name, units in thresholds.folds.items() if not name.startswith(shaping))


def _test_scores(frames: Frames, condition: str, thresholds: Thresholds) -> Scores:
    """Scores of one test discussion per family. Raises UserError if a family was calibrated on."""
    episodes, decisions = (
        frame[(frame["stage"] == EVALUATION) & (frame["condition"] == condition)]
        for frame in (frames.episodes, frames.decisions)
    )
    chosen = episodes.sort_values(["family", "task", "seed"]).drop_duplicates("family")
    for name, units in thresholds.folds.items():
        seen = set(units) & set(chosen["family"])
        if seen:
            raise UserError(
                f"thresholds of {condition}: test family {min(seen)!r} was in calibration fold {name!r}; "
                "coverage needs test families disjoint from every fold"
            )
    return scores_by_round(chosen, decisions, thresholds.rounds)


def _rows_of_round(
    thresholds: Thresholds, test: Scores, t: int, tied: int | None
) -> Iterator[dict[str, Any]]:
    """The row of the threshold at a round, and in mode `pilot` that of the stated bound."""
    value, bound = float(thresholds.values[t - 1]), float(thresholds.reported[t - 1])
    covered = _count(value, thresholds, test, t)
    yield _row(thresholds, "threshold", t, value, covered, _claim(thresholds.mode, tied), tied)
    if thresholds.mode == "pilot":
        yield _row(thresholds, "bound", t, bound, _count(bound, thresholds, test, t), "below", None)


def _claim(mode: str, tied: int | None) -> str:
    if tied is not None:
        return "two-sided"
    return "below" if mode in (*ROUND_BY_ROUND, *FROM_BELOW) else "none"


def _count(value: float, thresholds: Thresholds, test: Scores, t: int) -> Count:
    """How many reached test families are covered at a round; a failed one never is."""
    scores = test.values[test.reached[:, t - 1], t - 1]
    covered = (scores <= value) & np.isfinite(scores)
    return Count(len(scores), int(covered.sum()), int(thresholds.k[t - 1]), int(thresholds.n[t - 1]))


def _row(
    thresholds: Thresholds, bound: str, t: int, value: float, count: Count, claim: str, tied: int | None
) -> dict[str, object]:
    testable = claim != "none" and count.n > 0 and bool(np.isfinite(value)) and count.k <= count.n_calibration
    low, high = count.central() if claim == "two-sided" else count.below()
    hits = count.covered if tied is None else tied
    return {
        "round": t,
        "bound": bound,
        "value": value,
        "certified": bool(thresholds.certified[t - 1]),
        "n_calibration": count.n_calibration,
        "k": count.k,
        "n": count.n,
        "covered": count.covered,
        "coverage": count.covered / count.n if count.n else nan,
        "nominal": 1 - thresholds.alpha,
        "expected": min(1.0, count.k / (count.n_calibration + 1)),
        "claim": claim,
        "coverage_tied": tied / count.n if tied is not None and count.n else nan,
        "band_low": low / count.n if testable else nan,
        "band_high": high / count.n if testable else nan,
        "inside": low <= hits <= high if testable else None,
    }


def _tied_count(frames: Frames, condition: str, thresholds: Thresholds, test: Scores, t: int) -> int | None:
    """Covered test families with ties broken at random but reproducibly; None where a two-sided test is not
    due, or the rows of the calibration fold are not at hand or do not give the stored threshold."""
    if thresholds.mode not in ROUND_BY_ROUND:
        return None
    fold = "certification" if thresholds.mode == "pilot" else f"round {t}"
    calibration = _fold_scores(frames, controller_of(condition), thresholds, fold)
    reached = calibration.reached[:, t - 1]
    scores = calibration.values[reached, t - 1]
    found = tied_threshold(scores, calibration.uniforms()[reached, t - 1], thresholds.alpha)
    if len(scores) != thresholds.n[t - 1] or float(found.score) != thresholds.values[t - 1]:
        return None
    here = test.reached[:, t - 1]
    values = test.values[here, t - 1]
    covered = tied_covered(values, test.uniforms()[here, t - 1], found)
    return int((covered & np.isfinite(values)).sum())


def _fold_scores(frames: Frames, condition: str, thresholds: Thresholds, fold: str) -> Scores:
    """Scores of the discussions of a calibration fold; none where their rows are elsewhere."""
    units = set(thresholds.folds.get(fold, ()))
    episodes, decisions = (
        frame[
            frame["stage"].str.startswith(CALIBRATION)
            & (frame["condition"] == condition)
            & frame["family"].isin(units)
        ]
        for frame in (frames.episodes, frames.decisions)
    )
    return scores_by_round(episodes, decisions, thresholds.rounds)


def _whole_discussions(thresholds: Thresholds, test: Scores) -> dict[str, object]:
    """In how many test families no proposal exceeded its threshold, and whether that keeps the promise."""
    if not test.tasks:
        return {"n": 0}
    over = test.reached & ~((test.values <= thresholds.values) & np.isfinite(test.values))
    n, kept = len(test.tasks), int((~over.any(1)).sum())
    row: dict[str, object] = {"n": n, "no_refusal": kept, "no_refusal_share": kept / n}
    if thresholds.mode != "trajectory" or not np.isfinite(thresholds.values).all():
        return row
    k, size = int(thresholds.k[0]), int(thresholds.n[0])
    low = lower_band(n, k, size, BAND_LEVEL)
    return row | {"expected": k / (size + 1), "band_low": low / n, "inside": kept >= low}


def _spreads(frames: Frames, condition: str) -> pd.DataFrame:
    """Round and spread of the branches of every test decision of a condition that compared some."""
    decisions = frames.decisions
    mine = decisions[(decisions["stage"] == EVALUATION) & (decisions["condition"] == condition)]
    return mine[["round", "spread"]].dropna()


def _vacuous(spreads: pd.DataFrame, bound: Any) -> float:
    """Share of decisions for which a bound says nothing: it is no smaller than the spread of the branches."""
    return float(np.mean(bound >= spreads["spread"].to_numpy(dtype=float))) if len(spreads) else nan


def _vacuous_overall(spreads: pd.DataFrame, thresholds: Thresholds) -> float:
    """The same share over all rounds, for the reported bounds."""
    return _vacuous(spreads, thresholds.reported[spreads["round"].to_numpy(dtype=np.int64) - 1])
