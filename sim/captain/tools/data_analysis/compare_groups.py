"""Two samples."""

from __future__ import annotations

PACKAGES = ("pandas", "scipy")


def compare_groups(path: str, by: str, column: str, first: str, second: str) -> dict[str, float]:
    """Welch's t-test of a column of a CSV file between two values of another column: the two means, t and the
    two-sided p_value."""
    import pandas as pd
    from scipy import stats

    table = pd.read_csv(path)
    left, right = (table.loc[table[by].astype(str) == name, column].dropna() for name in (first, second))
    test = stats.ttest_ind(left, right, equal_var=False)
    return {
        "first_mean": float(left.mean()),
        "second_mean": float(right.mean()),
        "t": float(test.statistic),
        "p_value": float(test.pvalue),
    }
