"""Run directories: what a crash, a second process, a full disk or a damaged line leave behind."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sim.errors import UserError
from sim.records.rows import BranchRow, DecisionRow, EpisodeRow
from sim.records.run_dir import claim, provenance, read_config, read_status, tracked
from sim.records.store import RunStore, finished_decisions, read_rows


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


def test_a_full_disk_says_how_to_go_on_and_loses_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RunStore(tmp_path) as store:
        store.append([branch("a")])
        size = (tmp_path / "branches.jsonl").stat().st_size
        import signal

        previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))
        try:
            with pytest.raises(
                UserError, match=r"branches\.jsonl: File too large; free some space .* resume="
            ):
                store.append([branch("b"), branch("c")])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, previous)
    with pytest.warns(UserWarning, match="torn"), RunStore(tmp_path) as store:
        store.append([branch("b"), branch("c")])
    assert read_rows(tmp_path, BranchRow) == [branch("a"), branch("b"), branch("c")]


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
