"""Plain data as typed objects: what is wrong is named by path and value, with what may stand there."""

from __future__ import annotations

from typing import Any

import pytest

from sim.config import parse
from sim.errors import UserError
from sim.launch import composed
from sim.parsing import typed


@pytest.fixture(name="default", scope="module")
def _default() -> dict[str, Any]:
    return composed()


@pytest.mark.parametrize(
    ("group", "change", "words"),
    [
        (
            "conformal",
            {"mode": "x"},
            "conformal.mode: Invalid enum value 'x'; choose from audit, lockstep, pilot, roundwise, sequential, traj",
        ),
        (
            "world",
            {"horizon": "long"},
            "world.horizon: Expected `int | {each: ...} | null`, got `str` 'long'",
        ),
        ("world", {"kind": "x"}, "world.kind: Invalid value 'x'; choose from cognitive, language"),
        ("conformal", {"alpha": "a"}, "conformal.alpha: Expected `float`, got `str` 'a'"),
        (
            "exploration",
            {"folds": ["x"]},
            "exploration.folds[0]: Invalid enum value 'x'; choose from calibration, ",
        ),
    ],
)
def test_a_wrong_value_is_told_with_what_may_stand_there(
    default: dict[str, Any], group: str, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError) as refused:
        parse({**default, group: {**default[group], **change}})
    assert str(refused.value).startswith(f"config: {words}")


def test_a_variant_is_named_by_its_place(default: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"gate: Invalid enum value 'x'; choose from replace, sample"):
        parse({**default, "variants": {"a": {"controller": "rules", "gate": "x"}}})


def test_what_is_right_is_typed() -> None:
    assert typed({"a": [1, 2]}, dict[str, tuple[int, ...]]) == {"a": (1, 2)}
