"""Whatever a user gets wrong is one line naming it, and nothing is written (issue: What bad input gets)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim.errors import UserError
from sim.records.run_dir import read_json, write_json
from sim.report.build import build_report
from sim.studies.verbs import run_stages
from sim.tasks import generate_travel, load_tasks, split_by_family, write_tasks

ALL = ("explore", "train", "calibrate", "evaluate")
Config = Callable[..., dict[str, Any]]


def refused(data: dict[str, Any], stages: tuple[str, ...] = ALL) -> str:
    """The one line that refuses a study; its output folder must not exist afterwards."""
    with pytest.raises(UserError) as caught:
        run_stages(data, {}, stages)
    assert "\n" not in str(caught.value)
    assert not Path(data["output"]).exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("conformal.alpha=1.5", "conformal.alpha is 1.5"),
        ("conformal.alpha=0", "conformal.alpha is 0.0"),
        ("conformal.alpha=nan", "conformal.alpha is nan"),
        ("conformal.alpha=1e-9", "conformal.alpha is 1e-09; give a level from"),
        ("conformal.mode=naive", "conformal.mode: Invalid enum value 'naive'"),
        ("objective.cost=0.5", "objective weights sum to 1.45"),
        ("objective.cost=nan", "objective.cost is nan"),
        ("objective.cost=-0.05", "objective.cost is -0.05"),
        ("stop.quorum=0", "stop.quorum is 0"),
        ("stop.confidence=2", "stop.confidence is 2"),
        ("stop.coverage=-1", "stop.coverage is -1"),
        ("split.test=0", "split.test is 0"),
        ("split.train=0", "split.train is 0"),
        ("split.pilot=0", "split.pilot is 0"),
        ("split.test=1.5", "split 'test': share 1.5"),
        ("split.test=-3", "split 'test': share -3"),
        ("split.test=nan", "split 'test': share nan"),
        ("task.count=10", "72 families are asked for and 10 are there"),
        ("task.count=0", "task.count is 0"),
        ("task.level=extreme", "field 'level': 'extreme'; give one of easy, medium, hard"),
        ("task.n_agents=2", "field 'n_agents': 2"),
        ("task.n_options=9", "field 'n_options': 9"),
        ("conditions=[rulez]", "certified names 'rules', which is not among conditions"),
        ("conditions=[rules,mlp,rulez]", "conditions: 'rulez' is unknown"),
        ("conditions=[rules,mlp,rules]", "every entry may stand there once"),
        ("conditions=[rules,mlp,rules+gate]", "stand for something in a name"),
        ("conditions=[rules,mlp,llm]", "'llm', which asks a language model; choose world=language"),
        ("certified=[rules,hidden_post]", "certified names 'hidden_post', a baseline without proposals"),
        ("reference=nobody", "reference is 'nobody'; it must be a condition of this study: full_info, "),
        ("routing.name=nobody", "routing.name is 'nobody'; it must be one of action_conditional"),
        ("menu.without=[chat]", "menu.without names 'chat'"),
        ("menu.without=[free]", "menu.without names 'free'"),
        ("menu.without=[challenge,clarify,seek_evidence,route]", "at least one intervention"),
        ("training.epochs=0", "training.epochs is 0"),
        ("training.groups=[feelings]", "training.groups[0]: Invalid enum value 'feelings'"),
        ("world.horizon=0", "world.horizon is 0"),
        ("world.batch=0", "world.batch is 0"),
        ("world.cognition.miss=2", "world.cognition.miss is 2.0"),
        ("explore_seeds=[]", "explore_seeds is empty, but 'mlp' learns from exploration"),
        ("explore_seeds=[0,0]", "every entry may stand there once"),
        ("test_seeds=[]", "conditions and test_seeds must each name at least one"),
        ("test_seeds=[-1]", "test_seeds: an entry is -1; a seed is a whole number from 0"),
        ("seed=99999999999999999999", "seed is 99999999999999999999"),
        ("seed=-1", "seed is -1"),
        ("seed=abc", "seed: Expected `int`, got `str`"),
        ("name='a b'", "name is 'a b'; use letters, digits"),
        ("throughput.decode=nan", "throughput.decode is nan"),
        ("from_run=/nowhere", "/nowhere: not a run directory"),
        ("replay=/nowhere", "/nowhere: not a run directory"),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(
    override: str, words: str, config: Config, tmp_path: Path
) -> None:
    assert words in refused(config(tmp_path / "runs", override))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ("conformal=sequential", "split.calibration=3"),
            "'sequential', which needs a fold for each of 4 rounds, but the calibration fold has 3 task families",
        ),
        (
            ("conformal=lockstep", "world.batch=3"),
            "'lockstep', but the calibration fold has 20 families of 1 shapes and world.batch is 3",
        ),
    ],
)
def test_a_fold_that_cannot_serve_its_mode_is_refused_before_exploration(
    overrides: tuple[str, ...], words: str, config: Config, tmp_path: Path
) -> None:
    assert words in refused(config(tmp_path / "runs", *overrides))


GOOD: dict[str, Any] = {
    "id": "one",
    "name": "n",
    "description": "d",
    "shared_information": ["The bridge is closed."],
    "hidden_information": ["The tunnel floods.", "The ferry sails."],
    "possible_answers": ["Tunnel", "Ferry"],
    "correct_answer": "Ferry",
    "family": "one",
    "evidence": [[0.5, -0.5], [-1.0, 1.0], [-1.0, 1.0]],
}


def changed(**fields: object) -> str:
    """The good task with some fields changed, or dropped where `...` is given, as a file."""
    task = {name: value for name, value in {**GOOD, **fields}.items() if value is not ...}
    return json.dumps([task])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (changed(mood="good"), ("task 'one'", "field 'mood'", "unknown")),
        (changed(correct_answer=...), ("task 'one'", "field 'correct_answer'", "missing")),
        (
            changed(possible_answers=["Ferry", "Tunnel", "ferry "]),
            ("possible_answers", "'ferry '", "different"),
        ),
        (changed(correct_answer="Bridge"), ("correct_answer", "'Bridge'", "not among possible_answers")),
        (changed(shared_information=[]), ("shared_information", "[]", "at least 1")),
        (changed(hidden_information=["Only one."]), ("hidden_information", "at least 2")),
        (changed(hidden_information=["", "x"]), ("hidden_information", "entry 1", "empty")),
        (changed(evidence=[[0.5, -0.5]]), ("evidence", "1 rows", "give 3")),
        (changed(evidence=[[0.5, 0.5]] * 3), ("evidence", "row 1", "centred")),
        (changed().replace("-0.5", "NaN"), ("NaN",)),
        (changed(id=7.5), ("id", "7.5")),
        (changed(name="\ud800"), ("'name'", "surrogate")),
        (changed(hidden_information=["x", "\udfff"]), ("hidden_information", "entry 2", "surrogate")),
        (changed(possible_answers=["Ferry", "Tunnel", "Fer\u200bry"]), ("possible_answers", "same option")),
        (changed(possible_answers=["Ferry", "Caf\u00e9", "Cafe\u0301"]), ("possible_answers", "same option")),
        (changed(evidence=[[10**400, -(10**400)]] * 3), ("evidence", "row 1", "finite")),
        ("", ("empty",)),
        ("[]", ("no task",)),
        ("[{", ("not JSON", "line 1")),
        ("{}", ("holds one object", "a JSON list of tasks")),
        ("null", ("holds None",)),
        ('["a"]', ("task",)),
    ],
)
def test_a_damaged_task_file_is_named_with_task_field_and_value(
    content: str, words: tuple[str, ...], config: Config, tmp_path: Path
) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(content)
    line = refused(config(tmp_path / "runs", "task=file", f"task.path={path}", "split=few"))
    assert line.startswith(str(path))
    assert all(word in line for word in words), line


def test_a_training_that_diverges_is_said_and_leaves_no_network(config: Config, tmp_path: Path) -> None:
    data = config(tmp_path / "runs", "training.learning_rate=1e30", "training.epochs=3")
    with pytest.raises(UserError, match=r"no longer finite in epoch \d; lower training\.learning_rate"):
        run_stages(data, {}, ("explore", "train"))
    assert not list(tmp_path.rglob("mlp.*"))


def test_an_output_without_a_name_is_not_the_working_folder(config: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="output is empty"):
        run_stages({**config(tmp_path), "output": ""}, {}, ALL)


def test_a_plan_resumes_nothing(config: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="plan is on with resume"):
        run_stages({**config(tmp_path), "plan": True, "resume": "/nowhere"}, {}, ALL)


def test_two_tasks_of_one_name_and_a_missing_file_are_refused(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([GOOD, GOOD]))
    overrides = ("task=file", f"task.path={path}", "split=few")
    assert "'one'" in refused(config(tmp_path / "runs", *overrides))
    path.unlink()
    assert f"{path}: cannot be read" in refused(config(tmp_path / "runs", *overrides))


def test_what_a_new_run_would_lack_is_said_at_once(config: Config, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert "resume is null" in refused(config(runs), ("train",))
    assert "is not trained" in refused(config(runs), ("evaluate",))
    alone = config(runs, "conditions=[rules]", "certified=[rules]")
    assert "has no thresholds" in refused(alone, ("evaluate",))


def test_a_run_of_another_configuration_is_refused_and_left_as_it_was(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    data = {**config(tmp_path), "resume": str(finished)}
    for key, value, kept in (
        ("conformal.alpha", 0.2, 0.1),
        ("task", {"source": "demo"}, ""),
        ("nothing.like.it", 1, None),
    ):
        with pytest.raises(
            UserError, match=rf"was run with {key}=.*; resume without that override"
        ) as caught:
            run_stages(data, {key: value}, ALL)
        assert repr(kept) in str(caught.value) or kept == ""
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("", "damaged"),
        ('{"rules": {}}', "field"),
        ("[]", "holds []"),
    ],
)
def test_damaged_thresholds_are_named(
    damage: str, words: str, finished: Path, config: Config, tmp_path: Path
) -> None:
    run = shutil.copytree(finished, tmp_path / "copy")
    (run / "thresholds.json").write_text(damage)
    with pytest.raises(UserError, match=r"thresholds\.json") as caught:
        run_stages({**config(tmp_path), "resume": str(run)}, {}, ("evaluate",))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_thresholds_changed_by_hand_are_refused(finished: Path, config: Config, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "copy")
    content = read_json(run / "thresholds.json")
    content["rules"]["acceptance"][0] = 1.0
    write_json(run / "thresholds.json", content)
    with pytest.raises(UserError, match="altered after calibration"):
        run_stages({**config(tmp_path), "resume": str(run)}, {}, ("evaluate",))


def test_a_level_changed_after_calibration_is_refused(finished: Path, config: Config, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "copy")
    text = (run / "config.yaml").read_text()
    assert "alpha: 0.1\n" in text
    (run / "config.yaml").write_text(text.replace("alpha: 0.1\n", "alpha: 0.2\n"))
    with pytest.raises(UserError, match=r"was calibrated for alpha 0\.1, but conformal\.alpha is 0\.2"):
        run_stages({**config(tmp_path), "resume": str(run)}, {}, ("evaluate",))


def test_tasks_changed_after_the_run_was_made_are_refused_by_resume_and_report(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    run = shutil.copytree(finished, tmp_path / "copy")
    first, *others = load_tasks(run / "tasks.json")
    wrong = next(option for option in first.possible_answers if option != first.correct_answer)
    write_tasks(run / "tasks.json", [msgspec.structs.replace(first, correct_answer=wrong), *others])
    with pytest.raises(UserError, match=r"tasks\.json: holds other tasks than the run was made with"):
        run_stages({**config(tmp_path), "resume": str(run)}, {}, ("evaluate",))
    with pytest.raises(UserError, match=r"tasks\.json: holds other tasks than the run was made with"):
        build_report(run)


def test_test_tasks_longer_than_any_of_the_calibration_fold_get_infinite_thresholds(
    config: Config, tmp_path: Path
) -> None:
    """Tasks of 4 and of 6 agents take 8 and 12 rounds; the fold may hold the shorter ones only."""
    tasks = [*generate_travel("easy", 40, 1), *generate_travel("easy", 2, 2, n_agents=6)]
    longer = {task.id for task in tasks if task.n_agents == 6}
    shares = {"pilot": 12, "calibration": 12, "test": 14}
    seed = next(s for s in range(500) if longer <= {t.id for t in split_by_family(tasks, shares, s)["test"]})
    write_tasks(tmp_path / "tasks.json", tasks)
    data = config(
        tmp_path / "runs", "task=file", f"task.path={tmp_path / 'tasks.json'}", "conditions=[rules]",
        "certified=[rules]", "world.horizon=null", "split.train=0", f"split.seed={seed}",
        *(f"split.{name}={share}" for name, share in shares.items()),
    )  # fmt: skip
    run = run_stages(data, {}, ("calibrate", "evaluate"))
    content = read_json(run / "thresholds.json")["rules"]
    assert len(content["values"]) == 12
    assert content["values"][8:] == ["inf"] * 4
    assert content["certified"][8:] == [False] * 4
