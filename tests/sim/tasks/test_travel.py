"""Group-travel tasks: METHOD 12's rules hold for every task, and the verifier catches every broken one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sim.errors import UserError
from sim.tasks import HiddenProfileTask, generate_travel, read_points, verify_travel
from sim.tasks import travel as travel_module
from sim.tasks.travel_points import LEVELS, Ints, Shape, broken_rules, draw_points

SHAPES = [(3, 3, 2), (3, 6, 4), (4, 3, 4), (4, 4, 3), (5, 3, 4), (6, 5, 5), (8, 3, 4), (8, 6, 8)]


def lead(rows: Sequence[Sequence[int]], option: int) -> int:
    """Points of one option above the best of the others."""
    totals = [sum(row[k] for row in rows) for k in range(len(rows[0]))]
    return totals[option] - max(total for k, total in enumerate(totals) if k != option)


def keeps_rules(rows: Sequence[Sequence[int]], n_shared: int, truth: int, level: str) -> bool:
    """METHOD 12's rules once more, in plain words and whole numbers."""
    shared, private = list(rows[:n_shared]), list(rows[n_shared:])
    winners = [k for k in range(len(rows[0])) if lead(shared, k) > 0]
    if len(winners) != 1 or winners[0] == truth:
        return False
    decoy, margin = winners[0], lead(rows, truth)
    without = [lead(shared + private[:i] + private[i + 1 :], truth) for i in range(len(private))]
    return (
        all(lead([*shared, clue], decoy) > 0 for clue in private)
        and margin > 0
        and margin in LEVELS[level].margins
        and all(rest < margin for rest in without)
        and (level != "hard" or all(rest < 0 for rest in without))
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("n_agents", "n_options", "n_shared"), SHAPES)
def test_every_task_keeps_the_rules_by_its_text_alone(
    level: str, n_agents: int, n_options: int, n_shared: int
) -> None:
    if level == "hard" and (n_agents, n_shared) == (4, 3):
        n_shared = 4
    for task in generate_travel(level, 12, 11, n_agents, n_options, n_shared):
        verify_travel(task)
        assert (task.n_agents, task.n_options, task.n_shared) == (n_agents, n_options, n_shared)
        rows = [read_points(clue, task.possible_answers) for clue in task.clues]
        assert keeps_rules(rows, n_shared, task.answer_index, level)
        centred = 0.5 * (np.array(rows) - np.mean(rows, axis=1, keepdims=True))
        np.testing.assert_allclose(task.evidence_array(), centred, atol=1e-12)


@settings(max_examples=300)
@given(
    level=st.sampled_from(list(LEVELS)),
    seed=st.integers(0, 10_000),
    change=st.tuples(st.integers(0, 7), st.integers(0, 2), st.integers(-2, 2)),
)
def test_verifier_agrees_with_the_plain_rules_near_the_boundary(
    level: str, seed: int, change: tuple[int, int, int]
) -> None:
    points, truth = draw_points(level, seed, np.arange(1), Shape())
    clue, option, step = change
    points[0, clue, option] += step
    broken = broken_rules(points, truth, 4, LEVELS[level])
    sound = not any(mask[0] for mask in broken.values())
    assert sound == keeps_rules(points[0].tolist(), 4, int(truth[0]), level)


