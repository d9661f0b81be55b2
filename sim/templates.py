"""Prompt templates: one a file in a package's folder, filled in as plain text for a model, versioned by a hash.

What they say, and who is shown what, is decided where they lie.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


@dataclass(frozen=True)
class Templates:
    """The `*.j2` files of a folder. They are not HTML: nothing is escaped."""

    folder: Path

    @cached_property
    def _environment(self) -> Environment:
        return Environment(
            loader=FileSystemLoader(self.folder),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def render(self, template: str, **values: object) -> str:
        """A template filled in; an undefined variable is an error."""
        return self._environment.get_template(f"{template}.j2").render(**values).strip()

    def version(self, wording: str = "") -> str:
        """Hash of all templates, and of wording that lies elsewhere: part of policy hashes and of provenance."""
        state = hashlib.blake2b(wording.encode(), digest_size=8)
        for path in sorted(self.folder.glob("*.j2")):
            state.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return state.hexdigest()
