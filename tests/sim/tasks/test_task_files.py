"""Task files: what is written is read back exactly, and every bad input gets one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim.errors import UserError
from sim.tasks import HiddenProfileTask, demo_task, generate_travel, load_hiddenbench, load_tasks, write_tasks

Record = dict[str, Any]
Write = Callable[[object], Path]
Load = Callable[[Path], tuple[HiddenProfileTask, ...]]


def changed(records: list[Record], **changes: Any) -> list[Record]:
    """The records with fields of the last one replaced, or removed where the value is `...`."""
    last = {**records[-1], **changes}
    return [*records[:-1], {name: value for name, value in last.items() if value is not ...}]


def message_of(load: Load, path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_generated_and_loaded_tasks_round_trip_exactly(
    tmp_path: Path, records: list[Record], write: Write
) -> None:
    tasks = (*generate_travel("hard", 20, 3), demo_task(), *load_hiddenbench(write(records)))
    path = tmp_path / "round.json"
    write_tasks(path, tasks)
    assert load_tasks(path) == tasks
    first = path.read_bytes()
    write_tasks(path, load_tasks(path))
    assert path.read_bytes() == first


def test_either_form_is_read(records: list[Record], write: Write) -> None:
    assert load_tasks(write(records)) == load_hiddenbench(write(records))


@pytest.mark.parametrize("load", [load_hiddenbench, load_tasks])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"color": 1}, ["6", "'color'", "unknown", "possible_answers"]),
        ({"possible_answers": ...}, ["6", "'possible_answers'", "missing"]),
        ({"id": ...}, ["task 6", "'id'", "missing"]),
        ({"id": 5}, ["'id'", "'5'", "task 5"]),
        ({"id": "5"}, ["'id'", "'5'", "task 5"]),
        ({"id": True}, ["'id'", "True"]),
        ({"id": 1.5}, ["'id'", "1.5"]),
        ({"name": 7}, ["'6'", "'name'", "7"]),
        ({"possible_answers": ["X", "Y", "X"]}, ["'6'", "'possible_answers'", "'X'"]),
        ({"correct_answer": "Nowhere"}, ["'6'", "'correct_answer'", "'Nowhere'", "The gate"]),
        ({"hidden_information": []}, ["'6'", "'hidden_information'", "[]", "at least 2"]),
        ({"hidden_information": ["one"]}, ["'6'", "'hidden_information'", "at least 2"]),
        ({"hidden_information": "one"}, ["'6'", "'hidden_information'", "'one'", "list"]),
        ({"shared_information": []}, ["'6'", "'shared_information'", "[]", "at least 1"]),
        ({"shared_information": ["a", None]}, ["'6'", "'shared_information'", "None"]),
        ({"possible_answers": {"a": 1}}, ["'6'", "'possible_answers'", "list"]),
    ],
)
def test_bad_fields(
    load: Load, records: list[Record], write: Write, changes: Record, said: list[str]
) -> None:
    message = message_of(load, write(changed(records, **changes)))
    for word in said:
        assert word in message


@pytest.mark.parametrize("load", [load_hiddenbench, load_tasks])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty"),
        (" \n ", "empty"),
        ("[]", "at least one"),
        ("{}", "one object"),
        ("3", "3"),
        ("[1]", "task 1"),
        ('[\n {"id": 1,\n  "name": }\n]', "line 3"),
        ('[{"id": 1}', "line 1"),
        ("[NaN]", "NaN"),
        ("[-Infinity]", "-Infinity"),
        ('[{"id": 1, "name": "a", "name": "b"}]', "'name' is given twice"),
        (b"[\xff]", "byte 1"),
        ("[" * 100_000, "too deep"),
    ],
)
def test_bad_files(load: Load, write: Write, content: str | bytes, said: str) -> None:
    assert said in message_of(load, write(content))


def test_a_byte_order_mark_is_no_fault(records: list[Record], write: Write) -> None:
    marked = write(b"\xef\xbb\xbf" + json.dumps(records).encode())
    assert [task.id for task in load_tasks(marked)] == [str(record["id"]) for record in records]


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert "No such file" in message_of(load_tasks, tmp_path / "none.json")
    assert "directory" in message_of(load_tasks, tmp_path)


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        ([[0, 0, 0]] * 4, "4 rows; give 5"),
        ([[0, 0, 0]] * 4 + [[0, 0]], "row 5 has 2"),
        ([[0, 0, 0]] * 4 + [[1, 0, 0]], "row 5"),
        ([[0, 0, 0]] * 4 + [[None, 0, 0]], "row 5"),
        ([[0, 0, 0]] * 4 + [[True, 0, 0]], "row 5"),
        ([[0, 0, 0]] * 4 + ["abc"], "row 5"),
        ("abc", "one list of numbers per clue"),
        ({"shared": [[0, 0, 0]]}, "one list of numbers per clue"),
    ],
)
def test_bad_evidence(records: list[Record], write: Write, evidence: object, said: str) -> None:
    message = message_of(load_tasks, write(changed(records, evidence=evidence)))
    assert "task '6'" in message
    assert "'evidence'" in message
    assert said in message


def test_nan_evidence_names_the_constant(records: list[Record], write: Write) -> None:
    text = json.dumps(changed(records, evidence=[[float("nan"), 0, 0]] * 5))
    assert "NaN" in message_of(load_tasks, write(text))


def test_own_fields_are_unknown_to_hiddenbench(records: list[Record], write: Write) -> None:
    assert "'family'" in message_of(load_hiddenbench, write(changed(records, family="f")))


def test_family_is_given_to_all_or_none(records: list[Record], write: Write) -> None:
    message = message_of(load_tasks, write(changed(records, family="f")))
    assert "task 1" in message
    assert "'family'" in message
    given = [{**record, "family": "one"} for record in records]
    assert {task.family for task in load_tasks(write(given))} == {"one"}


def test_duplicate_ids_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'demo'"):
        write_tasks(tmp_path / "tasks.json", [demo_task(), demo_task()])
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none/tasks\.json: cannot be written"):
        write_tasks(tmp_path / "none" / "tasks.json", [demo_task()])


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tasks.json"
    write_tasks(path, [demo_task()])

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UserError, match="No space left"):
        write_tasks(path, [msgspec.structs.replace(demo_task(), name="changed")])
    assert load_tasks(path) == (demo_task(),)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("size", [1e308, 101.0])
def test_evidence_that_would_overflow_is_refused(size: float) -> None:
    (task,) = generate_travel("easy", 1, 0)
    assert task.evidence is not None
    row = (size, -size, *(0.0,) * (task.n_options - 2))
    with pytest.raises(UserError, match=r"row 1 is .*; log-odds lie between -100 and 100"):
        msgspec.structs.replace(task, evidence=(row, *task.evidence[1:])).public()


def test_evidence_at_its_bound_is_taken() -> None:
    (task,) = generate_travel("easy", 1, 0)
    assert task.evidence is not None
    row = (100.0, -100.0, *(0.0,) * (task.n_options - 2))
    assert msgspec.structs.replace(task, evidence=(row,) * len(task.evidence)).evidence_array().max() == 100
