"""Task files: strict reading and atomic writing of JSON lists of tasks.

Two forms are known: HiddenBench's seven fields, and the same with `family` and `evidence` for tasks of our
own. Every error names file, task and field. Nothing here knows how tasks are generated or split.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from sim.errors import UserError, shown
from sim.tasks.families import family_names
from sim.tasks.task import HiddenProfileTask

Record: TypeAlias = dict[str, Any]

HIDDENBENCH_FIELDS = (
    "id",
    "name",
    "description",
    "shared_information",
    "hidden_information",
    "possible_answers",
    "correct_answer",
)
OWN_FIELDS = ("family", "evidence")
_LIST_FIELDS = ("shared_information", "hidden_information", "possible_answers")


def tasks_hash(tasks: Sequence[HiddenProfileTask]) -> str:
    """Hash of the content of some tasks, in their order: that of their JSON list, a task at a time."""
    content = hashlib.blake2b(b"[", digest_size=16)
    for piece in _listed(tasks, b","):
        content.update(piece)
    content.update(b"]")
    return content.hexdigest()


def _listed(tasks: Iterable[HiddenProfileTask], separator: bytes) -> Iterator[bytes]:
    """The entries of a JSON list, one task at a time."""
    for place, task in enumerate(tasks):
        yield (separator if place else b"") + msgspec.json.encode(task)


def load_tasks(path: str | Path) -> tuple[HiddenProfileTask, ...]:
    """Tasks of a file in either form; without the field `family`, tasks that share facts share one.

    Raises UserError naming file, task, field and value.
    """
    records = read_records(path)
    with_family = [record for record in records if "family" in record]
    if with_family and len(with_family) < len(records):
        place = next(i for i, record in enumerate(records) if "family" not in record)
        raise UserError(
            f"{path}: task {_label(records[place], place)}: field 'family': missing, though other tasks of "
            "the file have it; give it to all or to none"
        )
    own = ("family",) if with_family else ()
    return build_tasks(path, records, required=HIDDENBENCH_FIELDS + own, optional=("evidence",))


def load_recorded_tasks(path: str | Path, recorded_hash: str | None) -> tuple[HiddenProfileTask, ...]:
    """The tasks of a run, as they were when it was made; UserError where the file says something else since.

    Without a recorded hash (a run that was never opened) there is nothing to hold them against.
    """
    if recorded_hash is None:
        return load_tasks(path)
    if tasks_hash(tasks := _as_written(path)) == recorded_hash:
        return tasks
    if tasks_hash(tasks := load_tasks(path)) != recorded_hash:
        raise UserError(
            f"{path}: holds other tasks than the run was made with; restore the file, or start a new run"
        )
    return tasks


def _as_written(path: str | Path) -> tuple[HiddenProfileTask, ...]:
    """The tasks of a file that `write_tasks` wrote, a line each, in a fraction of the time and memory that any file
    takes; none of another file."""
    decode = msgspec.json.Decoder(HiddenProfileTask).decode
    try:
        with Path(path).open("rb") as lines:
            return tuple(decode(line.rstrip(b",\n")) for line in lines if line not in (b"[\n", b"]\n"))
    except (OSError, msgspec.DecodeError):
        return ()


def write_tasks(path: str | Path, tasks: Iterable[HiddenProfileTask]) -> None:
    """Write tasks in HiddenBench's form plus `family` and `evidence`; the file appears whole or not at all.

    Raises UserError where two tasks have one id or the folder cannot be written.
    """
    path = Path(path)
    tasks = tuple(tasks)
    _refuse_duplicates(path, [task.id for task in tasks])
    try:
        _write_atomically(path, chain((b"[\n",), _listed(tasks, b",\n"), (b"\n]\n",)))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); give a path in a writable folder"
        ) from error


def read_records(path: str | Path) -> list[Record]:
    """The JSON objects of a task file. Raises UserError for anything but a non-empty list of objects."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); give the path of a JSON list of tasks"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    if not text.strip():
        raise UserError(f"{path}: the file is empty; give a JSON list of tasks")
    records = _parsed(path, text)
    if not isinstance(records, list):
        raise UserError(f"{path}: holds {_kind(records)}; give a JSON list of tasks: [{{...}}, {{...}}]")
    if not records:
        raise UserError(f"{path}: the list has no task; give at least one")
    for place, record in enumerate(records):
        if not isinstance(record, dict):
            raise UserError(f"{path}: task {place + 1}: {shown(record)} is not an object; give {{...}}")
    return records


