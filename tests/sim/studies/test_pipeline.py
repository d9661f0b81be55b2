"""Whole studies at their smallest: stages, modes, resume, replay, and what is refused."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformal import beta_binomial_p_value
from sim.errors import UserError
from sim.records.rows import DecisionRow, EpisodeRow
from sim.records.run_dir import read_status
from sim.records.store import FILES, read_rows
from sim.studies.calibration import MODES, lay_out
from sim.studies.stages import read_thresholds
from sim.studies.verbs import run_stages

ALL = ("explore", "train", "calibrate", "evaluate")
Config = Callable[..., dict[str, Any]]


def tables(run: Path) -> list[list[Any]]:
    """What every table is made of: decisions and episodes in the order of their keys."""
    episodes = sorted(json.dumps(_plain(row)) for row in read_rows(run, EpisodeRow))
    decisions = sorted({json.dumps(_plain(row)) for row in read_rows(run, DecisionRow)})
    return [episodes, decisions]


def _plain(row: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(row)


def test_every_condition_has_every_test_task_once(finished: Path) -> None:
    episodes = [row for row in read_rows(finished, EpisodeRow) if row.stage == "evaluate"]
    names = {row.condition for row in episodes}
    assert names == {"hidden_pre", "hidden_post", "full_info", "rules", "rules+gate", "mlp", "mlp+gate"}
    for name in names:
        assert len({row.task for row in episodes if row.condition == name}) == 20
    assert len(episodes) == 20 * len(names)
    assert read_status(finished)["state"] == "finished"


def test_folds_share_no_family_with_each_other(finished: Path) -> None:
    families: dict[str, set[str]] = {}
    for row in read_rows(finished, EpisodeRow):
        families.setdefault(row.stage, set()).add(row.family)
    stages = list(families)
    for i, first in enumerate(stages):
        for second in stages[i + 1 :]:
            assert not families[first] & families[second]
    found = read_thresholds(finished)["rules"]
    assert not set(found.folds["certification"]) & families["evaluate"]


def test_executed_regret_respects_the_gate_in_every_recorded_decision(finished: Path) -> None:
    gated = [row for row in read_rows(finished, DecisionRow) if row.condition.endswith("+gate")]
    assert gated
    for row in gated:
        executed, threshold = row.regrets[row.executed], row.threshold
        assert executed is not None
        assert threshold is None or executed <= threshold
        assert row.replaced == (row.executed != row.proposal)


def test_a_second_run_gives_the_same_tables(finished: Path, config: Config, tmp_path: Path) -> None:
    again = run_stages(config(tmp_path, "world.batch=7"), {}, ALL)
    assert tables(again) == tables(finished)


def test_a_replay_starts_from_the_recorded_configuration(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    again = run_stages(
        config(tmp_path, f"replay={finished}", "task=travel_hard"), {"replay": str(finished)}, ALL
    )
    assert tables(again) == tables(finished)
    changed = {"replay": str(finished), "split.seed": 9}
    with pytest.raises(UserError, match=r"no (branch|opening) recorded there"):
        run_stages(config(tmp_path, f"replay={finished}"), changed, ALL)


def test_a_replay_needs_no_world_and_gives_the_same_tables(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    again = run_stages(config(tmp_path, f"replay={finished}"), {}, ALL)
    assert tables(again) == tables(finished)
    weights = "controller/mlp/mlp.safetensors"
    assert (again / weights).read_bytes() == (finished / weights).read_bytes()


@pytest.mark.parametrize("cut", [0.0, 0.3, 0.85])
def test_a_crash_before_episodes_were_written_resumes_to_the_same_tables(
    finished: Path, config: Config, tmp_path: Path, cut: float
) -> None:
    """Episode rows come last, so a crash leaves too few of them, the last one torn."""
    run = run_stages(config(tmp_path, "world.batch=3"), {}, ("explore",))
    episodes = run / FILES[EpisodeRow]
    content = episodes.read_bytes()
    episodes.write_bytes(content[: int(cut * len(content))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_stages({**config(tmp_path), "resume": str(run)}, {}, ALL)
    assert tables(run) == tables(finished)


def test_resume_refuses_another_configuration(finished: Path, config: Config, tmp_path: Path) -> None:
    data = {**config(tmp_path, "conformal.alpha=0.2"), "resume": str(finished)}
    with pytest.raises(UserError, match=r"was run with conformal\.alpha=0\.1, not 0\.2"):
        run_stages(data, {"conformal.alpha": 0.2}, ALL)


def test_controllers_and_thresholds_serve_another_run_but_not_another_policy(
    finished: Path, config: Config, tmp_path: Path
) -> None:
    other = run_stages(config(tmp_path / "a", f"from_run={finished}"), {}, ("evaluate",))
    assert {row.condition for row in read_rows(other, EpisodeRow)} >= {"mlp+gate", "rules+gate"}
    changed = ("objective.cost=0.0", "objective.uncertainty=0.25")
    with pytest.raises(UserError, match="objective is"):
        run_stages(config(tmp_path / "b", f"from_run={finished}", *changed), {}, ("evaluate",))
    with pytest.raises(UserError, match="test units were in fold"):
        run_stages(config(tmp_path / "c", f"from_run={finished}", "split.seed=5"), {}, ("evaluate",))


@pytest.mark.parametrize("mode", sorted(MODES))
def test_every_mode_calibrates_and_says_what_it_holds_for(mode: str, config: Config, tmp_path: Path) -> None:
    overrides = (
        f"conformal={mode}",
        "conditions=[rules]",
        "certified=[rules]",
        "split.calibration=40",
        "task.count=100",
    )
    run = run_stages(config(tmp_path, *overrides), {}, ("calibrate", "evaluate"))
    found = read_thresholds(run)["rules"]
    assert found.mode == mode
    assert found.guarantee
    assert found.rounds == 4
    certified = found.certified.tolist()
    assert certified == ([False] * 4 if mode == "lockstep" else np.isfinite(found.reported).tolist())
    assert len(found.policy_hash) == 32


def test_thresholds_too_few_families_for_are_infinite_and_uncertified(config: Config, tmp_path: Path) -> None:
    few = ("split.calibration=5", "conditions=[rules]", "certified=[rules]")
    run = run_stages(config(tmp_path, *few), {}, ("calibrate", "evaluate"))
    found = read_thresholds(run)["rules"]
    assert np.isinf(found.values).all()
    assert not found.certified.any()
    gated = [row for row in read_rows(run, DecisionRow) if row.condition == "rules+gate"]
    assert not any(row.certified for row in gated)


def test_failed_calibration_episodes_score_infinity_from_their_failure_on() -> None:
    episode = EpisodeRow(
        "calibrate",
        "rules",
        "t",
        "f",
        0,
        4,
        3,
        0,
        -1,
        [-1] * 4,
        1,
        1,
        0.0,
        "route@0",
        "failed",
        None,
        0,
        4,
        "gone",
    )
    decision = DecisionRow(
        "calibrate", "rules", "t", 0, 1, "", ["route@0"], 0.5, [0.4], [0.0], 0, False, 0, False, None, False,
        [True], [],
    )  # fmt: skip
    scores = lay_out([episode], [decision], 3)
    np.testing.assert_array_equal(scores.values, [[0.0, np.inf, np.inf]])
    assert scores.reached.all()


def test_coverage_on_fresh_tasks_lies_in_the_exact_band(config: Config, tmp_path: Path) -> None:
    sizes = ("task.count=1500", "split.pilot=300", "split.calibration=400", "split.test=600")
    overrides = ("conditions=[rules]", "certified=[rules]", "record=decisions", *sizes)
    run = run_stages(config(tmp_path, *overrides), {}, ("calibrate", "evaluate"))
    found = read_thresholds(run)["rules"]
    for t in range(found.rounds):
        rows = [
            r for r in read_rows(run, DecisionRow) if r.stage == "evaluate" and r.condition == "rules+gate"
        ]
        scores = np.array([r.regrets[r.proposal] for r in rows if r.round == t + 1], dtype=float)
        below = int((scores <= found.reported[t]).sum())
        n, k = int(found.n[t]), int(found.k[t])
        assert beta_binomial_p_value(below, len(scores), k, n, "below") > 1e-3
        hits = int((scores <= found.values[t]).sum())
        assert beta_binomial_p_value(hits, len(scores), k, n, "below") > 1e-3


def test_variants_are_conditions_of_their_own(config: Config, tmp_path: Path) -> None:
    overrides = (
        "conditions=[rules,no_route]", "certified=[]", "exhaustive=false",
        "+variants.no_route={controller:rules,without:[route],routing:random}",
    )  # fmt: skip
    run = run_stages(config(tmp_path, *overrides), {}, ("evaluate",))
    rows = [row for row in read_rows(run, DecisionRow) if row.condition == "no_route"]
    assert rows
    assert not any("route@" in candidate for row in rows for candidate in row.candidates)
    assert all(len(row.candidates) == 1 for row in rows)


def test_rows_are_plain_json(finished: Path) -> None:
    first = json.loads((finished / "episodes.jsonl").read_text().splitlines()[0])
    assert {"stage", "condition", "task", "seed", "decision", "answer"} <= first.keys()


def test_screened_conditions_run_beside_their_gate(config: Config, tmp_path: Path) -> None:
    sizes = (
        "task.count=260",
        "split.screening=160",
        "screening.alpha_s=0.05",
        "screening.audit_fraction=0.0",
    )
    chosen = ("conditions=[rules]", "certified=[rules]", "screened=[rules]")
    run = run_stages(config(tmp_path, *chosen, *sizes), {}, ALL)
    rows = [
        row
        for row in read_rows(run, DecisionRow)
        if row.condition == "rules+screen" and row.stage == "evaluate"
    ]
    assert rows
    assert all(row.objectives[row.executed] is not None for row in rows)
    evaluated = sum(value is not None for row in rows for value in row.objectives)
    assert evaluated < 4 * len(rows)
    families = {row.family for row in read_rows(run, EpisodeRow) if row.stage.startswith("screen-")}
    assert len(families) == 160
    with pytest.raises(UserError, match="greedy', which needs every branch"):
        run_stages(
            config(tmp_path, "conditions=[greedy]", "certified=[greedy]", "screened=[greedy]"), {}, ALL
        )
