"""Exact arithmetic."""

from __future__ import annotations

PACKAGES = ("sympy",)


def evaluate_exactly(expression: str, digits: int = 15) -> tuple[str, str]:
    """Evaluate an expression such as "sqrt(8) + binomial(10, 3)": its simplified form, and it in decimals."""
    import sympy

    value = sympy.simplify(sympy.sympify(expression))
    return str(value), str(sympy.N(value, digits))
