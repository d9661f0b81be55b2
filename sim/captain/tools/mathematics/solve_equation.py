"""Equations in one unknown."""

from __future__ import annotations

PACKAGES = ("sympy",)


def solve_equation(equation: str, unknown: str = "x") -> list[str]:
    """Solve one equation such as "x**2 - 2 = 0" for an unknown, exactly; every solution as text."""
    import sympy

    left, _, right = equation.partition("=")
    symbol = sympy.Symbol(unknown)
    difference = sympy.sympify(left) - sympy.sympify(right or "0")
    return [str(solution) for solution in sympy.solve(difference, symbol)]
