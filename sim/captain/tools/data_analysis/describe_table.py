"""A first look at a table."""

from __future__ import annotations

PACKAGES = ("pandas",)


def describe_table(path: str) -> str:
    """Rows, columns with their types and missing values, and the first five rows of a CSV file."""
    import pandas as pd

    table = pd.read_csv(path)
    lines = [f"{len(table)} rows, {len(table.columns)} columns"]
    lines += [
        f"{name}: {table[name].dtype}, {int(table[name].isna().sum())} missing" for name in table.columns
    ]
    return "\n".join([*lines, table.head().to_string()])
