"""Derivatives."""

from __future__ import annotations

PACKAGES = ("sympy",)


def differentiate(expression: str, variable: str = "x", times: int = 1) -> str:
    """Differentiate an expression in a variable, `times` times; simplified."""
    import sympy

    derivative = sympy.diff(sympy.sympify(expression), sympy.Symbol(variable), times)
    return str(sympy.simplify(derivative))
