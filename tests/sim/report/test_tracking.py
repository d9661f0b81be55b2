"""Tracking with the real wandb, offline: what was written is read back; what goes wrong costs no job."""

from __future__ import annotations

import csv
import hashlib
import importlib
import json
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.config import LoggerConfig
from sim.errors import UserError
from sim.launch import composed
from sim.records.run_dir import read_status
from sim.records.sweep_dir import Sweep
from sim.report.track_command import track_command
from sim.report.tracking import after_run, described, public, run_id, track
from sim.studies.verbs import run_stages

OFFLINE = LoggerConfig("wandb")
SECRETS = {"WANDB_API_KEY": "0123456789abcdef" * 3, "OPENAI_API_KEY": "sk-never-sent", "LAB_NOTES": "hunter2"}
CONFIG = yaml.safe_dump(
    {"name": "worked", "seed": 3, "output": "/home/somebody/runs", "engine": {"urls": []}}
)
ALL = ("explore", "train", "calibrate", "evaluate", "report")
BLOCK, HEAD = 32768, 7


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: protocol buffers in a LevelDB log behind a head of seven bytes."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    data, at, whole = path.read_bytes(), HEAD, b""
    assert data[:4] == b":W&B"
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEAD])
        whole += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (1, 4):
            record = messages.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


class Sent:
    """What an offline run holds: run record, rows by step, summary by key, files."""

    def __init__(self, directory: Path) -> None:
        (self.folder,) = (directory / "wandb").glob("offline-run-*")
        (path,) = self.folder.glob("*.wandb")
        found = list(records(path))
        (self.run,) = [record.run for record in found if record.WhichOneof("record_type") == "run"]
        self.kinds = {record.WhichOneof("record_type") for record in found}
        self.rows = [values(record.history.item) for record in found if record.HasField("history")]
        updates = [values(record.summary.update) for record in found if record.HasField("summary")]
        self.summary = {key: value for update in updates for key, value in update.items()}
        self.config = values(self.run.config.update)


