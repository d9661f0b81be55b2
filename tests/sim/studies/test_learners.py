"""Protocols of held-out learning as lessons: who is trained on what, and that nobody is examined on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.config import StudyConfig, parse
from sim.errors import UserError
from sim.launch import composed
from sim.studies.learners import Lesson, all_lessons, explored_tasks, lessons
from sim.studies.study import Tasks
from sim.tasks import HiddenProfileTask, demo_task


def tasks(prefix: str, sizes: list[int]) -> Tasks:
    """Families of the sizes given."""
    made: list[HiddenProfileTask] = []
    for family, size in enumerate(sizes):
        for member in range(size):
            name = f"{prefix}-{family}-{member}"
            made.append(msgspec.structs.replace(demo_task(), id=name, family=f"{prefix}-{family}"))
    return tuple(made)


@dataclass(frozen=True)
class Planner:
    """Lessons of one variant on some folds."""

    base: dict[str, Any]

    def config(self, learner: dict[str, Any] | None, **changes: Any) -> StudyConfig:
        """A study with the one learned condition `taught`."""
        variant: dict[str, Any] = {"controller": "mlp"} | ({} if learner is None else {"learner": learner})
        return parse({**self.base, "variants": {"taught": variant}, **changes})

    def __call__(
        self, learner: dict[str, Any] | None, train: Tasks, test: Tasks, **changes: Any
    ) -> list[Lesson]:
        config = self.config(learner, **changes)
        return lessons(config, {"train": train, "test": test}, "taught")


@pytest.fixture(name="plan", scope="module")
def _plan() -> Planner:
    return Planner(composed("conditions=[taught]", "certified=[]"))


def families(part: Tasks) -> set[str]:
    return {task.family for task in part}


SIZES = st.lists(st.integers(1, 3), min_size=6, max_size=12)


@settings(max_examples=40, deadline=None)
@given(train=SIZES, test=SIZES, folds=st.sampled_from([None, 2, 3, 5]))
def test_cross_fitting_examines_every_test_task_once_and_never_on_its_family(
    plan: Planner, train: list[int], test: list[int], folds: int | None
) -> None:
    pool, examined = tasks("train", train), tasks("test", test)
    found = plan({"test_tasks": "other_folds", "folds": folds}, pool, examined)
    assert len(found) == (folds or len(test))
    played = [task.id for lesson in found for task in lesson.test_tasks]
    assert sorted(played) == sorted(task.id for task in examined)
    for lesson in found:
        assert not families(lesson.train_tasks) & families(lesson.test_tasks)
        assert families(lesson.train_tasks) | families(lesson.test_tasks) == families((*pool, *examined))
        assert {lesson.condition for lesson in found} == {"taught"}
    assert len({lesson.folder for lesson in found}) == len(found)


@settings(max_examples=40, deadline=None)
@given(train=SIZES, test=SIZES, draws=st.integers(2, 4), data=st.data())
def test_draws_take_whole_families_of_the_train_fold(
    plan: Planner, train: list[int], test: list[int], draws: int, data: st.DataObject
) -> None:
    pool, examined = tasks("train", train), tasks("test", test)
    learner = {"families": 4, "draws": draws}
    found = plan(learner, pool, examined)
    assert [lesson.condition for lesson in found] == [f"taught#{draw}" for draw in range(draws)]
    assert [lesson.settings.seed for lesson in found] == list(range(draws))
    for lesson in found:
        chosen = families(lesson.train_tasks)
        assert len(chosen) == 4
        assert lesson.train_tasks == tuple(task for task in pool if task.family in chosen)
        assert lesson.test_tasks == examined
    shuffled = plan(learner, tuple(data.draw(st.permutations(pool))), examined)
    for first, second in zip(found, shuffled, strict=True):
        assert families(first.train_tasks) == families(second.train_tasks)


def test_draws_differ(plan: Planner) -> None:
    found = plan({"families": 5, "draws": 10}, tasks("train", [1] * 50), tasks("test", [1] * 6))
    assert len({frozenset(families(lesson.train_tasks)) for lesson in found}) == 10


@settings(max_examples=30, deadline=None)
@given(train=SIZES, test=SIZES)
def test_a_draw_from_all_tasks_is_not_examined_on_what_it_drew(
    plan: Planner, train: list[int], test: list[int]
) -> None:
    pool, examined = tasks("train", train), tasks("test", test)
    learner = {"families": 5, "draws": 3, "drawn_from": "train_and_test"}
    for lesson in plan(learner, pool, examined):
        chosen = families(lesson.train_tasks)
        assert len(chosen) == 5
        assert lesson.test_tasks == tuple(task for task in examined if task.family not in chosen)


def test_an_all_task_model_has_seen_what_it_is_examined_on(plan: Planner) -> None:
    pool, examined = tasks("train", [1] * 9), tasks("test", [2] * 3)
    (lesson,) = plan({"families": 5, "test_tasks": "all"}, pool, examined)
    assert set(lesson.train_tasks) > set(lesson.test_tasks) == set(examined)
    assert len(families(lesson.train_tasks)) == 5 + 3


def test_a_plain_condition_learns_from_the_train_fold(plan: Planner) -> None:
    pool, examined = tasks("train", [2] * 4), tasks("test", [1] * 3)
    (lesson,) = plan(None, pool, examined)
    assert (lesson.folder, lesson.train_tasks, lesson.test_tasks) == ("mlp", pool, examined)


def test_another_runs_controller_is_read_and_nothing_is_trained(plan: Planner) -> None:
    pool, examined = tasks("train", [1] * 4), tasks("test", [1] * 3)
    (lesson,) = plan({"from_run": "runs/other"}, pool, examined)
    assert str(lesson.weights(plan.base["output"])) == "runs/other/controller/mlp"
    config = plan.config({"from_run": "runs/other"})
    assert all_lessons(config, {"train": pool, "test": examined}) == []


def test_training_settings_are_the_studys_with_the_learners_changes(plan: Planner) -> None:
    learner = {"training": {"groups": ["belief"], "epochs": 3}}
    (lesson,) = plan(learner, tasks("train", [1] * 4), tasks("test", [1] * 3))
    assert lesson.settings.groups == ("belief",)
    assert lesson.settings.epochs == 3
    assert lesson.settings.hidden == plan.base["training"]["hidden"]


def test_exploration_covers_every_lesson(plan: Planner) -> None:
    folds = {"train": tasks("train", [1] * 6), "test": tasks("test", [1] * 3)}
    only_train = explored_tasks(plan.config({"families": 5, "draws": 2}), folds)
    assert set(only_train) == set(folds["train"])
    both = explored_tasks(plan.config({"families": 5, "test_tasks": "all"}), folds)
    assert set(both) == {*folds["train"], *folds["test"]}
    assert len(both) == len(set(both))


@pytest.mark.parametrize(
    ("learner", "words"),
    [
        ({"draws": 3}, r"learner\.families is null"),
        ({"families": 0}, r"learner\.families is 0"),
        ({"families": 2, "draws": 0}, r"learner\.draws is 0"),
        ({"folds": 3}, "needs test_tasks=other_folds"),
        ({"families": 2, "drawn_from": "train_and_test", "test_tasks": "all"}, "use test_tasks=none"),
        ({"test_tasks": "some"}, r"variants.*test_tasks"),
    ],
)
def test_wrong_learners_are_refused(plan: Planner, learner: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        plan.config(learner)
    assert "\n" not in str(refused.value)


def test_more_families_than_there_are_is_an_error_naming_the_variant(plan: Planner) -> None:
    with pytest.raises(UserError, match=r"variants\.taught\.learner\.families is 9, but there are 4"):
        plan({"families": 9, "draws": 2}, tasks("train", [2] * 4), tasks("test", [1] * 3))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"certified": ["taught"]}, "several models or has seen test tasks"),
        ({"contrasts": {"x": ["taught", "nobody"]}}, r"contrasts\.x names 'nobody'"),
        ({"conditions": ["taught", "a#b"]}, "stand for something in a name"),
        ({"transfer": True}, "no arms to transfer between"),
    ],
)
def test_studies_that_cannot_be_are_refused(plan: Planner, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        plan.config({"families": 2, "draws": 2}, **changes)


def test_only_learned_controllers_have_learners(plan: Planner) -> None:
    with pytest.raises(UserError, match="only mlp and mlp_vote are trained"):
        parse({**plan.base, "variants": {"taught": {"controller": "rules", "learner": {}}}})
