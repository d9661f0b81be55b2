"""Run directories: what a crash, a second process, a full disk or a damaged line leave behind."""

from __future__ import annotations

import io
import os
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import Buffer

from sim.errors import UserError
from sim.records.rows import BranchRow, CallRow, DecisionRow, EpisodeRow, VoteRow
from sim.records.store import Row, RunStore, _write_all, cut_torn_tail, finished_decisions, read_rows


def branch(path: str, task: str = "t") -> BranchRow:
    """A branch row with numbers that are hard to spell."""
    return BranchRow(
        task, 0, path, 1, "route", 0, 0, 0.1 + 0.2, 1 / 3, 5e-324, [[1 / 7, 6 / 7]], [False], "text"
    )


def episode(task: str = "t", condition: str = "rules") -> EpisodeRow:
    """An episode row."""
    return EpisodeRow(
        "evaluate", condition, task, task, 0, 4, 3, 0, 0, [0], 1, 1, 0.5, "route@0", "horizon", 0.4, 0, 4
    )


def decision(task: str = "t", number: int = 1, executed: int = 0) -> DecisionRow:
    """A decision row."""
    return DecisionRow(
        "evaluate", "rules", task, 0, number, "", ["route@0"], 0.5, [0.4], [0.0], 0, False, executed, False, None,
        False, [True], [],
    )  # fmt: skip


