"""Every committed experiment at its smallest size: the files are found on disk, so that none can be forgotten."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from controllers.mlp import load
from sim.config import parse
from sim.engines.protocol import ChatRequest, ChooseRequest
from sim.engines.scripted import SCRIPTED, ScriptedEngine
from sim.launch import CONF, composed
from sim.records.rows import EpisodeRow
from sim.records.run_dir import read_config, read_status
from sim.records.store import read_rows
from sim.report.build import arm_directories
from sim.report.command import report_command
from sim.studies.arms import arm_configs
from sim.studies.intervals import FEW_TASKS
from sim.studies.verbs import run_stages
from sim.tasks import generate_travel, write_tasks

STAGES = ("explore", "train", "calibrate", "evaluate", "report")
FILES = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
STUDIES = [name for name in FILES if not name.startswith("captain_")]
"""What scripts/pipeline.py runs; tests/sim/captain/test_captain_study.py runs those of scripts/captain.py."""
DOCS = CONF.parent / "docs" / "experiments.md"
MOST_ARMS = 3
SMALLEST = ("size=smallest", "world.horizon=2", "progress=false")


def message(request: ChatRequest) -> str:
    """What a model might say to this prompt; where the reply is bound to a schema, an answer in its form."""
    if request.schema is None:
        return f"Point {request.key % 97}: the hotel is far from gate {request.key % 13}."
    fields: Any = request.schema["properties"]
    return json.dumps({name: _value(field, request.key) for name, field in fields.items()})


def _value(field: dict[str, Any], key: int) -> object:
    if "enum" in field:
        return field["enum"][key % len(field["enum"])]
    return 0.7 if field["type"] == "number" else "It fits best."


def weights(request: ChooseRequest) -> tuple[float, ...]:
    """Probabilities that depend on the prompt."""
    ranks = [1 + (len(request.turns[-1].content) + i) % 5 for i in range(len(request.labels))]
    return tuple(rank / sum(ranks) for rank in ranks)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted engine in the place of every model."""
    found = msgspec.structs.replace(SCRIPTED, alternation=False)
    monkeypatch.setattr(
        "sim.studies.language.make_engine", lambda *_: ScriptedEngine(message, weights, found)
    )


@pytest.fixture(autouse=True)
def _small_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure is drawn, but small: most of the time of a small report is spent on pixels."""
    monkeypatch.setattr("sim.report.figures._DPI", 20)


def documented() -> list[list[str]]:
    """Every command of docs/experiments.md that runs a study, as the words after the script's name."""
    text = DOCS.read_text(encoding="utf-8")
    found = re.findall(r"^python scripts/(?:pipeline|explore)\.py (.*)$", text, flags=re.MULTILINE)
    found += re.findall(r"`(?:pipeline|explore)\.py (.*?)`", text)
    return [shlex.split(command.replace("URL", "http://127.0.0.1:9/v1")) for command in found]


COMMANDS = documented()


Configure = Callable[..., dict[str, Any]]


@pytest.fixture(name="configure")
def _configure(tmp_path: Path) -> Configure:
    """The configuration of an experiment in its smallest form; a benchmark that must be fetched is replaced by
    generated tasks in a file of its form."""

    def make(name: str, *overrides: str) -> dict[str, Any]:
        words = [f"experiment={name}", *SMALLEST, f"output={tmp_path / 'runs'}", *overrides]
        text = (CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
        path = tmp_path / "tasks.json"
        write_tasks(path, generate_travel("easy", 24, seed=3, n_agents=4, n_options=3, n_shared=4))
        if "override /task: hiddenbench" in text and not any(word.startswith("task=") for word in overrides):
            words += ["task=file", f"task.path={path}"]
        if "path: ???" in text:
            words.append(f"arms.hiddenbench.task.path={path}")
        return composed(*words)

    return make


def check(directory: Path) -> None:
    """Every run of a study finished, held all its conditions without a failure and tabulated its contrasts."""
    assert read_status(directory)["state"] == "finished"
    for run in arm_directories(directory) or [directory]:
        assert read_status(run)["state"] == "finished"
        config, episodes = read_config(run), read_rows(run, EpisodeRow)
        assert not [row.error for row in episodes if row.error]
        held = {row.condition.partition("#")[0] for row in episodes if row.stage == "evaluate"}
        assert held == {*config["conditions"], *(f"{name}+gate" for name in config["certified"])}
        if config["contrasts"]:
            tabulated = pd.read_csv(run / "tables" / "contrasts.csv")
            assert tabulated["contrast"].tolist() == list(config["contrasts"])
            warned = tabulated["note"].astype(str).str.contains("only .* tasks")
            assert (warned == (tabulated["n_tasks"] < FEW_TASKS)).all()
        assert (run / "report.html").stat().st_size > 0
        for folder in (run / "controller").glob("*"):
            card = load(folder).card
            assert len(card.curve) > 0
            assert card.statistics.decisions > 0


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.usefixtures("scripted")
def test_every_experiment_runs(name: str, configure: Configure) -> None:
    """Of a study of many arms, which differ in a value or a model, two are held here and all in the slow suite."""
    data = configure(name)
    few = dict(list(data["arms"].items())[:2])
    check(run_stages(data if len(data["arms"]) <= MOST_ARMS else data | {"arms": few}, {}, STAGES))


def test_every_table_is_made_again_from_records_alone(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study of several arms with trained controllers, reported twice: the second time no world may be opened."""
    directory = run_stages(configure("across_benchmarks"), {}, STAGES)
    before = made(directory)
    assert len(before) > 40
    monkeypatch.setattr("sim.studies.opening.opened_world", None)
    assert report_command([str(directory)]) == 0
    assert made(directory) == before


def made(directory: Path) -> dict[Path, bytes]:
    """Every table, figure and page of a study and of its arms."""
    runs = [directory, *arm_directories(directory)]
    found = [
        path for run in runs for kind in ("tables/*", "figures/*", "report.html") for path in run.glob(kind)
    ]
    return {path: path.read_bytes() for path in found}


@pytest.mark.slow
@pytest.mark.usefixtures("scripted")
def test_every_arm_of_the_large_studies_runs(configure: Configure) -> None:
    large = [data for name in STUDIES if len((data := configure(name))["arms"]) > MOST_ARMS]
    assert large
    for data in large:
        check(run_stages(data, {}, STAGES))


def test_every_experiment_stands_in_the_documentation() -> None:
    named = {word.partition("=")[2] for words in COMMANDS for word in words if word.startswith("experiment=")}
    assert named == set(STUDIES)


@pytest.mark.parametrize("words", [words for words in COMMANDS if len(words) > 1], ids=" ".join)
def test_every_documented_command_is_valid(words: list[str]) -> None:
    data = composed(*words)
    configs = arm_configs(data, Path("runs")).values() if data["arms"] else [data]
    for config in map(parse, configs):
        assert config.engine["kind"] in {"openai_server", "transformers_local"}


@pytest.mark.parametrize("words", [words for words in COMMANDS if "world=cognitive" in words], ids=" ".join)
def test_documented_commands_run_without_a_model(words: list[str], configure: Configure) -> None:
    name = next(word for word in words if word.startswith("experiment=")).partition("=")[2]
    rest = [word for word in words if not word.startswith(("experiment=", "task.count="))]
    check(run_stages(configure(name, *rest), {}, STAGES))
