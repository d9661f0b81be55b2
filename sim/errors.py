"""Errors a user can cause. Any room raises them; entry points turn them into one line and exit status 2."""

from __future__ import annotations

_SHOWN_CHARACTERS = 80


class UserError(ValueError):
    """A mistake in what the user gave: one line naming file, task, field, value and what would be right."""


def shown(value: object) -> str:
    """A value as it stands in an error message: its repr on one line, cut after 80 characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