# Points of truth, decoy and another option: two shared clues, then private ones. Each breaks its rule.
SOUND_HARD = [(0, 2, 0), (-2, 1, -2), (1, -1, 0), (1, -1, 0), (2, 0, -1)]
BROKEN = [
    ("on the shared clues one option", "hard", [(0, 2, 0), (-2, 1, 3), (1, -1, -2), (1, -1, -2), (2, 0, -1)]),
    ("on the shared clues one option", "medium", [(1, 0, 0), (0, 0, 0), (1, 0, 0), (1, 0, 0), (1, 0, 0)]),
    ("any one private clue the decoy", "hard", [(0, 2, 0), (-2, 1, -2), (1, -1, 0), (1, -1, 0), (4, -1, -1)]),
    ("on all clues the truth must win", "hard", [(0, 2, 0), (-2, 1, -2), (1, -1, 0), (1, -1, 0), (1, 0, -1)]),
    (
        "must lower the truth's margin",
        "hard",
        [(0, 2, 0), (-2, 1, -2), (1, -1, 0), (1, -1, 0), (2, 0, -1), (1, 1, 0)],
    ),
    ("margin must be one of", "hard", [(0, 2, 0), (-2, 1, -2), (1, -1, 0), (2, -1, 0), (3, -1, -1)]),
    (
        "take the truth's win away",
        "hard",
        [(0, 2, 0), (-2, 1, -2), (1, -1, 0), (1, 0, 0), (2, -1, -1), (1, 0, 0)],
    ),
]


def rules_broken(rows: Sequence[Sequence[int]], level: str) -> set[str]:
    points: Ints = np.array([rows], dtype=np.int64)
    masks = broken_rules(points, np.array([0]), 2, LEVELS[level])
    return {rule for rule, mask in masks.items() if mask[0]}


def test_a_sound_task_breaks_no_rule() -> None:
    assert rules_broken(SOUND_HARD, "hard") == set()
    assert keeps_rules(SOUND_HARD, 2, 0, "hard")


@pytest.mark.parametrize(("rule", "level", "rows"), BROKEN)
def test_each_rule_is_caught(rule: str, level: str, rows: list[tuple[int, ...]]) -> None:
    found = rules_broken(rows, level)
    assert any(rule in name for name in found)
    assert not keeps_rules(rows, 2, 0, level)
    if rule == "on the shared clues one option":
        assert len(found) == 1


def mutants(task: HiddenProfileTask) -> dict[str, HiddenProfileTask]:
    """The task with one thing spoilt."""
    evidence = task.evidence or ()
    wrong = next(k for k in range(task.n_options) if k != task.answer_index)
    clue = task.hidden_information[0]
    option = next(k for k, own in enumerate(read_points(clue, task.possible_answers)) if own)
    louder = f"{clue} There is a great advantage in {task.possible_answers[option]}."
    swapped = tuple(row[1:] + row[:1] for row in evidence)
    flat = tuple((0.0,) * task.n_options for _ in evidence[:1])
    replaced = msgspec.structs.replace
    return {
        "another answer": replaced(task, correct_answer=task.possible_answers[wrong]),
        "a clue says more": replaced(task, hidden_information=(louder, *task.hidden_information[1:])),
        "clues swapped in evidence": replaced(task, evidence=(evidence[-1], *evidence[1:-1], evidence[0])),
        "evidence of other options": replaced(task, evidence=swapped),
        "evidence silent": replaced(task, evidence=flat + evidence[1:]),
        "half points": replaced(task, evidence=tuple(tuple(x / 2 for x in row) for row in evidence)),
        "a shared fact is missing": replaced(
            task,
            shared_information=(*task.shared_information[1:], "The weather is fine."),
            evidence=evidence[1 : task.n_shared] + flat + evidence[task.n_shared :],
        ),
        "unknown level": replaced(task, family="travel-gentle-0-0"),
        "another benchmark": replaced(task, family="family-1"),
    }


def complaint(task: HiddenProfileTask) -> str | None:
    """What the verifier says against a task."""
    try:
        verify_travel(task)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("level", LEVELS)
def test_every_mutant_is_caught(level: str) -> None:
    tasks = generate_travel(level, 40, 2)
    caught = dict.fromkeys(mutants(tasks[0]), 0)
    for task in tasks:
        assert complaint(task) is None
        for name, mutant in mutants(task).items():
            said = complaint(mutant)
            assert said is None or (repr(task.id) in said and "\n" not in said)
            caught[name] += said is not None
    missing = caught.pop("a shared fact is missing")
    assert all(count == len(tasks) for count in caught.values()), caught
    assert missing > 0


