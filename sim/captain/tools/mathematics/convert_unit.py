"""Units of measurement."""

from __future__ import annotations

PACKAGES = ("pint",)


def convert_unit(value: float, unit: str, target: str) -> float:
    """Convert a value from one unit to another, such as 5 "km/h" to "m/s"; ValueError if they do not match."""
    import pint

    registry: pint.UnitRegistry[float] = pint.UnitRegistry(autoconvert_offset_to_baseunit=True)
    try:
        return float(registry.Quantity(value, unit).to(target).magnitude)
    except pint.PintError as error:
        raise ValueError(f"{value} {unit} cannot be given in {target}: {error}") from error
