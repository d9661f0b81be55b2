"""The scripts as a user runs them: real processes, exit statuses, one-line errors, real SIGKILLs."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from sim.records.rows import DecisionRow, EpisodeRow
from sim.records.store import read_rows

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
SMALL = (
    "task.count=90", "split.train=15", "split.pilot=25", "split.calibration=25", "split.test=25",
    "training.epochs=2", "progress=false", "conditions=[hidden_post,rules,mlp]", "certified=[rules,mlp]",
    "world.batch=5",
)  # fmt: skip


def command(name: str, *arguments: str) -> list[str]:
    """A script's command line."""
    return [sys.executable, str(SCRIPTS / f"{name}.py"), *arguments]


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script run to its end."""
    return subprocess.run(command(name, *arguments), capture_output=True, text=True, timeout=120)


def content(directory: Path) -> tuple[list[bytes], set[bytes]]:
    """Everything the tables are made of, in the order of its keys."""
    episodes = sorted(msgspec.json.encode(row) for row in read_rows(directory, EpisodeRow))
    return episodes, {msgspec.json.encode(row) for row in read_rows(directory, DecisionRow)}


@pytest.fixture(name="whole", scope="session")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    done = run("pipeline", *SMALL, f"output={root}")
    assert done.returncode == 0, done.stderr
    return next(root.iterdir())


def test_the_pipeline_ends_with_tables_figures_and_a_page(whole: Path) -> None:
    for name in ("tables/accuracy.csv", "tables/coverage.csv", "figures/accuracy.png", "figures/coverage.png",
                 "figures/regret.png", "report.html", "thresholds.json", "provenance.json"):  # fmt: skip
        assert (whole / name).stat().st_size > 0, name
    assert json.loads((whole / "status.json").read_text())["state"] == "finished"
    assert "<script src" not in (whole / "report.html").read_text()


def test_the_report_is_printed_again_from_the_records(whole: Path) -> None:
    done = run("report", str(whole))
    assert done.returncode == 0, done.stderr
    assert "rules+gate" in done.stdout


def test_a_killed_pipeline_resumes_to_the_same_content(whole: Path, tmp_path: Path) -> None:
    """Real SIGKILLs at seeded moments, over all stages, until a resume gets through."""
    dice = random.Random(5)
    started = subprocess.Popen(command("pipeline", *SMALL, f"output={tmp_path}"), stderr=subprocess.DEVNULL)
    kills = 0
    while kills < 6:
        time.sleep(dice.uniform(0.9, 2.5))
        if started.poll() is not None:
            break
        os.kill(started.pid, signal.SIGKILL)
        started.wait()
        kills += 1
        made = list(tmp_path.iterdir())
        arguments = (f"resume={made[0]}", "progress=false") if made else (*SMALL, f"output={tmp_path}")
        started = subprocess.Popen(command("pipeline", *arguments), stderr=subprocess.DEVNULL)
    assert started.wait(timeout=120) == 0
    assert kills >= 1
    (directory,) = tmp_path.iterdir()
    assert content(directory) == content(whole)
    for table in sorted((whole / "tables").iterdir()):
        assert (directory / "tables" / table.name).read_bytes() == table.read_bytes(), table.name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no_such_key=1",), "no_such_key: there is no such setting"),
        (("task=nowhere",), "task=nowhere: there is no such choice; choose from demo"),
        (("conformal.alpha=2",), "conformal.alpha is 2"),
        (("seed=abc",), "Expected `int`, got `str`"),
        (("resume=/nowhere",), "not a run directory"),
        (
            ("task=file", "task.path=/nowhere.json", "split=few", "conformal=trajectory"),
            "/nowhere.json: cannot be read",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    done = run("pipeline", *arguments, f"output={tmp_path / 'runs'}")
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_help_names_groups_examples_and_values() -> None:
    done = run("pipeline", "--help")
    assert done.returncode == 0
    for words in ("conformal", "travel_hard", "resume=", "explore_seeds", "group=file"):
        assert words in done.stdout


def test_task_files_round_trip_through_the_script(tmp_path: Path) -> None:
    target = tmp_path / "tasks.json"
    done = run("make_tasks", "task=travel_hard", "task.count=5", f"output={target}")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(target.read_text())) == 5


def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    done = run("pipeline", *SMALL, f"output={blocker / 'runs'}")
    assert done.returncode == 2
    assert "choose a writable folder with output=" in done.stderr
