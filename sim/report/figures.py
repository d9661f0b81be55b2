"""Figures from tables: accuracy by condition, coverage and regret by round, learning curve.

Each function answers with a matplotlib figure or with None where its table has nothing to show; matplotlib is
imported only when a figure is made. Colours are Okabe and Ito's, told apart by colour-blind readers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
import pandas as pd

from sim.report.frames import controller_of
from sim.report.source import Curves
from sim.report.tables import BEFORE, FULL, REFERENCE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5C00", "#666666")
BASELINE_COLOUR = "#8a8a8a"
_MARKERS = "osD^vP*X"
_DPI = 160
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlepad": 10,
    "axes.edgecolor": "#999999",
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.hashsalt": "consilience",
}


P = ParamSpec("P")
T = TypeVar("T")


def _styled(make: Callable[P, T]) -> Callable[P, T]:
    """Draw in the house style, leaving matplotlib's global settings as they were."""

    @wraps(make)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib as mpl

        with mpl.rc_context(_STYLE):
            return make(*args, **kwargs)

    return drawn


@_styled
def accuracy_figure(accuracy: pd.DataFrame, baselines: pd.DataFrame) -> Figure | None:
    """Task accuracy of every condition with its 95% interval; dotted lines mark position baselines."""
    if not len(accuracy):
        return None
    shown = accuracy.iloc[::-1].reset_index(drop=True)
    figure, axes = _canvas(width=7.0, height=1.3 + 0.29 * len(shown))
    for place, row in enumerate(shown.to_dict("records")):
        _whisker(axes, place, row)
    for row in baselines.to_dict("records"):
        axes.axvline(row["task_accuracy"], color="#bbbbbb", linewidth=1, linestyle=":", zorder=1)
    axes.set_yticks(range(len(shown)), shown["condition"])
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.7, len(shown) - 0.3)
    axes.set_xlabel("task accuracy (95% interval, clustered by task)")
    axes.set_title("Accuracy by condition")
    _name_baselines(axes, baselines, len(shown))
    return figure


def _whisker(axes: Axes, place: int, row: Mapping[Any, Any]) -> None:
    gated = controller_of(row["condition"]) != row["condition"]
    baseline = row["condition"] in (BEFORE, REFERENCE, FULL)
    colour = BASELINE_COLOUR if baseline else PALETTE[2] if gated else PALETTE[0]
    low, high = max(row["task_accuracy_low"], 0.0), min(row["task_accuracy_high"], 1.0)
    axes.plot([low, high], [place, place], color=colour, linewidth=2.2, solid_capstyle="round", zorder=2)
    axes.plot(row["task_accuracy"], place, "D" if gated else "o", color=colour, markersize=6, zorder=3)
    axes.annotate(
        f"{row['task_accuracy']:.2f}", (high, place), (6, 0), textcoords="offset points", va="center",
        fontsize=8, color="#444444",
    )  # fmt: skip


def _name_baselines(axes: Axes, baselines: pd.DataFrame, top: int) -> None:
    """Names of the dotted lines, above the plot, one line of text per distinct value."""
    named: dict[float, list[str]] = {}
    for row in baselines.to_dict("records"):
        named.setdefault(round(row["task_accuracy"], 2), []).append(row["baseline"].replace("_", " "))
    text = "   ".join(f"{', '.join(names)} {value:.2f}" for value, names in sorted(named.items()))
    axes.annotate(
        f"dotted: {text}", (1, 1), (0, 3), xycoords="axes fraction", textcoords="offset points",
        ha="right", va="bottom", fontsize=7.5, color="#777777",
    )  # fmt: skip


@_styled
def coverage_figure(coverage: pd.DataFrame) -> Figure | None:
    """Coverage of the threshold by round, a panel per certified condition, with the exact 99.9% band."""
    shown = coverage[(coverage["bound"] == "threshold") & (coverage["n"] > 0)] if len(coverage) else coverage
    if not len(shown):
        return None
    names = list(dict.fromkeys(shown["condition"]))
    figure, panels = _panels(len(names), 3.4, 2.7)
    low = min(0.75, float(np.nanmin(shown[["coverage", "band_low"]].to_numpy(dtype=float))) - 0.05)
    for axes, name in zip(panels, names, strict=True):
        _coverage_panel(axes, name, shown[shown["condition"] == name], low)
    panels[0].set_ylabel("coverage")
    figure.suptitle("Coverage by round", x=0.01, ha="left", fontsize=10.5, fontweight="bold")
    _legend_below(figure, panels)
    return figure


