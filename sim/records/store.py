"""A run directory on disk: append-only JSON lines, one writer at a time, nothing redone, nothing lost.

An episode is finished when its row stands in episodes.jsonl; its other rows were written before. Rows of an
episode that a crash cut short are ignored on reading and written again on resume, identically.
"""

from __future__ import annotations

import fcntl
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TypeVar

import msgspec

from sim.errors import UserError
from sim.records.captain_rows import CaptainCallRow, CaptainEpisodeRow, CaptainEventRow
from sim.records.rows import BranchRow, CallRow, DecisionRow, EpisodeRow, VoteRow

Row = (
    BranchRow
    | VoteRow
    | DecisionRow
    | EpisodeRow
    | CallRow
    | CaptainCallRow
    | CaptainEventRow
    | CaptainEpisodeRow
)
R = TypeVar("R", bound=Row)

FILES: dict[type, str] = {
    BranchRow: "branches.jsonl",
    VoteRow: "votes.jsonl",
    DecisionRow: "decisions.jsonl",
    EpisodeRow: "episodes.jsonl",
    CallRow: "calls.jsonl",
    CaptainCallRow: "captain_calls.jsonl",
    CaptainEventRow: "captain_events.jsonl",
    CaptainEpisodeRow: "captain_episodes.jsonl",
}

_ENCODER = msgspec.json.Encoder()


class InUse(UserError):
    """Another process holds the run directory."""


def iter_rows(directory: Path, kind: type[R]) -> Iterator[R]:
    """The rows of one kind in the order written; none where the file does not exist.

    A torn last line (a crash while writing) is skipped with a warning. Raises UserError naming file and line
    for any other line that is not such a row.
    """
    path = directory / FILES[kind]
    if not path.exists():
        return
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                warnings.warn(f"{path}:{number}: torn last line skipped", stacklevel=2)
                return
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                raise UserError(
                    f"{path}:{number}: not a {kind.__name__}: {error}; restore the file from a copy, or remove that line"
                ) from error


def read_rows(directory: Path, kind: type[R]) -> list[R]:
    """All rows of one kind; see `iter_rows`."""
    return list(iter_rows(directory, kind))


def branch_key(row: BranchRow | VoteRow) -> tuple[str, int, str]:
    """What makes a branch or a final vote unique."""
    return row.task, row.seed, row.path


def episode_key(row: EpisodeRow | DecisionRow) -> tuple[str, str, str, int]:
    """What makes an episode unique, for its own row and those of its decisions."""
    return row.stage, row.condition, row.task, row.seed


class RunStore:
    """The writer of a run directory; holds its lock from opening to closing."""

    def __init__(self, directory: Path) -> None:
        """Lock the directory and cut torn tails. Raises UserError if it cannot be written or is in use."""
        self.directory = directory
        self._lock = _lock(directory)
        self._files: dict[type, IO[bytes]] = {}
        self._finished = {episode_key(row) for row in iter_rows(directory, EpisodeRow)}
        self._known: set[tuple[type, str, int, str]] = set()
        self._known.update((BranchRow, *branch_key(row)) for row in iter_rows(directory, BranchRow))
        self._known.update((VoteRow, *branch_key(row)) for row in iter_rows(directory, VoteRow))

    def __enter__(self) -> RunStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all files and release the directory."""
        for file in self._files.values():
            file.close()
        self._lock.close()

    def finished(self, stage: str, condition: str, task: str, seed: int) -> bool:
        """Whether this episode's outcome is recorded."""
        return (stage, condition, task, seed) in self._finished

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows of one kind with one flush; a branch or vote already recorded is not written twice.

        Raises UserError if the disk is full or the file cannot be written; what was written before stays.
        """
        fresh = list(self._new(rows))
        if not fresh:
            return
        kind = type(fresh[0])
        data = b"".join(_ENCODER.encode(row) + b"\n" for row in fresh)
        try:
            _write_all(self._file(kind), data)
        except OSError as error:
            self._let_go(kind)
            raise UserError(
                f"{self.directory / FILES[kind]}: {error.strerror}; free some space or make it writable, then "
                f"continue with resume={self.directory}"
            ) from error
        self._known.update((kind, *branch_key(row)) for row in fresh if isinstance(row, BranchRow | VoteRow))
        self._finished.update(episode_key(row) for row in fresh if isinstance(row, EpisodeRow))

    def _new(self, rows: Sequence[Row]) -> Iterator[Row]:
        """Rows that are neither on disk nor earlier among these."""
        seen: set[tuple[type, str, int, str]] = set()
        for row in rows:
            if isinstance(row, BranchRow | VoteRow):
                key = (type(row), *branch_key(row))
                if key in seen or key in self._known:
                    continue
                seen.add(key)
            yield row

    def _let_go(self, kind: type) -> None:
        """Close a file whose last write failed, so that its torn tail is cut before the next one."""
        file = self._files.pop(kind, None)
        if file is not None:
            file.close()

    def _file(self, kind: type) -> IO[bytes]:
        if kind not in self._files:
            path = self.directory / FILES[kind]
            cut_torn_tail(path)
            self._files[kind] = path.open("ab", buffering=0)
        return self._files[kind]


def _write_all(file: IO[bytes], data: bytes) -> None:
    """Write every byte: an unbuffered file may take only some at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def cut_torn_tail(path: Path) -> None:
    """Remove an unfinished last line, so that the next row starts on a line of its own."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        content = file.seek(0, os.SEEK_END)
        keep = content
        while keep:
            start = max(0, keep - 65536)
            file.seek(start)
            newline = file.read(keep - start).rfind(b"\n")
            if newline >= 0:
                keep = start + newline + 1
                break
            keep = start
        if keep < content:
            warnings.warn(f"{path}: torn last line removed", stacklevel=2)
            file.truncate(keep)


def _lock(directory: Path) -> IO[bytes]:
    try:
        lock = (directory / ".lock").open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InUse(f"{directory}: another process is writing this run; wait for it or stop it") from error
    except OSError as error:
        raise UserError(
            f"{directory}: {error.strerror}; the run directory must exist and be writable"
        ) from error
    return lock


def iter_finished_decisions(directory: Path, episodes: Iterable[EpisodeRow]) -> Iterator[DecisionRow]:
    """The decisions of finished episodes in the order written; those of a crashed attempt may come twice."""
    done = {episode_key(row) for row in episodes}
    return (row for row in iter_rows(directory, DecisionRow) if episode_key(row) in done)


def finished_decisions(directory: Path, episodes: Iterable[EpisodeRow]) -> list[DecisionRow]:
    """The decisions of finished episodes, each (episode, round, path) once: the last one written. Only a tree
    has several paths in a round."""
    rows = {
        (*episode_key(row), row.round, row.path): row for row in iter_finished_decisions(directory, episodes)
    }
    return list(rows.values())
