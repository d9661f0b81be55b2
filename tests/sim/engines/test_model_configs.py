"""Every model of `conf/model`: it parses, sends its sampling, and its architecture loads and discusses."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from sim.discussion.actions import interventions
from sim.discussion.ending import Votes
from sim.discussion.public import PublicView
from sim.discussion.routing import candidates, make_router
from sim.engines.models import ModelConfig, parse_model
from sim.engines.protocol import ChatRequest, ChooseRequest, Turn
from sim.engines.transformers_local import LocalEngineConfig, TransformersEngine
from sim.errors import UserError
from sim.launch import CONF, composed
from sim.tasks import demo_task
from sim.worlds.branch_store import BranchStore
from sim.worlds.language import LanguageSettings, LanguageWorld
from sim.worlds.protocol import Episodes

HUB_IDS = {
    "qwen3_0_6b": "Qwen/Qwen3-0.6B",
    "qwen3_1_7b": "Qwen/Qwen3-1.7B",
    "qwen3_4b": "Qwen/Qwen3-4B",
    "qwen3_8b": "Qwen/Qwen3-8B",
    "qwen3_14b": "Qwen/Qwen3-14B",
    "qwen3_30b_a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3_32b": "Qwen/Qwen3-32B",
    "qwen2_5_32b": "Qwen/Qwen2.5-32B-Instruct",
    "mistral_small_24b": "mistralai/Mistral-Small-24B-Instruct-2501",
    "phi_4": "microsoft/phi-4",
    "llama_3_1_8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama_3_3_70b": "meta-llama/Llama-3.3-70B-Instruct",
    "gemma_3_27b": "google/gemma-3-27b-it",
}
ARCHITECTURES = {  # configuration class: (a model of the study that has it, its constraint class)
    "LlamaConfig": ("llama_3_1_8b", "dated"),
    "Qwen2Config": ("qwen2_5_32b", "native"),
    "Qwen3Config": ("qwen3_8b", "thinking"),
    "Qwen3MoeConfig": ("qwen3_30b_a3b", "thinking"),
    "MistralConfig": ("mistral_small_24b", "alternating"),
    "Phi3Config": ("phi_4", "native"),
    "Gemma3Config": ("gemma_3_27b", "folded"),
    "GemmaConfig": ("gemma_3_27b", "refused"),
}


@pytest.fixture(scope="module")
def models() -> dict[str, ModelConfig]:
    """Every model of the configuration, by file name."""
    names = [path.stem for path in CONF.glob("model/[a-z]*.yaml")]
    return {name: parse_model(composed(f"model={name}")["model"]) for name in sorted(names)}


def test_the_study_has_all_its_models(models: dict[str, ModelConfig]) -> None:
    assert set(models) == {*HUB_IDS, "gpt_4_1_mini", "claude_3_haiku", "smollm2_135m"}
    assert {name: models[name].id for name in HUB_IDS} == HUB_IDS
    assert all(model.name == name for name, model in models.items())


def test_thinking_is_off_in_every_model_that_thinks(models: dict[str, ModelConfig]) -> None:
    thinking = {name for name in models if name.startswith("qwen3_")}
    assert {n for n, m in models.items() if m.template.arguments.get("enable_thinking") is False} == thinking


def test_weights_fit_the_gpus_they_are_given(models: dict[str, ModelConfig]) -> None:
    billions = {"qwen3_30b_a3b": 30.5, "qwen3_32b": 32.8, "qwen2_5_32b": 32.8, "llama_3_3_70b": 70.6}
    billions |= {"gemma_3_27b": 27.4, "mistral_small_24b": 23.6, "qwen3_14b": 14.8, "phi_4": 14.7}
    for name, size in billions.items():
        assert 2 * size < 0.9 * 80 * models[name].tensor_parallel * 0.85, name


def test_sampling_of_a_served_model_is_neutral_and_complete(models: dict[str, ModelConfig]) -> None:
    for name, model in models.items():
        neutral = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        assert model.sampling.sent() == ({} if model.endpoint else neutral), name


def _turns(question: str) -> tuple[Turn, ...]:
    return Turn("system", "The rules of the group are the same for all of its members."), Turn(
        "user", question
    )


def test_keys_come_from_the_environment_only() -> None:
    for path in CONF.glob("model/*.yaml"):
        assert "sk-" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"context": 0}, "model.context is 0"),
        ({"tensor_parallel": 0}, "model.tensor_parallel is 0"),
        ({"contxt": 5}, "contxt"),
        ({"dtype": "float8"}, "float8"),
        ({"template": {"system": "maybe"}}, "maybe"),
        ({"endpoint": {"url": "api.example.org", "key_variable": "KEY"}}, "must start with http"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_model({"name": "m", "id": "m", "context": 10, **change})


def configured(models: dict[str, ModelConfig], name: str, weights: ModelConfig) -> ModelConfig:
    """A model of the study with the weights of a random one."""
    return msgspec.structs.replace(models[name], id=weights.id, dtype=weights.dtype)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_loads_and_discusses(
    architecture: str, models: dict[str, ModelConfig], random_model: Callable[[str, str], ModelConfig]
) -> None:
    name, template = ARCHITECTURES[architecture]
    model = configured(models, name, random_model(architecture, template))
    settings = LanguageSettings(max_words=6, max_tokens=8)
    task = demo_task()

    async def discuss() -> tuple[PublicView, Votes]:
        async with TransformersEngine(model, LocalEngineConfig(threads=1)) as engine:
            world = LanguageWorld(engine, settings, BranchStore(), horizon=2)
            state = await world.open(Episodes((task,), np.zeros(1, np.int64)))
            every = candidates(world.view(state), interventions(False), make_router("action_conditional"))
            branches = await world.branch(state, every)
            return world.view(branches), await world.final_votes(world.select(branches, np.array([0])))

    view, votes = asyncio.run(discuss())
    assert view.beliefs.shape == (4, task.n_agents, task.n_options)
    assert abs(view.beliefs.sum(-1) - 1).max() < 1e-9
    assert not view.stale.any()
    assert len({record[0].text for record in view.transcripts}) > 1, "branches must differ"
    assert votes.choice.shape == (1, task.n_agents)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_batch_gives_what_single_requests_give(
    architecture: str, models: dict[str, ModelConfig], random_model: Callable[[str, str], ModelConfig]
) -> None:
    name, template = ARCHITECTURES[architecture]
    model = configured(models, name, random_model(architecture, template))
    asked = [ChooseRequest(_turns("word " * n), ("A", "B", "C"), "t") for n in (9, 30, 14)]
    written = [ChatRequest(_turns("word " * n), 6, key=n, affinity="t") for n in (9, 30, 14)]

    async def together() -> tuple[list[tuple[float, ...]], list[str]]:
        async with TransformersEngine(model, LocalEngineConfig(threads=1)) as engine:
            chosen = await asyncio.gather(*(engine.choose(request) for request in asked))
            texts = await asyncio.gather(*(engine.chat(request) for request in written))
            return [reply.probabilities for reply in chosen], [reply.text for reply in texts]

    async def alone() -> tuple[list[tuple[float, ...]], list[str]]:
        async with TransformersEngine(model, LocalEngineConfig(threads=1)) as engine:
            chosen = [(await engine.choose(request)).probabilities for request in asked]
            return chosen, [(await engine.chat(request)).text for request in written]

    (batched, texts), (single, lone_texts) = asyncio.run(together()), asyncio.run(alone())
    assert texts == lone_texts
    for one, other in zip(batched, single, strict=True):
        assert all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(one, other, strict=True))
