"""The scripted engine's own answers: what it writes is what the schema allows."""

from __future__ import annotations

import msgspec
import pytest

from sim.captain.forms import schema_of
from sim.captain.replies import Decision, Finish, ReuseTeam, SeekExperts, Solve
from sim.engines.protocol import ChatRequest, Turn
from sim.engines.scripted import echo


@pytest.mark.parametrize("key", range(8))
def test_any_decision_of_a_captain_can_be_read(key: int) -> None:
    schema = schema_of((Solve, SeekExperts, ReuseTeam, Finish), {})
    request = ChatRequest(turns=(Turn("user", "one\ntwo"),), max_tokens=64, key=key, schema=schema)
    msgspec.json.decode(echo(request), type=Decision)
