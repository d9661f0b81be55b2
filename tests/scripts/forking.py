"""A process that has run a pipeline, and then forks a child for every other: a start in milliseconds, so that many
kills fit into a test. Run as a script; speaks lines on stdin and stdout.

    in   a resolved configuration; the first is run in this process, to its end
    out  ready, then for every other: child PID, stage NAME..., end STATUS
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sim.report.terminal
from sim.studies import verbs

STAGES = ("explore", "train", "calibrate", "evaluate", "report")


class Announcer:
    """Tells of each stage's start instead of drawing it."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """One line, then nothing."""
        say(f"stage {name}")
        yield lambda n: None


def say(line: str) -> None:
    """One line to the parent, in one piece."""
    os.write(sys.__stdout__.fileno() if sys.__stdout__ else 1, f"{line}\n".encode())


def pipeline(asked: dict[str, Any]) -> None:
    """The child's whole life."""
    say(f"child {os.getpid()}")
    setattr(verbs, "Reporter", Announcer)  # noqa: B010 - a name that verbs imports, not exports
    try:
        verbs.run_stages(asked, {}, STAGES)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Fork until stdin ends."""
    sim.report.terminal.print_report = lambda *_: None
    verbs.run_stages(json.loads(sys.stdin.readline()), {}, STAGES)
    say("ready")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            pipeline(json.loads(line))
        _, status = os.waitpid(child, 0)
        say(f"end {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
