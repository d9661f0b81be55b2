"""Position bias: exact for models that like a position, an option, or neither."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from sim.engines.protocol import BadReply, ChooseRequest, EngineError
from sim.engines.scripted import ScriptedEngine
from sim.tasks import demo_task
from sim.tasks.task import HiddenProfileTask
from sim.worlds.branch_store import BranchStore
from sim.worlds.language import LanguageSettings, LanguageWorld
from sim.worlds.position_bias import PositionBiasRow, cyclic_orders, measure_position_bias
from sim.worlds.protocol import WorldFailure

TASK = demo_task()
Weigh = Callable[[ChooseRequest], tuple[float, ...]]


def measured(weigh: Weigh, *tasks: HiddenProfileTask) -> list[PositionBiasRow]:
    """The bias of a scripted model."""
    engine = ScriptedEngine(lambda request: "", weigh)
    world = LanguageWorld(engine, LanguageSettings(), BranchStore(), horizon=1)
    return asyncio.run(measure_position_bias(world, tasks or (TASK,)))


def second(request: ChooseRequest) -> tuple[float, ...]:
    """A model that always picks the second of the list."""
    return tuple(0.8 if i == 1 else 0.2 / (len(request.labels) - 1) for i in range(len(request.labels)))


def knows(request: ChooseRequest) -> tuple[float, ...]:
    """A model that finds the right option wherever it stands."""
    lines = request.turns[-1].content.splitlines()
    right = next(line[0] for line in lines if line[1:] == f". {TASK.correct_answer}")
    return tuple(float(label == right) for label in request.labels)


def test_cyclic_orders_put_each_option_once_at_each_position() -> None:
    orders = np.array(cyclic_orders(4))
    assert orders[0].tolist() == [0, 1, 2, 3]
    for lines in (orders, orders.T):
        assert [sorted(line) for line in lines.tolist()] == [[0, 1, 2, 3]] * 4


def test_a_model_that_likes_a_position_shows_it_and_scores_by_chance() -> None:
    (row,) = measured(second)
    size = TASK.n_options
    assert row.picks == [float(place == 1) for place in range(size)]
    assert row.accuracy_over_orders == pytest.approx(1 / size)
    assert row.accuracy_published == float(TASK.answer_index == 1)
    assert (row.n_answers, row.unreadable) == (size * TASK.n_agents, 0)


def test_a_model_that_knows_picks_every_position_equally() -> None:
    (row,) = measured(knows)
    assert row.picks == pytest.approx([1 / TASK.n_options] * TASK.n_options)
    assert row.accuracy_over_orders == row.accuracy_published == 1


def test_numbers_of_options_stand_apart_and_unreadable_answers_are_wrong() -> None:
    fewer = msgspec.structs.replace(
        TASK,
        id="fewer",
        possible_answers=TASK.possible_answers[:2],
        correct_answer=TASK.possible_answers[0],
        evidence=None,
    )

    def weigh(request: ChooseRequest) -> tuple[float, ...]:
        if len(request.labels) == 2:
            raise BadReply("no log-probabilities")
        return second(request)

    unread, read = measured(weigh, TASK, fewer)
    assert (unread.n_options, read.n_options) == (2, TASK.n_options)
    assert unread.unreadable == unread.n_answers == 2 * TASK.n_agents
    assert unread.picks == [None, None]
    assert unread.accuracy_over_orders == 0
    assert msgspec.json.decode(msgspec.json.encode(read), type=PositionBiasRow) == read


def test_an_engine_that_gives_up_is_no_measurement() -> None:
    def gone(request: ChooseRequest) -> tuple[float, ...]:
        raise EngineError("status 500")

    with pytest.raises(WorldFailure, match="status 500"):
        measured(gone)
