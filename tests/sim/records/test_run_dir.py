"""Run directories: claimed exclusively, read back with care, and honest about how a run ended."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sim.errors import UserError
from sim.records.run_dir import (
    CONFIG,
    PROVENANCE,
    STATUS,
    claim,
    provenance,
    read_config,
    read_provenance,
    read_status,
    state_of,
    tracked,
    write_text,
)


def test_run_directories_are_claimed_exclusively_and_keep_their_config(tmp_path: Path) -> None:
    made = {claim(tmp_path, "name", "abc", {"seed": 1}) for _ in range(20)}
    assert len(made) == 20
    assert read_config(made.pop()) == {"seed": 1}
    with pytest.raises(UserError, match=r"not a run directory \(config\.yaml is missing\)"):
        read_config(tmp_path)


def test_status_tells_how_a_run_ended(tmp_path: Path) -> None:
    assert read_status(tmp_path)["state"] == "unknown"
    with tracked(tmp_path, "evaluate"):
        assert read_status(tmp_path)["state"] == "running"
    assert read_status(tmp_path)["state"] == "finished"

    def fail() -> None:
        with tracked(tmp_path, "evaluate"):
            raise ValueError("lost the engine")

    with pytest.raises(ValueError, match="lost the engine"):
        fail()
    status = read_status(tmp_path)
    assert status["state"] == "failed"
    assert "lost the engine" in status["traceback"]


def test_provenance_names_versions_and_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    found = provenance({"data_hash": "x"})
    assert found["packages"]["numpy"]
    assert found["data_hash"] == "x"
    assert "sk-secret" not in str(found)


@pytest.mark.parametrize("content", ["a: [1", "", "- 1\n- 2", "\x00", "a: b: c"])
def test_a_damaged_config_is_one_line_naming_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / CONFIG).write_text(content)
    with pytest.raises(UserError, match=r"config\.yaml: ") as caught:
        read_config(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[1]", "null"])
def test_damaged_json_is_one_line_naming_the_file(tmp_path: Path, content: str) -> None:
    for name, read in ((PROVENANCE, read_provenance), (STATUS, read_status)):
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=rf"{name}: .*delete it to have it made again"):
            read(tmp_path)


def test_a_text_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_text(target, "first")
    (tmp_path / "file.partial").mkdir()  # in the way of the draft
    with pytest.raises(UserError, match=r"file: Is a directory; free some space or make it writable"):
        write_text(target, "second")
    assert target.read_text() == "first"


def test_a_signal_interrupts_and_an_error_fails(tmp_path: Path) -> None:
    def end(error: BaseException) -> str:
        with pytest.raises(type(error)), tracked(tmp_path, "evaluate"):
            raise error
        return state_of(read_status(tmp_path))

    assert end(KeyboardInterrupt()) == "interrupted"
    assert end(SystemExit(143)) == "interrupted"
    assert end(UserError("no")) == "failed"


def test_a_run_killed_without_a_last_word_is_interrupted_and_a_living_one_runs(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    here = {"state": "running", "host": socket.gethostname()}
    assert state_of({**here, "pid": dead.pid}) == "interrupted"
    assert state_of({**here, "pid": os.getpid()}) == "running"
    assert state_of({**here, "host": "elsewhere", "pid": dead.pid}) == "running"
    assert state_of({}) == "unknown"


def test_the_record_of_an_error_survives_as_json(tmp_path: Path) -> None:
    with pytest.raises(UserError), tracked(tmp_path, "train"):
        raise UserError('a "quoted" ünïcode\nerror')
    assert json.loads((tmp_path / STATUS).read_text())["error"] == 'UserError: a "quoted" ünïcode\nerror'
