"""The report on disk: complete, reproducible, atomic, several runs in one, and said plainly in a terminal."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from conformal import acceptance_thresholds, certify
from sim.errors import UserError
from sim.report.build import build_report, compare, differing_settings, run_names
from sim.report.command import report_command
from sim.report.listing import list_runs
from sim.report.source import read_certificates, read_run
from sim.report.terminal import print_report, print_runs


def files_of(directory: Path) -> dict[str, bytes]:
    made = [*directory.glob("tables/*"), *directory.glob("figures/*"), directory / "report.html"]
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in made}


def text_of(show: Callable[[Console], None], width: int = 100) -> str:
    console = Console(width=width, record=True, quiet=False, file=None, color_system=None)
    with console.capture() as captured:
        show(console)
    return captured.get()


def test_a_report_has_tables_figures_and_a_page(worked_example: Any) -> None:
    directory = worked_example.write(status={"state": "finished", "verb": "evaluate"})
    paths = build_report(directory)
    assert set(paths.figures) == {"accuracy", "regret"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths.figures.values())
    assert pd.read_csv(paths.tables["accuracy"])["condition"].tolist()[-1] == "rules+gate"
    assert paths.page.read_text().startswith("<!doctype html>")
    assert not list(directory.rglob("*.partial"))


def test_equal_records_give_equal_files(worked_example: Any, tmp_path: Path) -> None:
    """Whatever the order in which rows were written, and whether or not the report was built before."""
    shuffled = random.Random(3)
    first = build_report(worked_example.write()).directory
    worked_example.directory = tmp_path / "again" / "worked"
    second = worked_example.write(order=lambda rows: shuffled.sample(rows, len(rows)))
    assert files_of(build_report(second).directory) == files_of(first)
    assert files_of(build_report(first).directory) == files_of(second)


def test_a_run_that_reports_itself_at_its_end_has_the_page_of_a_finished_one(worked_example: Any) -> None:
    status = {"state": "running", "pid": os.getpid(), "host": socket.gethostname()}
    running = files_of(build_report(worked_example.write(status=status)).directory)
    finished = files_of(build_report(worked_example.write(status={"state": "finished"})).directory)
    assert running == finished


def test_a_torn_last_line_changes_nothing(worked_example: Any) -> None:
    directory = worked_example.write()
    whole = files_of(build_report(directory).directory)
    with (directory / "episodes.jsonl").open("ab") as file:
        file.write(b'{"stage":"evaluate","cond')
    with pytest.warns(UserWarning, match="torn last line"):
        again = build_report(directory).directory
    assert files_of(again) == whole


def test_learning_curve_is_drawn_from_the_model_card(worked_example: Any) -> None:
    worked_example.card("mlp", ["x", "y"], ["z"])
    directory = worked_example.write()
    assert "learning_curve" in build_report(directory).figures


def test_what_is_no_model_card_is_refused(worked_example: Any) -> None:
    directory = worked_example.write()
    (directory / "controller" / "mlp").mkdir(parents=True)
    (directory / "controller" / "mlp" / "mlp.json").write_text('{"curve": []}')
    with pytest.raises(UserError, match=r"mlp\.json: has no 'training', so it is no model card"):
        build_report(directory)


def test_an_empty_run_gives_an_empty_report(run_writer: Callable[[str], Any]) -> None:
    directory = run_writer("empty").write()
    paths = build_report(directory)
    assert paths.figures == {}
    assert "no runs" not in text_of(lambda console: print_report(directory, console))


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: is not a directory; give a run directory"):
        build_report(tmp_path / "nowhere")


@pytest.mark.parametrize("content", ["[1]", "{", '{"rules": 3}'])
def test_broken_thresholds_name_file_and_what_would_be_right(tmp_path: Path, content: str) -> None:
    path = tmp_path / "thresholds.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"thresholds\.json.*(expected|restore|give)"):
        read_certificates(path)


def test_certificates_are_read_from_the_run_that_calibrated(worked_example: Any, tmp_path: Path) -> None:
    scores, reached = np.full((9, 2), 0.2), np.ones((9, 2), bool)
    eta = acceptance_thresholds(scores, reached, "0.1", units=[f"p{i}" for i in range(9)])
    found = certify(scores, reached, eta, units=[f"c{i}" for i in range(9)])
    calibrated = tmp_path / "calibrated"
    worked_example.directory, own = calibrated, worked_example.directory
    worked_example.write(thresholds={"rules": found})
    worked_example.directory = own
    run = read_run(worked_example.write(config=f"from_run: {calibrated}\n"))
    assert run.certificates == {"rules+gate": found}


def test_compare_puts_runs_side_by_side(worked_example: Any, tmp_path: Path) -> None:
    first = worked_example.write(status={"state": "finished"}, config="seed: 0\nmodel: {name: small}\n")
    worked_example.directory = tmp_path / "other"
    worked_example.rows = [r for r in worked_example.rows if getattr(r, "condition", "") != "rules+gate"]
    second = worked_example.write(status={"state": "finished"}, config="seed: 1\nmodel: {name: small}\n")
    paths = compare([first, second], tmp_path / "comparison")
    wide = pd.read_csv(paths.tables["task_accuracy"]).set_index("condition").T
    assert list(wide.index) == ["worked", "other"]
    assert wide["rules"].tolist() == [1.0, 1.0]
    assert wide["rules+gate"].isna().tolist() == [False, True]
    summary = pd.read_csv(paths.tables["summary"]).set_index("condition")
    assert summary["models_at_or_above_full_info"].to_dict()["rules"] == 2
    assert summary["models_at_or_above_full_info"].to_dict()["hidden_pre"] == 0
    cells = pd.read_csv(paths.tables["cells"]).set_index("run")
    assert cells["seed"].to_dict() == {"worked": 0, "other": 1}
    assert "model.name" not in cells.columns


def test_failed_and_unreadable_cells_are_listed(worked_example: Any, run_writer: Any, tmp_path: Path) -> None:
    good = worked_example.write(status={"state": "finished"})
    trace = "Traceback (most recent call last):\n  ...\nEngineDead: 503"
    bad = run_writer("bad").write(status={"state": "failed", "error": "EngineDead: 503", "traceback": trace})
    torn = run_writer("torn").write()
    (torn / "episodes.jsonl").write_text('{"stage": 3}\n')
    cells = pd.read_csv(compare([good, bad, torn], tmp_path / "out").tables["cells"]).set_index("run")
    assert cells["state"].to_dict() == {"worked": "finished", "bad": "failed", "torn": "unreadable"}
    assert cells.loc["bad", "traceback"] == trace
    assert "episodes.jsonl:1" in str(cells.loc["torn", "error"])


def test_run_names_are_short_and_unique() -> None:
    assert run_names([Path("/r/a"), Path("/r/b")]) == ["a", "b"]
    assert run_names([Path("/r/x/0"), Path("/r/y/0")]) == ["x/0", "y/0"]


def test_differing_settings_are_flat_and_only_those() -> None:
    configs = {
        "a": {"seed": 0, "model": {"name": "s", "size": 1}},
        "b": {"seed": 0, "model": {"name": "t", "size": 1}},
    }
    assert differing_settings(configs) == {"a": {"model.name": "s"}, "b": {"model.name": "t"}}


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_shows_accuracy_and_certificates(worked_example: Any, width: int) -> None:
    directory = worked_example.write()
    build_report(directory)
    text = text_of(lambda console: print_report(directory, console), width)
    assert "0.50 [" in next(line for line in text.splitlines() if line.startswith("rules+gate"))
    assert "certificate missing" in text
    assert "1 discussions failed" in text
    assert "only 2 tasks" in text
    assert ("vote accuracy" in text) == (width == 120)


def test_terminal_needs_a_report(worked_example: Any) -> None:
    directory = worked_example.write()
    with pytest.raises(UserError, match=r"accuracy\.csv: is missing; build the report first"):
        print_report(directory)


def test_runs_are_listed_with_their_state(worked_example: Any, run_writer: Any, tmp_path: Path) -> None:
    worked_example.write(status={"state": "finished", "verb": "evaluate"})
    run_writer("sweep/0").write(status={"state": "failed", "verb": "train", "error": "[red]boom[/red]"})
    run_writer("sweep/1").write(config="seed: 1\n")
    found = {item.directory.name: (item.status.state, item.episodes) for item in list_runs(tmp_path)}
    assert found == {"0": ("failed", 0), "1": ("unknown", 0), "worked": ("finished", 10)}
    text = text_of(lambda console: print_runs(tmp_path, console))
    assert "[red]boom[/red]" in text
    with pytest.raises(UserError, match="is not a directory"):
        list_runs(tmp_path / "none")


def test_command_reports_one_run(worked_example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    directory = worked_example.write(config="seed: 0\n")
    assert report_command([str(directory)]) == 0
    assert "rules+gate" in capsys.readouterr().out
    assert (directory / "report.html").exists()


def test_command_collects_a_folder(
    worked_example: Any, run_writer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worked_example.directory = tmp_path / "sweep" / "0"
    worked_example.write(status={"state": "finished"})
    trace = "Traceback (most recent call last):\n  deep inside\nBoom: by design"
    run_writer("sweep/1").write(status={"state": "failed", "error": "Boom: by design", "traceback": trace})
    assert report_command([str(tmp_path / "sweep")]) == 0
    shown = capsys.readouterr().out
    assert "deep inside" in shown
    assert "1 failed" in shown
    assert (tmp_path / "sweep" / "comparison" / "report.html").exists()
    assert report_command(["--list", str(tmp_path / "sweep")]) == 0
    assert "Boom: by design" in capsys.readouterr().out


def test_command_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_command([str(tmp_path / "nowhere")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert report_command([str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("record", "emptied"), [("decisions", "decisions"), ("branches", "decisions"), ("branches", "branches")]
)
def test_rows_that_were_lost_since_are_missed(
    run_writer: Callable[[str], Any], record: str, emptied: str
) -> None:
    run = run_writer("lost")
    run.task("a")
    run.episode("rules", "a", 0, [0, 0], rounds=1, path="route@0", branches_evaluated=2)
    run.decision("rules", "a", 1, [0.4, 0.5])
    for path in ("", "route@0", "seek_evidence@1"):
        run.branch("a", path)
    directory = run.write(config=f"record: {record}\n")
    build_report(directory)
    (directory / f"{emptied}.jsonl").write_text("")
    with pytest.raises(UserError, match=rf"{emptied}\.jsonl: holds (0 of the 1 decisions|no branch)"):
        build_report(directory)