def _coverage_panel(axes: Axes, name: str, rows: pd.DataFrame, low: float) -> None:
    rounds = rows["round"].to_numpy(dtype=float)
    band_low, band_high = (rows[c].to_numpy(dtype=float) for c in ("band_low", "band_high"))
    axes.bar(
        rounds,
        band_high - band_low,
        1.0,
        band_low,
        color=PALETTE[5],
        alpha=0.28,
        linewidth=0,
        label="99.9% band",
    )
    axes.axhline(
        float(rows["nominal"].iloc[0]), color="#333333", linewidth=1.1, linestyle="--", label="1 − α"
    )
    axes.plot(rounds, rows["expected"], "_", color="#333333", markersize=9, label="exact k/(n+1)")
    axes.plot(rounds, rows["coverage"], "-o", color=PALETTE[0], markersize=5, linewidth=1.4, label="measured")
    tied = rows["coverage_tied"].to_numpy(dtype=float)
    differs = np.isfinite(tied) & (tied != rows["coverage"].to_numpy(dtype=float))
    if differs.any():
        axes.plot(rounds[differs], tied[differs], "x", color=PALETTE[1], label="measured, ties randomised")
    axes.set_title(f"{name} ({rows['mode'].iloc[0]})", fontsize=9, fontweight="normal", pad=6)
    axes.set_xticks(rounds)
    axes.set_xlim(rounds.min() - 0.5, rounds.max() + 0.5)
    axes.set_ylim(max(0.0, low), 1.02)
    axes.set_xlabel("round")


@_styled
def regret_figure(regret: pd.DataFrame) -> Figure | None:
    """Mean one-step regret of the proposals by round, a line per controller, without its gate where it has
    both. Controllers that take the best branch have none by construction; they are named and not drawn."""
    if not len(regret):
        return None
    named = dict.fromkeys(regret["condition"])
    names = [name for name in named if name == controller_of(name) or controller_of(name) not in named]
    zero = [name for name in names if not regret[regret["condition"] == name]["mean_regret"].any()]
    names = [name for name in names if name not in zero]
    figure, axes = _canvas(width=7.0, height=3.6)
    for i, name in enumerate(names):
        rows = regret[regret["condition"] == name]
        nudge = (i - (len(names) - 1) / 2) * min(0.07, 0.5 / len(names))
        _series(axes, i, name, rows["round"].to_numpy(dtype=float) + nudge, rows, "mean_regret")
    axes.set_xticks(sorted(regret["round"].unique()))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("round" + (f"      (zero by construction: {', '.join(zero)})" if zero else ""))
    axes.set_ylabel("mean regret of the proposal")
    axes.set_title("Regret by round and controller (95% interval)")
    if names:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=1.6)
    return figure


def _series(axes: Axes, i: int, name: str, x: np.ndarray[Any, Any], rows: pd.DataFrame, column: str) -> None:
    colour, marker = PALETTE[i % len(PALETTE)], _MARKERS[i % len(_MARKERS)]
    low, high = (rows[f"{column}_{side}"].to_numpy(dtype=float) for side in ("low", "high"))
    axes.vlines(x, np.maximum(low, 0), high, color=colour, linewidth=1, alpha=0.5)
    axes.plot(x, rows[column], f"-{marker}", color=colour, markersize=4.5, linewidth=1.3, label=name)


@_styled
def learning_figure(curves: Curves) -> Figure | None:
    """Loss and validation regret by epoch of every trained controller; a ring marks the epoch kept."""
    if not curves:
        return None
    figure, panels = _panels(2, 3.6, 2.7)
    named = len(curves) <= len(PALETTE)
    for i, (name, curve) in enumerate(curves.items()):
        colour = PALETTE[i % len(PALETTE)]
        epochs = [point["epoch"] for point in curve]
        kept = int(np.argmin([point["validation_loss"] for point in curve]))
        label = f"{name}: " if len(curves) > 1 else ""
        panels[0].plot(epochs, [p["train_loss"] for p in curve], "--", color=colour, label=f"{label}training")
        for axes, column in zip(panels, ("validation_loss", "validation_regret"), strict=True):
            values = [point[column] for point in curve]
            axes.plot(epochs, values, color=colour, linewidth=1.5, label=f"{label}validation")
            axes.plot(epochs[kept], values[kept], "o", color=colour, markersize=7, fillstyle="none")
    for axes, title in zip(panels, ("loss", "validation regret"), strict=True):
        axes.set_xlabel("epoch (ring: the epoch kept)")
        axes.set_title(title, fontsize=9, fontweight="normal", pad=6)
        axes.set_ylim(bottom=0)
    if named:
        panels[0].legend()
    figure.suptitle(
        "Learning curve" if named else f"Learning curves of {len(curves)} networks",
        x=0.01,
        ha="left",
        fontsize=10.5,
        fontweight="bold",
    )
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, without a date, so that equal tables give equal files."""
    figure.savefig(path, dpi=_DPI, format="png", metadata={"Software": None})


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    figure, panels = _panels(1, width, height)
    return figure, panels[0]


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Panels side by side, at most three in a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows + 0.4 * (count > 1)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, sharey=count > 2, squeeze=False).ravel().tolist()
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count]


def _legend_below(figure: Figure, panels: list[Axes]) -> None:
    """One legend for all panels: what only some of them show is named too."""
    named = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        named.update(dict(zip(labels, handles, strict=True)))
    figure.legend(
        list(named.values()), list(named), loc="outside lower left", ncols=5, frameon=False, fontsize=8.5
    )


Figures: TypeAlias = "Mapping[str, Callable[[Mapping[str, pd.DataFrame], Curves], Figure | None]]"

FIGURES: Figures = {
    "accuracy": lambda tables, curves: accuracy_figure(tables["accuracy"], tables["baselines"]),
    "coverage": lambda tables, curves: coverage_figure(tables["coverage"]),
    "regret": lambda tables, curves: regret_figure(tables["regret_by_round"]),
    "learning_curve": lambda tables, curves: learning_figure(curves),
}
