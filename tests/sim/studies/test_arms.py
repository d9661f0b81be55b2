"""Studies of several arms: what each runs, that controllers move between them, resume, and tables across them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from sim.errors import UserError
from sim.launch import composed
from sim.records.rows import EpisodeRow
from sim.records.run_dir import read_config, read_status
from sim.records.store import read_rows
from sim.report.command import report_command
from sim.studies.arms import arm_configs
from sim.studies.verbs import run_stages

ALL = ("explore", "train", "calibrate", "evaluate", "report")
SMALL = (
    "task.count=12", "split.train=4", "split.pilot=0", "split.calibration=0", "split.test=8",
    "training.epochs=2", "progress=false", "world.horizon=2", "conditions=[hidden_post,full_info,rules,mlp]",
    "certified=[]", "transfer=true", "+arms.easy={task.level:easy}", "+arms.five={task.n_agents:5}",
)  # fmt: skip

Config = Callable[..., dict[str, Any]]


@pytest.fixture(name="config", scope="module")
def _config() -> Config:
    def make(output: Path, *overrides: str) -> dict[str, Any]:
        return composed(*SMALL, f"output={output}", *overrides)

    return make


@pytest.fixture(name="study", scope="module")
def _study(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_stages(config(tmp_path_factory.mktemp("arms")), {}, ALL)


def rows(run: Path) -> list[bytes]:
    return sorted(msgspec.json.encode(row) for row in read_rows(run, EpisodeRow))


def tables(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((directory / "tables").iterdir())}


def test_every_arm_is_a_run_of_its_own_with_the_others_controllers(study: Path) -> None:
    assert read_status(study)["state"] == "finished"
    for name, other in (("easy", "five"), ("five", "easy")):
        arm = study / "arms" / name
        assert read_status(arm)["state"] == "finished"
        held = {row.condition for row in read_rows(arm, EpisodeRow) if row.stage == "evaluate"}
        assert held == {"hidden_post", "full_info", "rules", "mlp", f"mlp_from_{other}"}
        assert {row.n_agents for row in read_rows(arm, EpisodeRow)} == {4 if name == "easy" else 5}
        assert list((arm / "controller").iterdir()) == [arm / "controller" / "mlp"]


def test_an_arm_is_what_the_same_run_alone_would_be(study: Path, config: Config, tmp_path: Path) -> None:
    data = config(tmp_path, "task.level=easy") | {"arms": {}, "transfer": False}
    alone = run_stages(data, {}, ALL)
    guests = "mlp_from_five"
    own = [row for row in rows(study / "arms" / "easy") if guests.encode() not in row]
    assert own == rows(alone)


def test_a_transferred_controller_is_the_other_arms(study: Path) -> None:
    config = read_config(study / "arms" / "five")
    assert config["variants"]["mlp_from_easy"]["learner"]["from_run"] == str(study / "arms" / "easy")
    contrasts = pd.read_csv(study / "tables" / "all_contrasts.csv")
    assert contrasts[["run", "contrast"]].to_numpy().tolist() == [
        ["easy", "mlp_from_five_minus_own"],
        ["five", "mlp_from_easy_minus_own"],
    ]
    assert contrasts["note"].str.startswith("only 8 tasks").all()


def test_every_table_is_made_again_from_records_alone(study: Path) -> None:
    before = {path: tables(path) for path in (study, *(study / "arms").iterdir())}
    for path in before:
        for table in (path / "tables").iterdir():
            table.unlink()
    assert report_command([str(study)]) == 0
    for path, content in before.items():
        assert tables(path) == content
    assert (study / "report.html").stat().st_size > 0


def test_a_study_of_arms_resumes_where_it_was_stopped(study: Path, config: Config, tmp_path: Path) -> None:
    stopped = run_stages(config(tmp_path), {}, ("explore", "train"))
    episodes = stopped / "arms" / "five" / "episodes.jsonl"
    episodes.write_bytes(b"".join(episodes.read_bytes().splitlines(keepends=True)[:2]))
    run_stages({**config(tmp_path), "resume": str(stopped)}, {}, ALL)
    for name in ("easy", "five"):
        ours, whole = rows(stopped / "arms" / name), rows(study / "arms" / name)
        assert ours == whole


def test_a_resume_refuses_another_configuration(study: Path, config: Config, tmp_path: Path) -> None:
    data = {**config(tmp_path, "seed=1"), "resume": str(study)}
    with pytest.raises(UserError, match=r"was run with seed=0, not 1"):
        run_stages(data, {"seed": 1}, ALL)


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ("{task.levels:easy}", r"arms\.bad: there is no setting 'task\.levels'"),
        ("{nowhere.level:easy}", r"arms\.bad: there is no setting 'nowhere\.level'"),
        ("{task.count:0}", r"task\.count is 0"),
        ("{objective.cost:0.5}", "objective weights sum"),
    ],
)
def test_a_wrong_arm_is_refused_before_anything_is_written(
    arm: str, words: str, config: Config, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        run_stages(config(tmp_path / "runs", f"+arms.bad={arm}"), {}, ALL)
    assert not (tmp_path / "runs").exists()


def test_a_whole_group_replaces_what_stood_there(config: Config, tmp_path: Path) -> None:
    data = config(tmp_path, "+model@arms.easy.model=gpt_4_1_mini")
    arm = arm_configs(data, tmp_path)["easy"]
    assert arm["model"]["name"] == "gpt_4_1_mini"
    assert "endpoint" in arm["model"]
    assert not data["model"].keys() & {"endpoint"}
    assert not arm["model"].keys() & {"tensor_parallel"}
