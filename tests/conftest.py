"""How every test runs: properties draw the same examples each time, and no test fails for being slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")