def values(items: Any) -> dict[str, Any]:
    """Key -> value; nested keys joined by a dot."""
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def table(directory: Path, name: str) -> list[dict[str, str]]:
    """The rows of a table of a run."""
    with (directory / "tables" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(name="secrets", scope="module", autouse=True)
def _secrets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(name="job", scope="module")
def _job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run that asked to be tracked."""
    folder = tmp_path_factory.mktemp("runs")
    return run_stages(
        composed("size=smallest", "logger=wandb", f"output={folder}", "progress=false"), {}, ALL
    )


@pytest.fixture(name="sent", scope="module")
def _sent(job: Path) -> Sent:
    return Sent(job)


@pytest.fixture(name="finished")
def _finished(worked_example: Any) -> Path:
    """A run made by hand, finished and not tracked yet."""
    directory: Path = worked_example.write(status={"state": "finished", "verb": "evaluate"}, config=CONFIG)
    return directory


def test_a_tracked_run_has_its_own_id_configuration_and_provenance(job: Path, sent: Sent) -> None:
    assert sent.run.run_id == run_id(job)
    assert (sent.run.project, sent.run.display_name) == ("consilience", job.name)
    config = {key: value for key, value in sent.config.items() if key != "_wandb"}
    assert config == described(job)
    assert config["split"]["train"] == 6
    assert config["provenance"]["packages"]["numpy"]
    assert "command" not in config["provenance"]


def test_metrics_by_round_are_those_of_the_tables(job: Path, sent: Sent) -> None:
    by_round = {row["round"]: row for row in sent.rows if "round" in row}
    assert sorted(by_round) == [1, 2, 3]
    assert all(row["_step"] == number for number, row in by_round.items())
    covered = [row for row in table(job, "coverage") if row["bound"] == "threshold" and row["coverage"]]
    assert covered
    for row in covered:
        assert by_round[int(row["round"])][f"{row['condition']}/coverage"] == float(row["coverage"])
    for row in table(job, "regret_by_round"):
        assert by_round[int(row["round"])][f"{row['condition']}/mean_regret"] == float(row["mean_regret"])


def test_summary_tables_and_figures_are_there(job: Path, sent: Sent) -> None:
    for row in table(job, "accuracy"):
        assert sent.summary[f"{row['condition']}/task_accuracy"] == float(row["task_accuracy"])
    written = {path.stem for path in (job / "tables").glob("*.csv") if path.stat().st_size > 1}
    kept = sent.folder / "files" / "media"
    assert {path.name.rsplit("_", 2)[0] for path in (kept / "table" / "tables").iterdir()} == written
    images = {hashlib.sha256(path.read_bytes()).digest() for path in (kept / "images" / "figures").iterdir()}
    figures = {hashlib.sha256(path.read_bytes()).digest() for path in (job / "figures").glob("*.png")}
    assert figures
    assert images == figures


def test_nothing_secret_or_of_the_machine_is_written(job: Path, sent: Sent) -> None:
    files = [path for path in (job / "wandb").rglob("*") if path.is_file()]
    content = b"".join(path.read_bytes() for path in files)
    assert [value for value in SECRETS.values() if value.encode() in content] == []
    (record,) = sent.folder.glob("*.wandb")
    assert str(job.parent).encode() not in record.read_bytes()
    assert (sent.run.host, sent.run.git.remote_url) == ("-", "")
    assert sent.kinds.isdisjoint({"environment", "stats", "output", "output_raw"})
    assert not {"wandb-metadata.json", "requirements.txt"} & {path.name for path in files}


def test_an_unchanged_run_is_not_sent_again_and_a_changed_one_takes_its_place(finished: Path) -> None:
    name = track(finished, OFFLINE)
    (folder,) = (finished / "wandb").glob("offline-run-*")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert track(finished, OFFLINE) == name
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    accuracy = finished / "tables" / "accuracy.csv"
    accuracy.write_text(accuracy.read_text().replace("hidden_pre", "hidden_before"))
    assert track(finished, OFFLINE) == name
    assert "hidden_before/task_accuracy" in Sent(finished).summary


def test_every_cell_of_a_sweep_is_a_run_of_its_group(finished: Path, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep-1"
    for name in ("a-000", "a-001"):
        shutil.copytree(finished, sweep / name)
    cells = tuple((str(sweep / name), ()) for name in ("a-000", "a-001"))
    (sweep / "sweep.json").write_bytes(msgspec.json.encode(Sweep(("pipeline.py", "-m"), "serial", {}, cells)))
    assert track_command([str(sweep), "--project", "mine"]) == 0
    runs = [Sent(sweep / name).run for name in ("a-000", "a-001")]
    assert [run.run_group for run in runs] == ["sweep-1", "sweep-1"]
    assert [run.project for run in runs] == ["mine", "mine"]
    assert len({run.run_id for run in runs}) == 2


def test_ids_depend_on_the_runs_name_and_sweep_alone(tmp_path: Path) -> None:
    for place in ("x/runs/a", "y/runs/a", "x/sweep/a", "x/runs/b"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "x" / "sweep" / "sweep.json").touch()
    here, there, swept, other = (
        run_id(tmp_path / place) for place in ("x/runs/a", "y/runs/a", "x/sweep/a", "x/runs/b")
    )
    assert here == there
    assert len({here, swept, other}) == 3


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("raise ImportError('wandb is broken')", "wandb is broken"),
        ("import time; time.sleep(60)", "longer than logger.timeout_s = 2 seconds"),
    ],
    ids=["broken", "hanging"],
)
def test_a_broken_wandb_fails_no_job_and_takes_no_longer_than_allowed(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, reason: str
) -> None:
    (tmp_path / "broken").mkdir()
    (finished / "tables").mkdir()
    (tmp_path / "broken" / "wandb.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path / "broken")
    root = Path(__file__).resolve().parents[3]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'broken'}:{root}")
    track_once = LoggerConfig("wandb", timeout_s=2.0 if "longer" in reason else 30.0)
    started = time.monotonic()
    with pytest.warns(
        UserWarning, match=f"not tracked with wandb: .*{reason}.*try again with scripts/track.py"
    ):
        after_run(finished, track_once)
    assert time.monotonic() - started < track_once.timeout_s + 5
    assert read_status(finished)["state"] == "finished"
    assert not (finished / "tracking.json").exists()


def test_a_server_that_is_not_there_fails_no_job(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with pytest.warns(UserWarning, match="not tracked") as caught:
        after_run(finished, LoggerConfig("wandb", mode="online", timeout_s=4.0))
    assert SECRETS["WANDB_API_KEY"] not in str(caught[0].message)
    assert read_status(finished)["state"] == "finished"


def test_runs_that_are_not_finished_are_refused_in_one_line(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished / "status.json").write_text('{"state": "failed", "verb": "evaluate"}')
    with pytest.raises(UserError, match="is not finished"):
        track(finished, OFFLINE)
    assert track_command([str(finished)]) == 1
    (tmp_path / "empty").mkdir()
    assert track_command([str(tmp_path / "empty")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[1].endswith("holds no finished run; give a run directory, or a folder of finished runs")


def test_secrets_in_a_configuration_are_left_out() -> None:
    config = {
        "api_key": "x", "engine": {"urls": ["https://user:pass@host/v1"], "key_variable": "MY_KEY", "token": "x"},
        "world": {"max_tokens": 96}, "headers": [{"Authorization": "x"}, {"password": "x", "user": "me"}],
    }  # fmt: skip
    assert public(config) == {
        "engine": {"urls": ["https://host/v1"], "key_variable": "MY_KEY"},
        "world": {"max_tokens": 96}, "headers": [{}, {"user": "me"}],
    }  # fmt: skip


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("abc/ .", max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abcdef", max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=30)
@given(PLAIN)
def test_what_holds_no_secret_is_left_as_it_is(content: Any) -> None:
    assert public(content) == content
