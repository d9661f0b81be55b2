"""Whether certificates keep their promise on the test tasks: coverage by round, bands, what is vacuous.

The unit is the task family (METHOD 3): one test discussion per family, the first by task and seed. A failed
test discussion is not covered from its failure on. Counts and their exact laws are `conformal`'s; here rows
are laid out for it, and thresholds are checked against the calibration rows where those are at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from conformal import Thresholds, tied_covered, tied_threshold
from conformal.diagnostics import RoundCoverage, coverage_by_round, no_proposal_refused
from sim.arrays import Bools, Floats
from sim.errors import UserError
from sim.randomness import keys, text_keys, uniform
from sim.report.frames import Frames, controller_of
from sim.report.source import CALIBRATION, EVALUATION, GATE_SUFFIX
from sim.report.tables import sorted_conditions

TWO_SIDED = ("pilot", "sequential")
"""Modes whose thresholds are tested on both sides, with randomised ties (METHOD 10)."""
WHOLE_DISCUSSIONS = ("trajectory", "bonferroni")
NO_ROUND_LAW = ("risk", "hierarchical")

Certificates: TypeAlias = Mapping[str, Thresholds]


@dataclass(frozen=True)
class Scores:
    """Scores of the proposals (n, T), rounds reached (n, T); family, task and seed of each discussion."""

    values: Floats
    reached: Bools
    families: tuple[str, ...]
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
    names = (tuple(episodes[column]) for column in ("family", "task", "seed"))
    return Scores(values, ~np.isnan(values), *names)


def coverage(frames: Frames, certificates: Certificates) -> pd.DataFrame:
    """Coverage by round of every certified condition: of the threshold q, and in mode `pilot` of the bound
    max(eta, q) as well.

    `claim` says how a row is tested: two-sided, from below, or not at all (`none`). `inside` is missing where
    nothing is claimed, nothing was reached or no finite threshold exists. Modes without a law by round have
    no rows. Raises UserError if a test family was calibrated on.
    """
    rows: list[dict[str, Any]] = []
    for condition in sorted_conditions(certificates):
        thresholds = certificates[condition]
        if thresholds.mode not in NO_ROUND_LAW:
            spreads = _spreads(frames, condition)
            for row in _condition_rows(frames, condition, thresholds):
                here = spreads[spreads["round"] == row["round"]]
                last = {"vacuous": _vacuous(here, row["value"])}
                rows.append({"condition": condition, "mode": thresholds.mode, **row, **last})
    return pd.DataFrame(rows)


def _condition_rows(frames: Frames, condition: str, thresholds: Thresholds) -> Iterator[dict[str, Any]]:
    """The row of the threshold at each round, in mode `pilot` followed by that of the stated bound."""
    test = _test_scores(frames, condition, thresholds.rounds)
    bounds = {"threshold": thresholds}
    if thresholds.mode == "pilot":
        bounds["bound"] = replace(thresholds, values=thresholds.reported)
    try:
        found = {
            name: coverage_by_round(bound, test.values, test.reached, units=test.families)
            for name, bound in bounds.items()
        }
    except ValueError as error:
        raise UserError(f"thresholds of {condition}: {error}") from error
    for at in range(thresholds.rounds):
        for name, counts in found.items():
            tied = _tied_count(frames, condition, thresholds, test, at + 1) if name == "threshold" else None
            row = {"round": at + 1, "bound": name, "nominal": 1 - thresholds.alpha}
            yield row | {"certified": bool(thresholds.certified[at])} | _row(counts[at], tied)


def _row(count: RoundCoverage, tied: int | None) -> dict[str, Any]:
    """One count against its band: two-sided where ties were randomised, from below otherwise."""
    claim = "none" if not count.claimed else "below" if tied is None else "two-sided"
    testable = count.claimed and count.n_test > 0 and np.isfinite(count.threshold) and count.k <= count.n_cal
    low, high = (count.floor, count.n_test) if tied is None else count.band
    hits = count.covered if tied is None else tied
    return {
        "value": count.threshold,
        "n_calibration": count.n_cal,
        "k": count.k,
        "n": count.n_test,
        "covered": count.covered,
        "failed": count.failed,
        "coverage": count.coverage,
        "expected": count.expected,
        "claim": claim,
        "coverage_tied": tied / count.n_test if tied is not None and count.n_test else nan,
        "band_low": low / count.n_test if testable else nan,
        "band_high": high / count.n_test if testable else nan,
        "inside": bool(low <= hits <= high) if testable else None,
    }


def certificates_table(frames: Frames, certificates: Certificates) -> pd.DataFrame:
    """What each gated condition promises, over what, and under which assumptions.

    A gated condition without stored thresholds is listed as `missing`. `no_refusal` counts test families in
    which no proposal exceeded its threshold, for the modes that promise it.
    """
    gated = frames.episodes[frames.episodes["stage"] == EVALUATION]["condition"]
    named = {name for name in gated if name.endswith(GATE_SUFFIX)}
    rows: list[dict[str, Any]] = []
    for condition in sorted_conditions(named | set(certificates)):
        if condition not in certificates:
            rows.append({"condition": condition, "mode": "missing"})
            continue
        thresholds = certificates[condition]
        rows.append(
            {
                "condition": condition,
                "mode": thresholds.mode,
                "alpha": thresholds.alpha,
                "rounds": thresholds.rounds,
                "certified_rounds": int(thresholds.certified.sum()),
                "calibration_families": _fold_size(thresholds),
                **_whole_discussions(frames, condition, thresholds),
                "vacuous": _vacuous_overall(_spreads(frames, condition), thresholds),
                "guarantee": thresholds.guarantee,
                "assumptions": thresholds.assumptions,
            }
        )
    return pd.DataFrame(rows)


def _fold_size(thresholds: Thresholds) -> int:
    """Families behind the stored thresholds; pilot and scale folds only shape the policy."""
    shaping = ("pilot", "scale")
    return sum(len(units) for name, units in thresholds.folds.items() if not name.startswith(shaping))


def _whole_discussions(frames: Frames, condition: str, thresholds: Thresholds) -> dict[str, Any]:
    """In how many test families no proposal exceeded its threshold, where that is what is promised."""
    test = _test_scores(frames, condition, thresholds.rounds)
    if thresholds.mode not in WHOLE_DISCUSSIONS or not test.families:
        return {"n": len(test.families)}
    found = no_proposal_refused(thresholds, test.values, test.reached, units=test.families)
    return {
        "n": found.n_test,
        "no_refusal": found.kept,
        "expected": found.expected,
        "band_low": found.floor / found.n_test,
        "inside": found.kept >= found.floor,
    }


def _test_scores(frames: Frames, condition: str, rounds: int) -> Scores:
    """Scores of one test discussion per family."""
    episodes, decisions = (
        frame[(frame["stage"] == EVALUATION) & (frame["condition"] == condition)]
        for frame in (frames.episodes, frames.decisions)
    )
    chosen = episodes.sort_values(["family", "task", "seed"]).drop_duplicates("family")
    return scores_by_round(chosen, decisions, rounds)


def _tied_count(frames: Frames, condition: str, thresholds: Thresholds, test: Scores, t: int) -> int | None:
    """Covered test families with ties broken at random but reproducibly; None where a two-sided test is not
    due, or the rows of the calibration fold are not at hand or do not give the stored threshold."""
    if thresholds.mode not in TWO_SIDED:
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
