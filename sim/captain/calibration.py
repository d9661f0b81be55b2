"""Thresholds for the `controlled` speaker policy, from the recorded talks of a run that no gate touched.

One trajectory-level threshold per round (METHOD 5): the first talk of every problem is a base-policy fold, so
the promise holds for the gated talks of other problems, and one problem family is one unit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from conformal import Thresholds, policy_hash, trajectory
from sim.arrays import Floats
from sim.captain.config import CaptainConfig
from sim.errors import UserError
from sim.records.captain_rows import CaptainEpisodeRow, CaptainEventRow, Identity
from sim.records.run_dir import read_config
from sim.records.store import iter_rows

THRESHOLDS = "talk_thresholds.json"


@dataclass
class _FirstTalk:
    """The first controlled talk of an episode: its policy, and the regret of each proposal by round."""

    parts: Mapping[str, str]
    regrets: dict[int, float] = field(default_factory=dict)
    gated: bool = False
    ended: bool = False


def calibrate_run(directory: Path, config: CaptainConfig) -> Path:
    """Write talk_thresholds_<condition>.json of every condition with controlled talks; returns the run."""
    read_config(directory)
    talks = first_talks(directory)
    if not talks:
        raise UserError(
            f"{directory}: no finished controlled talk is recorded; run captain.speaker=controlled first"
        )
    for condition in sorted({who.condition for who in talks}):
        path = directory / f"{condition}_{THRESHOLDS}"
        mine = {who: talk for who, talk in talks.items() if who.condition == condition}
        found = thresholds_of(mine, families(directory), config.conformal.alpha, str(directory))
        found.save(path)
        print(f"{path}: {len(mine)} talks, certified rounds {int(found.certified.sum())} of {found.rounds}")
    return directory


def families(directory: Path) -> dict[str, str]:
    """The family of every problem of a run."""
    return {row.episode.problem: row.family for row in iter_rows(directory, CaptainEpisodeRow)}


def first_talks(directory: Path) -> dict[Identity, _FirstTalk]:
    """The first controlled talk of every finished episode."""
    finished = {row.episode for row in iter_rows(directory, CaptainEpisodeRow)}
    talks: dict[Identity, _FirstTalk] = {}
    inside: set[Identity] = set()
    for row in iter_rows(directory, CaptainEventRow):
        if row.episode not in finished:
            continue
        if row.kind == "policy":
            inside.discard(row.episode)
            if row.details["first"]:
                talks[row.episode] = _FirstTalk(row.details["parts"])
                inside.add(row.episode)
        elif row.kind == "intervention" and row.episode in inside:
            talk, regret = talks[row.episode], row.details["regret"]
            talk.regrets[row.details["round"]] = np.nan if regret is None else float(regret)
            talk.gated |= row.details["threshold"] is not None
        elif row.kind == "vote" and row.episode in inside:
            talks[row.episode].ended = True
            inside.discard(row.episode)
    return talks


def thresholds_of(
    talks: Mapping[Identity, _FirstTalk], family: Mapping[str, str], alpha: float, source: str
) -> Thresholds:
    """Trajectory thresholds of one condition's talks, the first seed of each family; a talk that broke off
    scores +inf from there on.

    Raises UserError where the talks were gated, are of several policies, or have no regrets.
    """
    chosen: dict[str, _FirstTalk] = {}
    for who in sorted(talks, key=lambda who: (who.seed, who.problem)):
        chosen.setdefault(family[who.problem], talks[who])
    hashes = {policy_hash(talk.parts) for talk in chosen.values()}
    if len(hashes) > 1 or any(talk.gated for talk in chosen.values()):
        raise UserError(
            f"{source}: its talks were gated or of several policies; calibrate on one ungated policy"
        )
    if any(np.isnan(regret) for talk in chosen.values() for regret in talk.regrets.values()):
        raise UserError(f"{source}: only proposals were evaluated; run with captain.control.exhaustive=true")
    parts = next(iter(chosen.values())).parts
    scores: Floats = np.full((len(chosen), int(json.loads(parts["world"])["horizon"])), np.nan)
    for i, talk in enumerate(chosen.values()):
        for number, regret in talk.regrets.items():
            scores[i, number - 1] = regret
        if not talk.ended:
            scores[i, len(talk.regrets) :] = np.inf
    return trajectory(
        scores, ~np.isnan(scores), alpha, units=tuple(chosen), policy_hash=hashes.pop(), policy=dict(parts)
    )
