"""The scripts as a user runs them: real processes, exit statuses, one-line errors, real SIGKILLs.

Mistakes are tried in one process, through the very files a user starts, because a start takes seconds.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from sim.records.rows import BranchRow, DecisionRow, EpisodeRow, VoteRow
from sim.records.run_dir import read_config
from sim.records.store import read_rows
from sim.tasks import load_tasks

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
SMALL = (
    "task.count=60", "split.train=8", "split.pilot=12", "split.calibration=12", "split.test=15",
    "training.epochs=2", "progress=false", "conditions=[hidden_post,rules,mlp]", "certified=[rules,mlp]",
    "world.batch=5", "world.horizon=5",
)  # fmt: skip


def command(name: str, *arguments: str) -> list[str]:
    """A script's command line."""
    return [sys.executable, str(SCRIPTS / f"{name}.py"), *arguments]


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script run to its end in a process of its own."""
    return subprocess.run(command(name, *arguments), capture_output=True, text=True, timeout=120)


def entered(name: str, *arguments: str) -> tuple[int, str]:
    """A script run to its end in this process: exit status and what it said on stderr."""
    kept, said = sys.argv, io.StringIO()
    sys.argv = command(name, *arguments)[1:]
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0), said.getvalue()
    finally:
        sys.argv = kept
    return 0, said.getvalue()


def content(directory: Path) -> dict[str, object]:
    """Everything that tables are made of and everything that was learned, whatever the order of writing."""
    kinds = (EpisodeRow, DecisionRow, BranchRow, VoteRow)
    rows = {kind.__name__: {msgspec.json.encode(row) for row in read_rows(directory, kind)} for kind in kinds}
    files = [*directory.glob("controller/*/*"), *directory.glob("tables/*"), directory / "thresholds.json"]
    return {**rows, **{str(path.relative_to(directory)): path.read_bytes() for path in files}}


@pytest.fixture(name="whole", scope="session")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    done = run("pipeline", *SMALL, f"output={root}")
    assert done.returncode == 0, done.stderr
    (directory,) = root.iterdir()
    return directory


def test_the_pipeline_ends_with_tables_figures_and_a_page(whole: Path) -> None:
    for name in ("tables/accuracy.csv", "tables/coverage.csv", "figures/accuracy.png", "figures/coverage.png",
                 "figures/regret.png", "report.html", "thresholds.json", "provenance.json"):  # fmt: skip
        assert (whole / name).stat().st_size > 0, name
    assert json.loads((whole / "status.json").read_text())["state"] == "finished"
    assert "<script src" not in (whole / "report.html").read_text()


def test_the_report_is_made_again_from_the_records(whole: Path) -> None:
    before = content(whole)
    done = run("report", str(whole))
    assert done.returncode == 0, done.stderr
    assert "rules+gate" in done.stdout
    assert content(whole) == before


def _explored(directory: Path) -> bool:
    """Some discussions were explored, not all."""
    episodes = directory / "episodes.jsonl"
    return episodes.exists() and episodes.stat().st_size > 0


def _trained(directory: Path) -> bool:
    """Weights are there, so calibration has begun or is about to."""
    return (directory / "controller" / "mlp").is_dir()


def _evaluating(directory: Path) -> bool:
    """Some discussions were evaluated."""
    return b'"stage":"evaluate"' in (directory / "episodes.jsonl").read_bytes()


def killed(arguments: tuple[str, ...], root: Path, when: Callable[[Path], bool]) -> Path:
    """A pipeline killed as soon as something is seen in its run directory."""
    process = subprocess.Popen(command("pipeline", *arguments), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < deadline:
        if any(when(made) for made in root.glob("*") if (made / "status.json").exists()):
            os.kill(process.pid, signal.SIGKILL)
            break
        time.sleep(0.002)
    assert process.wait() == -signal.SIGKILL, "it ended before it could be killed"
    (directory,) = root.iterdir()
    return directory


def test_a_pipeline_killed_in_three_stages_resumes_to_the_same_content(whole: Path, tmp_path: Path) -> None:
    """Real SIGKILLs of real processes; the order of rows and the batches differ, the tables do not."""
    directory = killed((*SMALL, f"output={tmp_path}"), tmp_path, _explored)
    again = (f"resume={directory}", "progress=false")
    killed(again, tmp_path, _trained)
    killed(again, tmp_path, _evaluating)
    assert not (directory / "report.html").exists()
    done = run("pipeline", *again)
    assert done.returncode == 0, done.stderr
    assert content(directory) == content(whole)
    assert json.loads((directory / "status.json").read_text())["state"] == "finished"


def test_stages_run_one_by_one_give_what_the_pipeline_gives(whole: Path, tmp_path: Path) -> None:
    """In other batches too: `world.batch` bounds memory and changes no result."""
    other = tuple("world.batch=64" if value.startswith("world.batch") else value for value in SMALL)
    status, said = entered("explore", *other, f"output={tmp_path}")
    assert status == 0, said
    (directory,) = tmp_path.iterdir()
    for name in ("train", "calibrate", "evaluate"):
        status, said = entered(name, f"resume={directory}", "progress=false")
        assert status == 0, said
    piped = {name: value for name, value in content(whole).items() if not name.startswith("tables/")}
    assert content(directory) == piped


def test_a_finished_run_resumed_does_nothing_again(whole: Path) -> None:
    rows = {path: path.read_bytes() for path in whole.glob("*.jsonl")}
    status, said = entered("evaluate", f"resume={whole}", "progress=false")
    assert status == 0, said
    assert {path: path.read_bytes() for path in whole.glob("*.jsonl")} == rows


MISTAKES = [
    (("no_such_key=1",), "no_such_key: there is no such setting"),
    (("conformal.alpha=2",), "conformal.alpha is 2"),
    (("conformal.aplha=0.2",), "did you mean conformal.alpha?"),
    (("contrasts={x: [rules, random]}",), "contrasts: has no such entry yet; add it with ++contrasts={"),
    (("task=nowhere",), "task=nowhere: there is no such choice; choose from demo"),
    (("seed=abc",), "Expected `int`, got `str`"),
    (("menu.without=[chat]",), "menu.without names 'chat'"),
    (("objective.cost=0.5",), "objective weights sum to 1.45"),
    (("split.test=0",), "split.test is 0"),
    (("resume=/nowhere",), "not a run directory"),
    (("task=file",), "task.path: it has no default; give task.path=<value>"),
    (
        ("task=file", "task.path=/nowhere.json", "split=few", "conformal=trajectory"),
        "/nowhere.json: cannot be read",
    ),
    (("experiment=captain_adaptive",), "an experiment of scripts/captain.py; run it there"),
    (("resume",), "'resume' sets nothing; give key=value"),
    (("--frobnicate",), "--frobnicate is no flag"),
    (("conditions=[rules",), ""),
    (("=1",), "'=1' sets nothing"),
    (("~seed",), "seed"),
    (
        ("engine=vllm_inprocess", "engine.arguments={enforce_eager: true}"),
        "engine.arguments: is a setting of engine=vllm_inprocess only; where that is chosen, add an entry with ++",
    ),
    (("engine.urls=[http://x/v1]",), "engine.urls: is a setting of engine=openai_server only"),
    (("++arms={a:{task.count:2}}",), ""),
    (("++contrasts={a:[rules,rules]}",), "contrasts.a compares 'rules' with itself; name two conditions"),
    (("++arms={a: 3}",), "arms.a is 3; give what differs"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_a_mistake_is_one_line_and_status_2(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    status, said = entered("pipeline", *arguments, f"output={tmp_path / 'runs'}")
    assert status == 2, said
    assert words in said
    assert said.startswith("error: ")
    assert len(said.strip().splitlines()) == 1, said
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_makes_no_run_where_resume_names_none(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    status, said = entered("pipeline", "-m", f"resume={missing}", f"output={tmp_path / 'runs'}")
    assert status == 2
    assert f"{missing}: not a run directory" in said
    assert not missing.exists()


@pytest.mark.parametrize(("arguments", "words"), MISTAKES[:2])
def test_a_mistake_ends_a_real_process_with_status_2(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    done = run("pipeline", *arguments, f"output={tmp_path / 'runs'}")
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "override",
    [
        "conformal.alpha=0.2",
        "task=demo",
        "seed=1",
        "world.horizon=3",
        "experiment=method9",
        "controller=greedy",
    ],
)
def test_a_run_is_not_resumed_under_other_overrides(override: str, whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    status, said = entered("pipeline", f"resume={whole}", override)
    assert status == 2, said
    assert "was run with" in said
    assert "resume without that override, or start a new run" in said
    assert len(said.strip().splitlines()) == 1
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_a_run_is_resumed_under_the_overrides_it_was_started_with(whole: Path) -> None:
    status, said = entered("evaluate", f"resume={whole}", *SMALL)
    assert status == 0, said


def test_help_names_groups_examples_and_values() -> None:
    done = run("pipeline", "--help")
    assert done.returncode == 0
    for words in ("conformal", "travel_hard", "resume=", "explore_seeds", "group=file"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("script", "purpose"), [("calibrate", "Calibrate the gate of"), ("bench", "The performance table")]
)
def test_help_says_what_the_script_is_for(script: str, purpose: str) -> None:
    done = run(script, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"{script}.py: {purpose}")


def test_help_may_be_cut_short_by_its_reader() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            command("pipeline", "--help"), stdout=closed, stderr=subprocess.PIPE, timeout=120
        )
    assert done.stderr == b""


def test_a_replay_takes_a_controller_file_on_top(whole: Path, tmp_path: Path) -> None:
    own = ("controller=rules", "conditions=[hidden_post,rules]")
    status, said = entered("pipeline", f"replay={whole}", *own, f"output={tmp_path}")
    assert status == 0, said
    (again,) = tmp_path.iterdir()
    assert read_config(again)["certified"] == ["rules"]


def test_task_files_round_trip_through_the_script(tmp_path: Path) -> None:
    target, again = tmp_path / "tasks.json", tmp_path / "again.json"
    status, said = entered("make_tasks", "task=travel_hard", "task.count=5", f"output={target}")
    assert status == 0, said
    made = load_tasks(target)
    assert len(made) == 5
    status, said = entered("make_tasks", "task=file", f"task.path={target}", f"output={again}")
    assert status == 0, said
    assert load_tasks(again) == made
    status, said = entered("make_tasks", "task=demo", f"output={tmp_path / 'tasks.txt'}")
    assert (status, "name the task file to write" in said) == (2, True)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    status, said = entered("pipeline", *SMALL, f"output={blocker / 'runs'}")
    assert status == 2
    assert "choose a writable folder with output=" in said
    assert blocker.read_text() == "in the way"
