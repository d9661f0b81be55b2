"""METHOD 8's study of learning at a small size: its rows, its tables checked from the rows by hand, and that the
tables are made again from the rows alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sim.errors import UserError
from sim.launch import composed
from sim.records.run_dir import read_status
from sim.studies.learning_study import drawn, parse_learning, run_learning
from sim.studies.opening import make_tasks
from sim.tasks import generate_method

SMALL = (
    "task.count=16", "families=4", "draws=3", "all_task_networks=1", "explore_seeds=3", "test_seeds=4",
    "regret_seeds=2", "regret_rounds=2", "redraws=4", "training.epochs=3", "progress=false", "workers=2",
)  # fmt: skip
RECIPES = ("objective", "delta", "delta_centred", "soft_labels", "hard_argmin", "expected_regret")


def configured(output: Path, *overrides: str) -> dict[str, Any]:
    return composed(*SMALL, f"output={output}", *overrides, config_name="learning")


@pytest.fixture(name="study", scope="module")
def _study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_learning(configured(tmp_path_factory.mktemp("learning")), {})


@pytest.fixture(name="outcomes", scope="module")
def _outcomes(study: Path) -> pd.DataFrame:
    return pd.read_csv(study / "outcomes.csv")


def few(outcomes: pd.DataFrame, recipe: str) -> pd.DataFrame:
    """The rows of a recipe over draws of the training tasks."""
    return outcomes[(outcomes["recipe"] == recipe) & (outcomes["trained_on"] == "few")]


def test_every_recipe_is_examined_over_every_draw(study: Path, outcomes: pd.DataFrame) -> None:
    assert read_status(study)["state"] == "finished"
    for recipe in (*RECIPES, "rollout", "task_accuracy"):
        assert set(few(outcomes, recipe)["draw"]) == {0, 1, 2}
    assert not outcomes.duplicated(["recipe", "trained_on", "draw", "task"]).any()
    assert outcomes["task_accuracy"].between(0, 1).all()
    learned = outcomes[outcomes["trained_on"] != "reference"]
    assert learned["expected_regret"].between(0, 1).all()


def test_no_draw_is_examined_on_its_training_tasks(outcomes: pd.DataFrame, tmp_path: Path) -> None:
    config = parse_learning(configured(tmp_path))
    tasks = make_tasks(config.task)
    chosen = [drawn(tasks, config, draw) for draw in range(3)]
    frozen = {task.id for task in tasks} - chosen[0]
    assert all(len(part) == 4 for part in chosen)
    assert len({frozenset(part) for part in chosen}) == 3
    for draw, part in enumerate(chosen):
        mine = few(outcomes, "delta")
        assert set(mine[mine["draw"] == draw]["task"]) == frozen - part
    everything = outcomes[outcomes["trained_on"] == "all"]
    assert set(everything["task"]) == frozen


def test_regret_is_that_of_the_best_intervention(outcomes: pd.DataFrame) -> None:
    """Per task: a uniform draw has the mean regret of the four constants."""
    reference = outcomes[outcomes["trained_on"] == "reference"].set_index(["recipe", "task"])[
        "expected_regret"
    ]
    constants = [reference[f"fixed_{name}"] for name in ("challenge", "clarify", "seek_evidence", "route")]
    np.testing.assert_allclose(reference["random"], sum(constants) / 4, atol=1e-12)
    assert reference["rules"].isna().all()


def test_the_spread_over_draws_stands_beside_the_means(study: Path, outcomes: pd.DataFrame) -> None:
    table = pd.read_csv(study / "tables" / "recipes.csv")
    (row,) = table[(table["recipe"] == "delta_centred") & (table["trained_on"] == "few")].to_dict("records")
    mine = few(outcomes, "delta_centred")
    by_draw = mine.groupby("draw")["task_accuracy"].mean()
    assert (row["draws"], row["n_tasks"]) == (3, mine["task"].nunique())
    assert row["task_accuracy"] == pytest.approx(mine.groupby("task")["task_accuracy"].mean().mean())
    assert row["task_accuracy_sd_over_draws"] == pytest.approx(by_draw.std(ddof=1))
    assert row["task_accuracy_lowest_draw"] == pytest.approx(by_draw.min())
    assert row["task_accuracy_highest_draw"] == pytest.approx(by_draw.max())


def test_contrasts_are_paired_by_task_and_draw(study: Path, outcomes: pd.DataFrame) -> None:
    table = pd.read_csv(study / "tables" / "contrasts.csv")
    mine = table[(table["recipe"] == "hard_argmin") & (table["metric"] == "task_accuracy")]
    (row,) = mine.to_dict("records")
    sides = [
        few(outcomes, name).set_index(["draw", "task"])["task_accuracy"]
        for name in ("hard_argmin", "delta_centred")
    ]
    change = sides[0] - sides[1]
    by_draw = change.groupby("draw").mean()
    over_draws = stats.ttest_1samp(by_draw, 0.0).confidence_interval(0.95)
    assert row["difference"] == pytest.approx(change.groupby("task").mean().mean())
    assert (row["low_over_draws"], row["high_over_draws"]) == pytest.approx((over_draws.low, over_draws.high))
    of_metric = table[table["metric"] == "task_accuracy"]
    assert of_metric["p_holm"].min() == pytest.approx(min(1.0, len(of_metric) * of_metric["p_value"].min()))
    assert (of_metric["p_holm"] >= of_metric["p_value"]).all()


def test_tables_are_made_again_from_the_outcomes_alone(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in (study / "tables").iterdir()}
    for name in ("world_of", "make_tasks"):
        monkeypatch.setattr(f"sim.studies.learning_study.{name}", None)
    assert run_learning(configured(tmp_path, f"resume={study}"), {}) == study
    assert {path.name: path.read_bytes() for path in (study / "tables").iterdir()} == before


def test_workers_change_no_row(outcomes: pd.DataFrame, tmp_path: Path) -> None:
    alone = pd.read_csv(run_learning(configured(tmp_path, "workers=1", "draws=1"), {}) / "outcomes.csv")
    first = outcomes[(outcomes["trained_on"] != "few") | (outcomes["draw"] == 0)].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, first)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("families=16", "task.count is 16; the pool must be larger than families = 16"),
        ("compared_with=nobody", "compared_with is 'nobody'"),
        ("+recipes.objective.target_=x", "training"),
        ("world=language", "this study redraws every branch many times"),
    ],
)
def test_a_wrong_study_is_one_line(override: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as refused:
        run_learning(configured(tmp_path, override), {})
    assert "\n" not in str(refused.value)


def test_a_directory_without_outcomes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"outcomes\.csv: is missing"):
        run_learning(configured(tmp_path, f"resume={tmp_path}"), {})


def test_the_pool_is_the_methods_tasks() -> None:
    config = parse_learning(composed("progress=false", config_name="learning"))
    assert (len(make_tasks(config.task)), config.families, config.draws) == (65, 5, 10)
    assert make_tasks(config.task)[0] == generate_method(1, config.seed)[0]
