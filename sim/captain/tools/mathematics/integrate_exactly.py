"""Integrals."""

from __future__ import annotations

PACKAGES = ("sympy",)


def integrate_exactly(expression: str, variable: str = "x", low: str = "", high: str = "") -> str:
    """Integrate an expression in a variable, over [low, high] if both are given ("oo" is infinity)."""
    import sympy

    symbol = sympy.Symbol(variable)
    what = sympy.sympify(expression)
    if not low or not high:
        return str(sympy.integrate(what, symbol))
    return str(sympy.integrate(what, (symbol, sympy.sympify(low), sympy.sympify(high))))
