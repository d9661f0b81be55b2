"""Waiting for coroutines with and without an event loop under way, as in a notebook."""

from __future__ import annotations

import asyncio

import pytest

from sim.studies.blocking import wait_for


async def doubled(number: int) -> int:
    """A coroutine that gives way once."""
    await asyncio.sleep(0)
    if number < 0:
        raise ValueError("negative")
    return 2 * number


async def from_inside(number: int) -> int:
    """What a notebook's cell does: blocking code inside a running loop."""
    return wait_for(doubled(number))


def test_a_script_and_a_notebook_get_the_same() -> None:
    assert wait_for(doubled(2)) == asyncio.run(from_inside(2)) == 4


def test_errors_come_through_from_inside_a_loop() -> None:
    with pytest.raises(ValueError, match="negative"):
        asyncio.run(from_inside(-1))
