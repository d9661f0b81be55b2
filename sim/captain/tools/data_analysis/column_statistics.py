"""One column in numbers."""

from __future__ import annotations

PACKAGES = ("pandas",)


def column_statistics(path: str, column: str) -> dict[str, float]:
    """Count, mean, standard deviation (n-1), minimum, quartiles, maximum and skewness of a column of a CSV file;
    missing values are left out."""
    import pandas as pd

    values = pd.read_csv(path)[column].dropna()
    found = {str(name): float(value) for name, value in values.describe().items()}
    return found | {"skewness": float(str(values.skew()))}
