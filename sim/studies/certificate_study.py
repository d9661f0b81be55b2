"""The committed study behind METHOD 4: replicated coverage by round of every calibration mode, as a table and
a figure, with the cognitive agents and the artificial stress world.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pandas as pd

from conformal.ranks import exact_level
from conformal.stress import MODES as STRESS_MODES
from conformal.stress import Design, stress
from conformal.toy import ToyWorld
from sim.errors import UserError
from sim.parsing import typed
from sim.records.run_dir import claim, tracked
from sim.studies.certification import CALIBRATIONS, Coverage, Setting, replicate_modes
from sim.studies.progress import Reporter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class CertificateStudy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `scripts/certificates.py` runs; the defaults are METHOD 4's."""

    controllers: tuple[str, ...]
    modes: tuple[str, ...]
    replicates: int
    n: int
    n_test: int
    rounds: int
    alpha: float
    workers: int
    stress_factors: tuple[float, ...]
    stress_replicates: int
    screened_rounds: tuple[int, ...]
    screened_replicates: int
    screened_n: int
    output: str
    progress: bool = True

    def __post_init__(self) -> None:
        unknown = [mode for mode in self.modes if mode not in CALIBRATIONS]
        if unknown:
            raise UserError(f"modes: {unknown[0]!r} is unknown; give some of {', '.join(CALIBRATIONS)}")
        for name in ("replicates", "n", "n_test", "rounds", "workers", "stress_replicates",
                     "screened_replicates", "screened_n"):  # fmt: skip
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if any(number < 1 for number in self.screened_rounds):
            raise UserError(f"screened_rounds is {list(self.screened_rounds)}; rounds are counted from 1")
        if not all(0 <= factor < math.inf for factor in self.stress_factors):
            raise UserError(f"stress_factors is {list(self.stress_factors)}; give numbers from 0")
        try:
            exact_level(self.alpha)
        except ValueError as error:
            raise UserError(f"alpha is {self.alpha}; give a level from 0.000001 to 0.999999") from error


def run_certificates(data: Mapping[str, Any], overridden: Mapping[str, Any]) -> Path:
    """Run the study in a fresh run directory; writes tables/*.csv and the figure."""
    config = parse_certificates(data)
    directory = claim(Path(config.output), "certificates", f"r{config.replicates}", data)
    with tracked(directory, "certificates"):
        table = coverage_table(config)
        (directory / "tables").mkdir()
        table.to_csv(directory / "tables" / "coverage_study.csv", index=False)
        (directory / "figures").mkdir()
        coverage_figure(table).savefig(
            directory / "figures" / "coverage_by_round.png", dpi=150, bbox_inches="tight"
        )
        print_table(table)
        if config.screened_rounds:
            screened = _screened(config)
            screened.to_csv(directory / "tables" / "screening_study.csv", index=False)
            print(screened.round(4).to_string(index=False))
    print(directory)
    return directory


def parse_certificates(data: Mapping[str, Any]) -> CertificateStudy:
    """The typed configuration; UserError naming what is wrong."""
    return typed(data, CertificateStudy, "config")


def coverage_table(config: CertificateStudy) -> pd.DataFrame:
    """One row per controller, mode and round: coverage, its standard error over replicates, exact target."""
    setting = Setting(config.n, config.n_test, config.rounds, config.alpha)
    rows = [row for factor in config.stress_factors for row in _stress_rows(config, factor)]
    report = Reporter(config.progress)
    with report.stage("certify", len(config.controllers) * config.replicates) as advance:
        for controller in config.controllers:
            found = list(_replicates(config, controller, setting, advance))
            for mode in found[0]:
                coverages = [result[mode][0] for result in found]
                targets = np.mean([result[mode][1] for result in found], axis=0)
                rows += _rows(controller, mode, coverages, targets)
    return pd.DataFrame(rows)


