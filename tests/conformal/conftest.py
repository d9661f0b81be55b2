"""Property tests draw the same examples every time and have no deadline on a busy machine."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
