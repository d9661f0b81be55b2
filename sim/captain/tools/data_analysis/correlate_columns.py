"""Correlation."""

from __future__ import annotations

PACKAGES = ("pandas", "scipy")


def correlate_columns(path: str, first: str, second: str, method: str = "pearson") -> tuple[float, float]:
    """Correlation of two columns of a CSV file and its two-sided p-value, by "pearson" or "spearman"; rows with a
    missing value are left out."""
    import pandas as pd
    from scipy import stats

    pairs = pd.read_csv(path)[[first, second]].dropna()
    if method == "pearson":
        linear = stats.pearsonr(pairs[first], pairs[second])
        return float(linear.statistic), float(linear.pvalue)
    if method == "spearman":
        ranked = stats.spearmanr(pairs[first], pairs[second])
        return float(ranked.statistic), float(ranked.pvalue)
    raise ValueError(f"method is {method!r}; it must be pearson or spearman")
