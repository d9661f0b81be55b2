"""Prompt templates: plain text, nothing left out in silence, and a hash that every change shows in."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from sim.templates import Templates


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of one template."""
    (tmp_path / "say.j2").write_text("{% if name %}\n  Dear {{ name }},\n{% endif %}\n{{ text }}\n")
    return tmp_path


def test_a_template_is_filled_in_as_plain_text(folder: Path) -> None:
    assert Templates(folder).render("say", name="A", text="a < b & {{ c }}") == "Dear A,\na < b & {{ c }}"


def test_an_undefined_variable_is_an_error(folder: Path) -> None:
    with pytest.raises(UndefinedError, match="name"):
        Templates(folder).render("say", text="x")


def test_the_version_follows_names_contents_and_wording(folder: Path) -> None:
    seen = {Templates(folder).version(), Templates(folder).version("wording")}
    (folder / "say.j2").rename(folder / "tell.j2")
    seen.add(Templates(folder).version())
    (folder / "tell.j2").write_text("{{ text }}")
    seen.add(Templates(folder).version())
    assert len(seen) == 4
    assert Templates(folder).version() in seen