def build_tasks(
    path: str | Path, records: Sequence[Record], required: Sequence[str], optional: Sequence[str] = ()
) -> tuple[HiddenProfileTask, ...]:
    """Tasks of records that must have the `required` and may have the `optional` fields, and no others."""
    known = {**dict.fromkeys(required), **dict.fromkeys(optional)}
    for place, record in enumerate(records):
        _check_fields(path, _label(record, place), record, required, known)
    ids = [_identifier(path, record, place) for place, record in enumerate(records)]
    _refuse_duplicates(path, ids)
    tasks = tuple(_built(path, record, name) for record, name in zip(records, ids, strict=True))
    if "family" in known:
        return tasks
    facts = [(task.description, *task.clues) for task in tasks]
    families = family_names(ids, facts)
    return tuple(
        msgspec.structs.replace(task, family=family) for task, family in zip(tasks, families, strict=True)
    )


def _check_fields(
    path: str | Path, label: str, record: Record, required: Sequence[str], known: Record
) -> None:
    unknown = next((field for field in record if field not in known), None)
    if unknown is not None:
        raise UserError(
            f"{path}: task {label}: field {shown(unknown)} is unknown; known are {', '.join(known)}"
        )
    missing = next((field for field in required if field not in record), None)
    if missing is not None:
        raise UserError(
            f"{path}: task {label}: field '{missing}' is missing; needed are {', '.join(required)}"
        )


def _built(path: str | Path, record: Record, name: str) -> HiddenProfileTask:
    """The task of a checked record; a record without a family stands alone until families are found."""
    fields = {**record, "id": name, "family": record.get("family", name)}
    try:
        for field in _LIST_FIELDS:
            fields[field] = _as_tuple(name, field, record[field])
        fields["evidence"] = _evidence(name, record.get("evidence"))
        return HiddenProfileTask(**fields)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _as_tuple(name: str, field: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise UserError(f"task {shown(name)}: field '{field}': {shown(value)} is not a list of texts")
    return tuple(value)


def _evidence(name: str, value: Any) -> tuple[tuple[float, ...], ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise UserError(
            f"task {shown(name)}: field 'evidence': {shown(value)} is no list; give one list of numbers per clue, "
            "the shared clues first"
        )
    rows = []
    for place, row in enumerate(value, start=1):
        numbers = isinstance(row, list) and all(type(x) in (int, float) for x in row)
        if not numbers:
            raise UserError(
                f"task {shown(name)}: field 'evidence': row {place} is {shown(row)}; "
                "give a list of numbers, one per option"
            )
        rows.append(tuple(_number(x) for x in row))
    return tuple(rows)


def _number(value: float) -> float:
    """A whole number too large for a float is infinite, and refused as such."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _identifier(path: str | Path, record: Record, place: int) -> str:
    """The id as text; HiddenBench numbers its tasks."""
    value = record["id"]
    if type(value) not in (int, str):
        raise UserError(
            f"{path}: task {place + 1}: field 'id': {shown(value)}; give a whole number or a text"
        )
    return str(value)


def _refuse_duplicates(path: str | Path, ids: Sequence[str]) -> None:
    seen: dict[str, int] = {}
    for place, name in enumerate(ids, start=1):
        if name in seen:
            raise UserError(
                f"{path}: task {place}: field 'id': {shown(name)} is also the id of task {seen[name]}; "
                "every task needs its own"
            )
        seen[name] = place


def _label(record: Record, place: int) -> str:
    return shown(record["id"]) if "id" in record else f"{place + 1}"


def _kind(value: Any) -> str:
    return "one object" if isinstance(value, dict) else shown(value)


def _parsed(path: str | Path, text: str) -> Any:
    """The JSON value of a text; NaN, infinities and repeated fields, which Python accepts, are refused."""

    def refuse_constant(constant: str) -> None:
        raise UserError(f"{path}: {constant} is not JSON and no valid number; give finite numbers")

    def unique(pairs: list[tuple[str, Any]]) -> Record:
        record = dict(pairs)
        if len(record) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            label = f"task {shown(record['id'])}: " if "id" in record else ""
            raise UserError(f"{path}: {label}field {shown(twice)} is given twice; give it once")
        return record

    try:
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique)
    except RecursionError as error:
        raise UserError(
            f"{path}: lists or objects lie too deep in each other; give a JSON list of tasks"
        ) from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}: line {error.lineno}, column {error.colno}: not JSON ({error.msg}); "
            "give a JSON list of tasks"
        ) from error


def _write_atomically(path: Path, content: Iterable[bytes]) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise
