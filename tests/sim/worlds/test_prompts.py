"""Prompts: one file each, versioned by their hash and recorded; both layouts; names that no label could be."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sim.discussion.actions import ACTION_NAMES, VOTE
from sim.discussion.naming import NAMES
from sim.discussion.public import Message
from sim.launch import composed
from sim.records.rows import BranchRow, EpisodeRow
from sim.records.run_dir import read_provenance
from sim.records.store import read_rows
from sim.studies.verbs import run_stages
from sim.tasks import demo_task
from sim.templates import Templates
from sim.worlds import prompts
from sim.worlds.prompts import LABELS, participant_turns, prompts_hash

FOLDER = Path(prompts.__file__).parent
TASK = demo_task()
HEARD = [Message(0, "route", "The bridge is closed."), Message(1, "clarify", "The ferry runs.")]


def test_every_intervention_and_question_has_a_file_of_its_own() -> None:
    spoken = {name for code, name in enumerate(ACTION_NAMES) if code != VOTE}
    asked = {f"{purpose}{form}" for purpose in ("belief", "vote") for form in ("", "_verbal")}
    assert {path.stem for path in FOLDER.glob("*.j2")} == {
        *spoken, *asked, "task", "private", "transcript", "latest",
    }  # fmt: skip


def test_any_change_of_any_prompt_is_another_version(tmp_path: Path) -> None:
    copy = tmp_path / "prompts"
    shutil.copytree(FOLDER, copy)
    versions = [Templates(copy).version()]
    assert versions == [prompts_hash()]
    for path in sorted(copy.glob("*.j2")):
        path.write_text(path.read_text() + ".")
        versions.append(Templates(copy).version())
    assert len(set(versions)) == 1 + len(list(copy.glob("*.j2")))


@pytest.mark.parametrize("layout", ["private_last", "private_first"])
def test_the_clue_stands_where_the_layout_says_and_the_rest_is_the_same(layout: str) -> None:
    clue = TASK.hidden_information[2]
    system, user = participant_turns(TASK, (clue,), 2, HEARD, "Your turn.", layout)  # type: ignore[arg-type]
    parts = [user.content.index(text) for text in ("The discussion so far", clue, "Your turn.")]
    assert parts == sorted(parts) if layout == "private_last" else parts[1] < parts[0] < parts[2]
    assert clue not in system.content
    assert all(fact in system.content for fact in TASK.shared_information)
    other = participant_turns(TASK, (clue,), 2, HEARD, "Your turn.", "private_last")
    assert sorted(user.content.split("\n")) == sorted(other[1].content.split("\n"))


def test_private_first_runs_end_to_end_and_is_recorded(tmp_path: Path) -> None:
    small = (
        "world=language", "engine=scripted", "task.count=3", "split.train=0", "split.pilot=0", "split.calibration=0",
        "split.test=3", "world.horizon=2", "conditions=[hidden_pre,hidden_post,full_info,rules]", "certified=[]",
        "progress=false",
    )  # fmt: skip
    runs = [
        run_stages(
            composed(*small, f"world.settings.layout={layout}", f"output={tmp_path / layout}"),
            {},
            ("evaluate",),
        )
        for layout in ("private_last", "private_first")
    ]
    worlds = [read_provenance(run)["world"] for run in runs]
    assert [world["settings"]["layout"] for world in worlds] == ["private_last", "private_first"]
    assert {world["prompts"] for world in worlds} == {prompts_hash()}
    for run in runs:
        assert len(read_rows(run, EpisodeRow)) == 12
        assert all(row.prompt_tokens for row in read_rows(run, BranchRow))


def test_names_are_words_that_no_label_could_be() -> None:
    many = (*NAMES, *(f"Guest{seat + 1}" for seat in range(len(NAMES), 20)))
    assert len({name.casefold() for name in many}) == len(many)
    for name in many:
        assert len(name) > 2
        assert name.casefold() not in {label.casefold() for label in LABELS}
