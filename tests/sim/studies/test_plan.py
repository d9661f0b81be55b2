"""Planning a study: counts by hand, sharing, trees, folds, and never less than a real run takes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sim.config import Throughput, parse
from sim.errors import UserError
from sim.studies.opening import make_tasks
from sim.studies.plan import Cost, Line, plan
from sim.studies.plan_table import print_plan, rehearsed
from sim.studies.verbs import run_stages

Config = Callable[..., dict[str, Any]]
N, T, K, ACTIONS = 4, 3, 3, 4
LANGUAGE = (
    "world=language", f"world.horizon={T}", "task.count=20", "split={train: 4, pilot: 0, calibration: 6, test: 5}",
    "conformal=trajectory", "conformal.scaled=false", "conditions=[hidden_post,rules]", "certified=[]",
)  # fmt: skip
OPENING, VOTES, BRANCH = N, N, 1 + N
"""Calls: a belief each; a vote each; a message and a belief each."""


def planned(data: dict[str, Any], *stages: str) -> dict[tuple[str, str], Line]:
    """The plan by (stage, condition)."""
    config = parse(data)
    return {(line.stage, line.condition): line for line in plan(config, make_tasks(config.task), stages)}


def test_calls_are_those_counted_by_hand(config: Config, tmp_path: Path) -> None:
    lines = planned(config(tmp_path, *LANGUAGE, "test_seeds=[0,1]"), "evaluate")
    free, rules = lines["evaluate", "hidden_post"], lines["evaluate", "rules"]
    assert free.discussions == rules.discussions == 10
    assert free.cost.calls == pytest.approx(10 * (OPENING + T * BRANCH + VOTES))
    assert free.cost.branches == pytest.approx(10 * T)
    # The opening was paid by hidden_post; every branch of a controlled discussion is evaluated.
    assert rules.cost.calls == pytest.approx(10 * (T * ACTIONS * BRANCH + VOTES))
    assert rules.cost.branches == pytest.approx(10 * T * ACTIONS)


def test_a_second_controller_shares_opening_and_first_round(config: Config, tmp_path: Path) -> None:
    lines = planned(config(tmp_path, *LANGUAGE, "conditions=[rules,random,hidden_post]"), "evaluate")
    first, second = lines["evaluate", "rules"].cost, lines["evaluate", "random"].cost
    assert first.branches == pytest.approx(5 * T * ACTIONS)
    assert 5 * (T - 2) * ACTIONS <= second.branches <= 5 * (T - 1) * ACTIONS


def test_cyclic_and_verbal_beliefs_cost_what_they_cost(config: Config, tmp_path: Path) -> None:
    def cost(elicitation: str) -> Cost:
        data = config(tmp_path, *LANGUAGE, f"world.settings.elicitation={elicitation}")
        return planned(data, "evaluate")["evaluate", "hidden_post"].cost

    choice, cyclic, verbal = cost("choice"), cost("choice_cyclic"), cost("verbal")
    beliefs = 5 * (OPENING + T * N)
    assert cyclic.calls - choice.calls == pytest.approx((K - 1) * beliefs)
    assert verbal.calls == choice.calls
    assert verbal.completion_tokens - choice.completion_tokens == pytest.approx((64 - 1) * beliefs)


def test_a_controller_that_asks_the_model_pays_a_question_a_round(config: Config, tmp_path: Path) -> None:
    lines = planned(config(tmp_path, *LANGUAGE, "conditions=[llm,hidden_post]"), "evaluate")
    assert lines["evaluate", "llm"].cost.calls == pytest.approx(
        5 * (OPENING + T * (ACTIONS * BRANCH + 1) + VOTES)
    )


def test_a_tree_multiplies_every_round(config: Config, tmp_path: Path) -> None:
    data = config(tmp_path, *LANGUAGE, "exploration.mode=tree", "exploration.depth=2")
    line = planned(data, "explore")["explore", "explore"]
    assert line.cost.branches == pytest.approx(4 * (ACTIONS + ACTIONS**2))
    assert line.cost.calls == pytest.approx(
        4 * (OPENING + (ACTIONS + ACTIONS**2) * BRANCH + ACTIONS**2 * VOTES)
    )


def test_stages_and_folds(config: Config, tmp_path: Path) -> None:
    data = config(tmp_path, *LANGUAGE, "conditions=[rules,mlp,hidden_post]", "certified=[rules]")
    lines = planned(data, "explore", "train", "calibrate", "evaluate")
    assert {key: line.discussions for key, line in lines.items()} == {
        ("explore", "explore"): 4, ("calibrate", "rules"): 6, ("evaluate", "rules"): 5,
        ("evaluate", "rules+gate"): 5, ("evaluate", "mlp"): 5, ("evaluate", "hidden_post"): 5,
    }  # fmt: skip


def test_long_messages_are_shared_only_if_the_private_clue_comes_last(config: Config, tmp_path: Path) -> None:
    def share(layout: str) -> float:
        long = ("world.settings.max_words=200", "world.settings.max_tokens=200")
        data = config(tmp_path, *LANGUAGE, *long, f"world.settings.layout={layout}")
        cost = planned(data, "evaluate")["evaluate", "rules"].cost
        return cost.cached_tokens / cost.prompt_tokens

    assert share("private_first") < share("private_last") - 0.02
    assert share("private_last") > 0.8


def test_gpu_hours() -> None:
    cost = Cost(prompt_tokens=1_000_000, cached_tokens=800_000, completion_tokens=10_000)
    rates = Throughput(prefill=1000, decode=100)
    assert cost.gpu_hours(rates, 2.0) == pytest.approx(2 * (200 + 100) / 3600)
    assert cost.gpu_hours(rates, 2.0, cache=False) == pytest.approx(2 * (1000 + 100) / 3600)


def test_plan_true_writes_nothing_and_names_every_arm(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = ("+arms.short={world.horizon:1}", "+arms.long={}")
    run_stages(config(tmp_path / "runs", *LANGUAGE, "plan=true", *arms), {}, ("evaluate",))
    printed = capsys.readouterr().out
    assert "short" in printed
    assert "together" in printed
    assert not (tmp_path / "runs").exists()


def test_a_model_of_unknown_size_has_no_hours(config: Config, tmp_path: Path) -> None:
    out = Console(record=True, width=120)
    print_plan(config(tmp_path, *LANGUAGE, "model=gpt_4_1_mini"), ("evaluate",), lambda _: None, out)
    assert "size is not known" in out.export_text()


def test_a_group_takes_the_mean_of_its_members(config: Config, tmp_path: Path) -> None:
    def hours(*overrides: str) -> float:
        data = config(tmp_path, *LANGUAGE, "seats=strong_and_weak", *overrides)
        parsed = parse(data)
        (arm,) = rehearsed(data, ("evaluate",), lambda _: None)
        assert parsed.seats.members["strong"].model["active_billions"] == 14.8
        found = arm.hours(arm.cost)
        assert found is not None
        return found

    strong, weak = hours("seats.order=[strong]"), hours("seats.order=[weak]")
    assert hours("seats.order=[strong,weak]") == pytest.approx((strong + weak) / 2)
    assert hours("seats.order=[strong,weak,weak,weak]") == pytest.approx((strong + 3 * weak) / 4)


def test_a_world_without_a_model_is_not_planned(config: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="world=cognitive calls no model; choose world=language"):
        planned(config(tmp_path), "evaluate")


def test_no_number_is_cut_on_a_narrow_terminal(config: Config, tmp_path: Path) -> None:
    out = Console(record=True, width=40, file=io.StringIO())
    print_plan(config(tmp_path, *LANGUAGE, "progress=false"), ("evaluate",), lambda _: None, out)
    assert "…" not in out.export_text()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("from_run=/nope", "/nope: not a run directory"),
        ("split.test=0", "split.test is 0"),
        ("conditions=[mlp]", "'mlp' is not trained"),
        ("seed=-1", "seed is -1"),
        ("engine.kind=x", "engine.kind is 'x'; it must be"),
        (
            "engine=openai_server engine.urls=[127.0.0.1:8000/v1]",
            "engine.urls names '127.0.0.1:8000/v1'; a URL starts",
        ),
    ],
)
def test_a_plan_refuses_what_the_run_would(override: str, words: str, config: Config, tmp_path: Path) -> None:
    for plan_it in ("true", "false"):
        data = config(tmp_path / "runs", *LANGUAGE, *override.split(), f"plan={plan_it}")
        with pytest.raises(UserError, match=words):
            run_stages(data, {}, ("evaluate",))
    assert not (tmp_path / "runs").exists()
