"""`scripts/report.py`: the report of one run, of several side by side, or of every run below a folder.

It only chooses between the functions of `build` and `terminal`; runs are read, never changed, except for the
report written into them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sim.errors import UserError
from sim.records.run_dir import CONFIG, STATUS
from sim.records.sweep_dir import WAITING
from sim.report.build import arm_directories, build_report, compare, report_arms
from sim.report.listing import list_runs
from sim.report.terminal import print_comparison, print_report, print_runs

RUNS = Path("runs")
_HELP = """\
examples:
  report.py                               every run below runs/ with its state and settings; nothing is written
  report.py runs/quickstart-3f2a...       tables, figures and report.html into that run
  report.py runs/ablation-...             a study of several arms: tables across them
  report.py runs/a-... runs/b-...         the two side by side, into runs/comparison
  report.py runs --output sweep-report    every run below runs/, failed ones with their traceback
  report.py --list runs/sweep-...         the cells of a sweep, waiting ones too; nothing is written
"""


def report_command(arguments: Sequence[str]) -> int:
    """Exit status: 0 done, 2 with one line on stderr where the user can mend it."""
    parser = argparse.ArgumentParser(
        "report.py",
        description="Tables, figures and a page from recorded runs.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        help=f"run directories, or a folder of runs; none: list those below {RUNS}/",
    )
    parser.add_argument("--output", type=Path, help="where a comparison goes (default: comparison/)")
    parser.add_argument("--list", action="store_true", help="list the runs with their state and stop")
    chosen = parser.parse_args(arguments)
    try:
        _report(chosen.runs or [RUNS], chosen.output, chosen.list or not chosen.runs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _report(paths: list[Path], output: Path | None, only_list: bool) -> None:
    folders = [path for path in paths if not _is_run(path)]
    for folder in folders:
        print_runs(folder)
    if only_list:
        for path in paths:
            if path not in folders:
                print_runs(path)
        return
    runs = [run for path in paths for run in ([path] if path not in folders else _below(path))]
    if len(paths) == 1 and not folders:
        _report_one(paths[0])
        return
    target = output or (paths[0] if folders else paths[0].parent) / "comparison"
    compare(runs, target)
    print_comparison(target)


def _report_one(path: Path) -> None:
    if arm_directories(path):
        report_arms(path)
        print_comparison(path)
    else:
        build_report(path)
        print_report(path)


def _is_run(path: Path) -> bool:
    return (path / CONFIG).exists() or (path / STATUS).exists()


def _below(folder: Path) -> list[Path]:
    """The runs below a folder; of a study of several arms the arms, not the study."""
    runs = [listing.directory for listing in list_runs(folder) if listing.status.state != WAITING]
    return [run for run in runs if not arm_directories(run)]
