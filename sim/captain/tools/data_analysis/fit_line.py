"""Straight lines."""

from __future__ import annotations

PACKAGES = ("pandas", "scipy")


def fit_line(path: str, x: str, y: str) -> dict[str, float]:
    """Least-squares line y = intercept + slope·x on two columns of a CSV file: slope, intercept, r, p_value and
    standard error of the slope; rows with a missing value are left out."""
    import pandas as pd
    from scipy import stats

    pairs = pd.read_csv(path)[[x, y]].dropna()
    fit = stats.linregress(pairs[x], pairs[y])
    return {
        "slope": float(fit.slope),
        "intercept": float(fit.intercept),
        "r": float(fit.rvalue),
        "p_value": float(fit.pvalue),
        "standard_error": float(fit.stderr),
    }
