"""Groups of rows."""

from __future__ import annotations

PACKAGES = ("pandas",)


def group_summary(path: str, by: str, column: str, statistic: str = "mean") -> dict[str, float]:
    """A statistic ("mean", "median", "sum", "count", "std", "min", "max") of a column of a CSV file for each value
    of another column."""
    import pandas as pd

    if statistic not in ("mean", "median", "sum", "count", "std", "min", "max"):
        raise ValueError(f"statistic is {statistic!r}, which is not offered")
    grouped = pd.read_csv(path).groupby(by)[column].agg(statistic)
    return {str(name): float(value) for name, value in grouped.items()}
