"""Systems of linear equations."""

from __future__ import annotations

PACKAGES = ("sympy",)


def solve_linear_system(equations: list[str], unknowns: list[str]) -> dict[str, str]:
    """Solve linear equations such as ["x + y = 3", "x - y = 1"]; the value of every unknown, exactly.

    Raises ValueError where there is no solution. An unknown that is free is missing.
    """
    import sympy

    symbols = [sympy.Symbol(name) for name in unknowns]
    sides = [equation.partition("=") for equation in equations]
    system = [sympy.sympify(left) - sympy.sympify(right or "0") for left, _, right in sides]
    found = sympy.solve(system, symbols, dict=True)
    if not found:
        raise ValueError("the system has no solution")
    return {str(name): str(value) for name, value in found[0].items()}
