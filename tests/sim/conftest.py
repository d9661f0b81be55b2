"""A server that misbehaves on demand, for tests of engines and of the studies that use them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from misbehaving_server import Server, running


@pytest.fixture(name="server")
def _server() -> Iterator[Server]:
    with running() as server:
        yield server