def _stress_rows(config: CertificateStudy, factor: float) -> list[dict[str, object]]:
    """The artificial stress world, in which a replacement scales every later regret by `factor`."""
    design = Design(ToyWorld(factor, config.rounds), config.stress_replicates, config.n, 50, config.alpha)
    rng = np.random.default_rng(int(1000 * factor))
    modes = [mode for mode in config.modes if mode in STRESS_MODES]
    found = [row for mode in modes for row in stress(mode, design, rng)]
    return [
        {
            "controller": f"stress x{factor:g}",
            "mode": row.mode,
            "round": t + 1,
            "reached": int(row.tests[:, t].sum()),
            "coverage": row.coverage[t],
            "standard_error": row.count(t + 1).sd / row.tests[:, t].sum(),
            "exact_target": row.target[t],
            "executed_above_acceptance": row.exceeded,
            "no_proposal_above_threshold": row.kept,
        }
        for row in found
        for t in range(config.rounds)
    ]


def _screened(config: CertificateStudy) -> pd.DataFrame:
    from sim.studies.screening_study import screening_table

    with Reporter(config.progress).stage("screen", 2 * len(config.screened_rounds)) as advance:
        return screening_table(
            config.screened_rounds, config.screened_replicates, config.screened_n, config.alpha, advance
        )


def _replicates(
    config: CertificateStudy, controller: str, setting: Setting, advance: Callable[[int], None]
) -> Iterator[dict[str, tuple[Coverage, Any]]]:
    with ProcessPoolExecutor(config.workers) as pool:
        jobs = [
            pool.submit(replicate_modes, controller, replicate, setting, config.modes)
            for replicate in range(config.replicates)
        ]
        for job in jobs:
            yield job.result()
            advance(1)


def _rows(controller: str, mode: str, coverages: list[Coverage], targets: Any) -> list[dict[str, object]]:
    pooled = sum(coverages[1:], coverages[0])
    shares = np.array([c.covered / np.maximum(c.reached, 1) for c in coverages])
    return [
        {
            "controller": controller,
            "mode": mode,
            "round": t + 1,
            "reached": int(pooled.reached[t]),
            "coverage": pooled.covered[t] / pooled.reached[t] if pooled.reached[t] else math.nan,
            "standard_error": shares[:, t].std(ddof=1) / math.sqrt(len(shares))
            if len(shares) > 1
            else math.nan,
            "exact_target": targets[t],
            "executed_above_acceptance": int(pooled.exceeded[t]),
            "no_proposal_above_threshold": 1 - pooled.any_violation / pooled.episodes,
        }
        for t in range(len(targets))
    ]


def print_table(table: pd.DataFrame) -> None:
    """Coverage by round in the terminal."""
    wide = table.pivot_table(index=["controller", "mode"], columns="round", values="coverage", sort=False)
    print(wide.round(3).to_string())


def coverage_figure(table: pd.DataFrame) -> Figure:
    """Coverage by round: the paper's calibration against ours, one panel per controller."""
    from matplotlib.figure import Figure

    controllers = list(dict.fromkeys(table["controller"]))
    figure = Figure(figsize=(5.2 * len(controllers), 3.8))
    panels = figure.subplots(1, len(controllers), sharey=True, squeeze=False)[0]
    for axes, controller in zip(panels, controllers, strict=True):
        _panel(axes, controller, table[table["controller"] == controller])
    panels[0].set_ylabel("coverage of proposals")
    panels[-1].legend(fontsize=8, frameon=False)
    return figure


def _panel(axes: Axes, controller: str, part: pd.DataFrame) -> None:
    target = part[part["mode"] == part["mode"].iloc[0]]
    axes.plot(target["round"], target["exact_target"], color="black", lw=1, ls="--", label="exact target")
    for mode in (name for name in dict.fromkeys(part["mode"]) if name != "trajectory"):
        line = part[part["mode"] == mode]
        label = "roundwise (the paper's)" if mode == "roundwise" else mode
        error = 1.96 * line["standard_error"]
        axes.errorbar(line["round"], line["coverage"], error, marker="o", ms=3, lw=1.2, label=label)
    axes.set_title(controller)
    axes.set_xlabel("round")
