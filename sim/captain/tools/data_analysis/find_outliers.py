"""Unusual values."""

from __future__ import annotations

PACKAGES = ("pandas",)


def find_outliers(path: str, column: str, rule: str = "iqr") -> list[float]:
    """Values of a column of a CSV file that are outliers: beyond 1.5 interquartile ranges from the quartiles
    ("iqr"), or more than 3 population standard deviations from the mean ("zscore")."""
    import pandas as pd

    values = pd.read_csv(path)[column].dropna()
    if rule == "iqr":
        low, high = values.quantile(0.25), values.quantile(0.75)
        unusual = (values < low - 1.5 * (high - low)) | (values > high + 1.5 * (high - low))
    elif rule == "zscore":
        unusual = ((values - values.mean()) / values.std(ddof=0)).abs() > 3
    else:
        raise ValueError(f"rule is {rule!r}; it must be iqr or zscore")
    return [float(value) for value in values[unusual]]
