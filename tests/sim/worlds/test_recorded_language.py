"""The recorded language-model exploration of the test data: read, re-scored and replayed without the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.launch import composed
from sim.records.rows import BranchRow, CallRow, DecisionRow, EpisodeRow, VoteRow
from sim.records.run_dir import read_config, read_status
from sim.records.store import read_rows
from sim.studies.verbs import run_stages

RECORDED = Path(__file__).resolve().parents[2] / "data" / "smollm2_exploration"
BRANCHES = 2 * (1 + 4 + 16)
LEAVES = 2 * 16


@pytest.fixture(name="overrides")
def _overrides(tmp_path: Path) -> tuple[str, ...]:
    return ("experiment=recorded_llm", f"replay={RECORDED}", f"output={tmp_path}", "progress=false")


def test_the_recording_is_whole_small_and_of_a_real_model() -> None:
    assert read_status(RECORDED)["state"] == "finished"
    assert read_config(RECORDED)["engine"]["kind"] == "transformers_local"
    assert len(read_rows(RECORDED, BranchRow)) == BRANCHES
    assert len(read_rows(RECORDED, VoteRow)) == LEAVES
    assert read_rows(RECORDED, CallRow) == []
    assert sum(path.stat().st_size for path in RECORDED.iterdir()) < 1_000_000


def test_scoring_the_recording_again_gives_its_decisions(overrides: tuple[str, ...]) -> None:
    again = run_stages(composed(*overrides), {}, ("explore",))
    assert read_rows(again, DecisionRow) == read_rows(RECORDED, DecisionRow)


def test_any_controller_holds_its_discussions_on_the_recording(overrides: tuple[str, ...]) -> None:
    run = run_stages(composed(*overrides), {}, ("evaluate",))
    episodes = read_rows(run, EpisodeRow)
    assert sorted({row.condition for row in episodes}) == ["greedy", "noisy_rules", "random", "rules"]
    assert [row.error for row in episodes if row.error] == []
    recorded = {(row.task, row.path): row.choice for row in read_rows(RECORDED, VoteRow)}
    assert all(row.votes == recorded[row.task, row.path] for row in episodes)