def test_a_task_does_not_depend_on_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    many = generate_travel("medium", 40, 8)
    assert generate_travel("medium", 3, 8) == many[:3]
    monkeypatch.setattr(travel_module, "_CHUNK", 7)
    assert generate_travel("medium", 40, 8) == many
    assert generate_travel("medium", 40, 9) != many


def test_another_process_makes_the_same_tasks() -> None:
    code = "from sim.tasks import generate_travel; print(generate_travel('hard', 3, 5, 5, 4, 4))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert ran.stdout.strip() == str(generate_travel("hard", 3, 5, 5, 4, 4))


def test_levels_seeds_and_shapes_are_different_families() -> None:
    batches = [
        generate_travel("easy", 5, 0),
        generate_travel("hard", 5, 0),
        generate_travel("easy", 5, 1),
        generate_travel("easy", 5, 0, n_agents=5),
    ]
    families = [task.family for batch in batches for task in batch]
    assert len(set(families)) == len(families) == 20
    assert families[0] == "travel-easy-0-0"
    assert all(task.id == task.family for batch in batches for task in batch)


@pytest.mark.parametrize(("level", "n_options"), [("easy", 3), ("medium", 3), ("hard", 3), ("medium", 6)])
def test_positions_are_uniform_and_shared_clues_give_nothing_away(level: str, n_options: int) -> None:
    n = 6_000
    points, truth = draw_points(level, 1, np.arange(n), Shape(n_options=n_options))
    shared = points[:, :4].sum(axis=1)
    decoy = shared.argmax(axis=-1)
    pairs = np.bincount(truth * n_options + decoy, minlength=n_options**2)
    assert stats.chisquare(pairs[pairs > 0]).pvalue > 1e-3
    assert (pairs > 0).sum() == n_options * (n_options - 1)
    rivals = np.where(np.arange(n_options) == decoy[:, None], 99, shared)
    weakest = rivals == rivals.min(axis=-1, keepdims=True)
    share = (weakest[np.arange(n), truth] / weakest.sum(axis=-1)).mean()
    assert abs(share - 1 / (n_options - 1)) < 0.07


def test_asides_and_indirect_wording_grow_with_the_level() -> None:
    lengths = {
        level: np.mean([len(" ".join(task.clues)) for task in generate_travel(level, 300, 0)])
        for level in LEVELS
    }
    assert lengths["easy"] < lengths["medium"] < lengths["hard"]
    verdicts = {
        level: sum(": " in clue for task in generate_travel(level, 100, 0) for clue in task.clues)
        for level in LEVELS
    }
    assert verdicts["easy"] == 800
    assert 300 < verdicts["medium"] < 800
    assert verdicts["hard"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"level": "brutal"}, "'level': 'brutal'; give one of easy, medium, hard"),
        ({"n": 0}, "'n': 0"),
        ({"seed": -1}, "'seed': -1"),
        ({"n_agents": 2}, "'n_agents': 2; give a number from 3 to 8"),
        ({"n_agents": 9}, "'n_agents': 9"),
        ({"n_options": 7}, "'n_options': 7; give a number from 3 to 6"),
        ({"n_shared": 1}, "'n_shared': 1"),
        (
            {"level": "hard", "n_agents": 8, "n_shared": 3},
            "'n_shared': 3; at level hard with 8 agents give at least 4",
        ),
    ],
)
def test_bad_arguments_are_one_line(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        generate_travel(**{"level": "easy", "n": 1, "seed": 0, **arguments})  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n_agents", [3, 4, 5, 6, 7, 8])
def test_the_fewest_shared_clues_allowed_are_enough(level: str, n_agents: int) -> None:
    for n_shared in range(2, 9):
        try:
            tasks = generate_travel(level, 2, 4, n_agents, 6, n_shared)
        except UserError:
            assert n_shared < 4
            continue
        assert len(tasks) == 2
