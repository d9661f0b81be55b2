"""Real models of this process, with random weights: two in one group, each answering for its own seats only; and
HiddenBench's chat of own turns under every kind of template.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from sim.discussion.actions import free_messages
from sim.discussion.routing import candidates, make_router
from sim.engines.models import ModelConfig
from sim.engines.transformers_local import LocalEngineConfig, TransformersEngine
from sim.records.rows import CallRow
from sim.tasks import demo_task
from sim.worlds.branch_store import BranchStore
from sim.worlds.group import Group
from sim.worlds.language import LanguageSettings, LanguageWorld
from sim.worlds.protocol import Episodes

TASK = demo_task()
ONE = Episodes((TASK,), np.zeros(1, np.int64))


def test_each_model_answers_for_its_own_seats(random_model: Callable[[str, str], ModelConfig]) -> None:
    models = [random_model("Qwen3Config", "alternating"), random_model("LlamaConfig", "native")]
    settings = LanguageSettings(max_words=8, max_tokens=6)
    calls: list[CallRow] = []

    async def held() -> tuple[list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]], str]:
        async with (
            TransformersEngine(models[0], LocalEngineConfig()) as first,
            TransformersEngine(models[1], LocalEngineConfig()) as second,
        ):
            group = Group({"first": first, "second": second}, ("first", "second"), "none")
            mixed = LanguageWorld(first, settings, BranchStore(), 2, calls.append, group)
            state = await mixed.open(ONE)
            options = candidates(state.view, free_messages(), make_router("round_robin"))
            after = await mixed.branch(state, options)
            alone = [
                (await LanguageWorld(engine, settings, BranchStore(), 2).open(ONE)).view.beliefs[0]
                for engine in (first, second)
            ]
            return [state.view.beliefs[0], *alone], after.view.transcripts[0][0].text

    (mixed, first, second), _ = asyncio.run(held())
    assert not np.allclose(first, second, atol=1e-4)
    for agent in range(TASK.n_agents):
        np.testing.assert_allclose(mixed[agent], (first, second)[agent % 2][agent], atol=1e-4)
    assert {(call.agent % 2, call.model) for call in calls} == {(0, models[0].name), (1, models[1].name)}


@pytest.mark.parametrize("template", ["native", "folded", "refused", "alternating", "thinking"])
def test_a_chat_of_own_turns_is_accepted_by_every_kind_of_template(
    template: str, random_model: Callable[[str, str], ModelConfig]
) -> None:
    settings = LanguageSettings(context="last_message", max_words=8, max_tokens=6)
    calls: list[CallRow] = []

    async def spoken() -> int:
        async with TransformersEngine(random_model("LlamaConfig", template), LocalEngineConfig()) as engine:
            world = LanguageWorld(engine, settings, BranchStore(), TASK.n_agents + 1, calls.append)
            state = await world.open(ONE)
            for _ in range(TASK.n_agents + 1):
                options = candidates(world.view(state), free_messages(), make_router("round_robin"))
                state = await world.branch(state, options)
            return len(world.view(state).transcripts[0])

    assert asyncio.run(spoken()) == TASK.n_agents + 1
    assert not [call.error for call in calls if call.error]
    first, second = [c.prompt_tokens for c in calls if c.purpose == "message" and c.agent == 0]
    assert second > first
