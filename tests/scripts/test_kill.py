"""Nothing is lost: SIGKILLs at seeded random moments of every stage, full disks, read-only folders, two processes.

Every killed run is resumed until it is done, and then equals an undisturbed one byte for byte.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parent.parent / "scripts"
SMALL = (
    "task.count=70", "split.train=12", "split.pilot=15", "split.calibration=15", "split.test=20",
    "training.epochs=150", "training.patience=150", "progress=false", "conditions=[hidden_pre,hidden_post,rules,mlp]",
    "certified=[rules,mlp]", "world.batch=3", "world.horizon=5",
)  # fmt: skip
SPANS = {"open": 0.2, "explore": 0.15, "train": 0.4, "calibrate": 0.4, "evaluate": 2.0}
"""Stages, and about how long each takes, in seconds: a kill comes at a random moment of it."""
PLAN = ("open", "explore", "explore", "train", "train", *["calibrate"] * 3, *["evaluate"] * 4)
RUNS = 5
Content = dict[str, bytes]


def command(*arguments: str) -> list[str]:
    """The pipeline's command line."""
    return [sys.executable, str(SCRIPTS / "pipeline.py"), *arguments]


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """A file system of its own with so much room."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(folder: Path, option: str) -> None:
    """Change a mounted file system: more room, read-only, writable."""
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The pipeline run to its end."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=180)


def content(directory: Path) -> Content:
    """Tables, thresholds and trained weights of a run, by path."""
    kept = [*directory.glob("tables/*.csv"), *directory.glob("controller/*/*"), directory / "thresholds.json"]
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(kept)}


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line a refused run leaves, after its warnings."""
    lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("warning: ")]
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1, done.stderr
    return lines[0]


class Forker:
    """`forking.py` at work: pipelines that start in milliseconds and can be killed."""

    def __init__(self, first: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "forking.py")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.asks: IO[str] = self.process.stdin
        self.tells: IO[str] = self.process.stdout
        self._ask(first)
        assert self._line() == ["ready"]

    def _ask(self, data: dict[str, Any]) -> None:
        self.asks.write(json.dumps(data) + "\n")
        self.asks.flush()

    def start(self, data: dict[str, Any]) -> int:
        """Start a pipeline; its process id."""
        self._ask(data)
        self.stage = "open"
        kind, pid = self._line()
        assert kind == "child"
        return int(pid)

    def reaches(self, stage: str) -> bool:
        """Wait until the pipeline starts a stage; whether it did, instead of ending."""
        for line in iter(self._line, []):
            self.stage = line[1] if line[0] == "stage" else self.stage
            if line == ["stage", stage]:
                return True
            if line[0] == "end":
                self.status = int(line[1])
                return False
        raise AssertionError("the forking process ended")

    def _line(self) -> list[str]:
        return self.tells.readline().split()

    stage = "open"
    status = 0

    def kill(self, pid: int) -> str:
        """SIGKILL the pipeline; the stage it was in, or `done` if it had ended well before."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.reaches("the end")
        assert self.status in (0, -signal.SIGKILL)
        return self.stage if self.status else "done"


@pytest.fixture(name="config", scope="module")
def _config() -> Callable[[Path], dict[str, Any]]:
    from sim.launch import composed

    def make(output: Path) -> dict[str, Any]:
        return composed(*SMALL, f"output={output}")

    return make


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Content:
    """An undisturbed run."""
    root = tmp_path_factory.mktemp("whole")
    done = run(*SMALL, f"output={root}")
    assert done.returncode == 0, done.stderr
    (directory,) = root.iterdir()
    found = content(directory)
    assert len(found) >= 10
    return found


@pytest.mark.slow
def test_runs_killed_in_every_stage_resume_to_the_same_tables(
    whole: Content, config: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    dice = random.Random(20260820)
    forker = Forker(config(tmp_path / "first"))
    killed: Counter[str] = Counter()
    for number in range(RUNS):
        output = tmp_path / str(number)
        for stage in (*PLAN, "the end"):
            made = list(output.glob("*/config.yaml"))
            pid = forker.start(config(output) | {"resume": str(made[0].parent) if made else None})
            if stage == "open" or forker.reaches(stage):
                time.sleep(dice.uniform(0, SPANS[stage]))
                killed[forker.kill(pid)] += 1
            assert forker.status in (0, -signal.SIGKILL)
        (directory,) = output.iterdir()
        assert content(directory) == whole
    del killed["done"]
    assert all(killed[stage] >= 5 for stage in SPANS if stage != "open"), killed
    assert killed.total() >= 50, killed


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounting a small file system takes root")


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9, 0.99])
def test_a_full_disk_is_one_line_and_more_room_gives_the_same_tables(
    share: float, whole: Content, kilobytes: int, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", int(share * kilobytes)) as disk:
        said = refusal(run(*SMALL, f"output={disk}/runs"))
        assert "No space left on device" in said
        assert str(disk) in said
        remount(disk, "size=64m")
        made = list(disk.glob("runs/*/config.yaml"))
        done = run(
            *((f"resume={made[0].parent}", "progress=false") if made else (*SMALL, f"output={disk}/runs"))
        )
        assert done.returncode == 0, done.stderr
        (directory,) = [path.parent for path in disk.glob("runs/*/config.yaml")]
        assert content(directory) == whole


@pytest.fixture(name="kilobytes", scope="module")
def _kilobytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Room that a whole run takes."""
    root = tmp_path_factory.mktemp("room")
    with small_disk(root, 64_000):
        assert run(*SMALL, f"output={root}").returncode == 0
        used = os.statvfs(root)
        return (used.f_blocks - used.f_bfree) * used.f_frsize // 1024


@pytest.mark.slow
@needs_root
def test_a_read_only_folder_is_refused_and_its_run_unharmed(whole: Content, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64_000) as disk:
        done = run(*SMALL, f"output={disk}")
        assert done.returncode == 0, done.stderr
        (directory,) = disk.iterdir()
        remount(disk, "ro")
        assert "Read-only file system; the run directory must exist and be writable" in (
            refusal(run(f"resume={directory}", "progress=false"))
        )
        assert "Read-only file system; choose a writable folder" in refusal(run(*SMALL, f"output={disk}"))
        assert content(directory) == whole


@pytest.mark.slow
def test_a_second_process_is_refused_and_the_first_goes_on(whole: Content, tmp_path: Path) -> None:
    first = subprocess.Popen(command(*SMALL, f"output={tmp_path}"), stderr=subprocess.DEVNULL)
    while not (made := list(tmp_path.glob("*/episodes.jsonl"))):
        assert first.poll() is None
        time.sleep(0.01)
    directory = made[0].parent
    first.send_signal(signal.SIGSTOP)
    said = refusal(run(f"resume={directory}", "progress=false"))
    status = json.loads((directory / "status.json").read_text())
    first.send_signal(signal.SIGCONT)
    assert "another process is writing this run; wait for it or stop it" in said
    assert (status["state"], status["pid"]) == ("running", first.pid)
    assert first.wait(timeout=120) == 0
    assert content(directory) == whole