def test_rows_come_back_exactly(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.append([branch("a"), branch("b")])
        store.append([episode()])
    assert read_rows(tmp_path, BranchRow) == [branch("a"), branch("b")]
    assert read_rows(tmp_path, EpisodeRow) == [episode()]
    assert read_rows(tmp_path, DecisionRow) == []


def test_a_branch_is_written_once_by_its_key(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.append([branch("a"), branch("a")])
    with RunStore(tmp_path) as store:
        store.append([branch("a"), branch("b"), branch("a", task="u")])
    assert [(row.task, row.path) for row in read_rows(tmp_path, BranchRow)] == [
        ("t", "a"),
        ("t", "b"),
        ("u", "a"),
    ]


def test_finished_episodes_are_known_after_reopening(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.append([episode()])
        assert store.finished("evaluate", "rules", "t", 0)
    with RunStore(tmp_path) as store:
        assert store.finished("evaluate", "rules", "t", 0)
        assert not store.finished("evaluate", "rules+gate", "t", 0)


def test_a_torn_last_line_is_skipped_with_a_warning_and_cut_before_writing(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.append([branch("a"), branch("b")])
    path = tmp_path / "branches.jsonl"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.warns(UserWarning, match=r"branches\.jsonl:2: torn last line"):
        assert read_rows(tmp_path, BranchRow) == [branch("a")]
    with pytest.warns(UserWarning, match="torn last line"), RunStore(tmp_path) as store:
        store.append([branch("b")])
    assert read_rows(tmp_path, BranchRow) == [branch("a"), branch("b")]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text('{"stage": "evaluate"}\n')
    with pytest.raises(UserError, match=r"episodes\.jsonl:1: not a EpisodeRow"):
        read_rows(tmp_path, EpisodeRow)


def test_decisions_without_an_episode_are_ignored_and_repeated_ones_count_once(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.append([decision("t"), decision("u")])
        store.append([decision("t", executed=0), decision("t", 2)])
        store.append([episode("t")])
    kept = finished_decisions(tmp_path, read_rows(tmp_path, EpisodeRow))
    assert [(row.task, row.round) for row in kept] == [("t", 1), ("t", 2)]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    code = (
        f"from sim.records.store import RunStore; from pathlib import Path; RunStore(Path({str(tmp_path)!r}))"
    )
    with RunStore(tmp_path):
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert second.returncode == 1
    assert "another process is writing this run" in second.stderr
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes: what a full disk does to a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)


def test_a_full_disk_says_how_to_go_on_and_loses_nothing(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.append([branch("a")])
        refused = pytest.raises(
            UserError, match=r"branches\.jsonl: File too large; free some space .* resume="
        )
        with limited_files((tmp_path / "branches.jsonl").stat().st_size + 20), refused:
            store.append([branch("b"), branch("c")])
    with pytest.warns(UserWarning, match="torn"), RunStore(tmp_path) as store:
        store.append([branch("b"), branch("c")])
    assert read_rows(tmp_path, BranchRow) == [branch("a"), branch("b"), branch("c")]


def test_a_store_goes_on_after_a_failed_write_as_if_it_had_not_been_tried(tmp_path: Path) -> None:
    """The rows of the failed write are not taken for written, and the next ones start on a line of their own."""
    with RunStore(tmp_path) as store:
        store.append([branch("a")])
        with limited_files((tmp_path / "branches.jsonl").stat().st_size + 20), pytest.raises(UserError):
            store.append([branch("b"), branch("c")])
        with pytest.warns(UserWarning, match="torn last line removed"):
            store.append([branch("b"), branch("c")])
    assert read_rows(tmp_path, BranchRow) == [branch("a"), branch("b"), branch("c")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_folder_that_is_not_ours_is_refused_with_its_name(tmp_path: Path) -> None:
    """As another user in a forked process, because root may write anywhere."""
    with RunStore(tmp_path) as store:
        store.append([branch("a")])
    tmp_path.chmod(0o500)
    said, heard = os.pipe()
    child = os.fork()
    if child == 0:
        _refused_as_somebody_else(tmp_path, heard)
    os.close(heard)
    with os.fdopen(said, encoding="utf-8") as pipe:
        message = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert message == f"{tmp_path}: Permission denied; the run directory must exist and be writable"
    tmp_path.chmod(0o700)


def _refused_as_somebody_else(directory: Path, heard: int) -> NoReturn:
    """The child: drop what rights there are and report the refusal."""
    status = 1
    try:
        if os.geteuid() == 0:
            os.setuid(65534)
        RunStore(directory)
    except UserError as error:
        os.write(heard, str(error).encode())
        status = 0
    finally:
        os._exit(status)


def test_a_missing_folder_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: No such file or directory; the run directory must exist"):
        RunStore(tmp_path / "nowhere")


@settings(max_examples=40)
@given(st.integers(1, 5), st.data())
def test_a_file_cut_at_any_byte_keeps_every_whole_row_before_the_cut(
    tmp_path_factory: pytest.TempPathFactory, size: int, data: st.DataObject
) -> None:
    """A crash may stop a write anywhere: what is whole stays, and writing again gives the same file."""
    directory = tmp_path_factory.mktemp("torn")
    rows = [branch(f"{i}", "täsk") for i in range(size)]
    with RunStore(directory) as store:
        store.append(rows)
    path = directory / "branches.jsonl"
    content = path.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert read_rows(directory, BranchRow) == rows[:whole]
        with RunStore(directory) as store:
            store.append(rows)
    assert path.read_bytes() == content


@pytest.mark.parametrize("longest", [10, 65_536, 200_000])
def test_a_torn_tail_of_any_length_is_cut_to_the_last_whole_line(tmp_path: Path, longest: int) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"first\nsecond\n" + b"x" * longest)
    with pytest.warns(UserWarning, match="torn last line removed"):
        cut_torn_tail(path)
    assert path.read_bytes() == b"first\nsecond\n"
    path.write_bytes(b"y" * longest)
    with pytest.warns(UserWarning, match="torn last line removed"):
        cut_torn_tail(path)
    assert path.read_bytes() == b""


def test_a_write_taken_in_pieces_is_completed(tmp_path: Path) -> None:
    """An unbuffered file may take fewer bytes than offered."""

    class Reluctant(io.BytesIO):
        def write(self, data: Buffer, /) -> int:
            return super().write(bytes(data)[:3])

    file = Reluctant()
    _write_all(file, b"0123456789")
    assert file.getvalue() == b"0123456789"


def test_every_kind_of_row_round_trips_with_any_numbers(tmp_path: Path) -> None:
    rows: list[Row] = [
        branch("a"),
        VoteRow("t", 0, "a", [0, -1], [[0.1, 0.9], [1e-300, 1.0]], [[1, 0]], 3, 4),
        decision(),
        episode(),
        CallRow("t", 0, "a", "belief", 2, "h", 10, None, 1, 0.25, 1, "stop", "m", 0, 'a "quote"\nnew line'),
    ]
    with RunStore(tmp_path) as store:
        for row in rows:
            store.append([row])
    assert [read_rows(tmp_path, type(row))[0] for row in rows] == rows
    assert all(len(path.read_bytes().splitlines()) == 1 for path in tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize(
    "line",
    ["{}", "[]", "not json", '{"task": "t"}', "\x00\x00", '{"stage": 1}', " "],
)
def test_a_damaged_line_in_the_middle_stops_with_file_and_line(tmp_path: Path, line: str) -> None:
    with RunStore(tmp_path) as store:
        store.append([episode("a"), episode("b")])
    path = tmp_path / "episodes.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{line}\n{second}\n")
    with pytest.raises(UserError, match=r"episodes\.jsonl:2: not a EpisodeRow") as caught:
        RunStore(tmp_path)
    assert "\n" not in str(caught.value)
