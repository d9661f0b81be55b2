"""Errors a user can cause. Every room may raise them; entry points turn them into one line and exit status 2."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in what the user gave: one line naming file, task, field and value, and what would be right."""
