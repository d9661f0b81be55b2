"""Prime factors."""

from __future__ import annotations

PACKAGES = ("sympy",)


def factor_integer(number: int) -> dict[int, int]:
    """Factor a positive integer; prime factor -> its exponent."""
    import sympy

    if number < 1:
        raise ValueError(f"{number} is not a positive integer")
    return {int(prime): int(exponent) for prime, exponent in sympy.factorint(number).items()}
