"""The server client against vLLM itself: what the canary finds, what binds, what is cached, what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import psutil
import pytest

from sim.engines.models import ModelConfig, check_found
from sim.engines.openai_server import OpenAIServerEngine, ServerEngineConfig
from sim.engines.protocol import ChatRequest, ChooseRequest, EngineError, Turn
from sim.engines.transformers_local import LocalEngineConfig, TransformersEngine
from sim.errors import UserError
from sim.worlds.language import answer_schema, parse_answer

pytestmark = pytest.mark.vllm
OpenEngine = Callable[..., AbstractAsyncContextManager[OpenAIServerEngine]]
RULES = Turn("system", "You are one of four people who choose a flat together. " * 8)


def asked(question: str, **more: Any) -> ChatRequest:
    """A chat request."""
    return ChatRequest((RULES, Turn("user", question)), **{"max_tokens": 12, "key": 3, **more})


def test_the_canary_finds_what_this_server_can(engine: OpenEngine) -> None:
    async def found() -> None:
        async with engine() as client:
            seen = client.capabilities
            assert not seen.seeds, "a seed can end vLLM's CPU engine"
            assert seen.structured
            assert seen.label_logprobs
            assert seen.system_role
            assert not seen.alternation
            assert not seen.thinking_switch
            assert seen.cached_tokens
            check_found(ModelConfig("smollm2_135m", "smollm2_135m", 4096), seen)

    asyncio.run(found())


def test_label_probabilities_are_those_of_the_local_engine(engine: OpenEngine) -> None:
    questions = [f"Flat {k} is quiet. Which flat is best, A, B or C? Answer with a letter." for k in "ABC"]
    requests = [ChooseRequest((RULES, Turn("user", question)), ("A", "B", "C")) for question in questions]

    async def both() -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
        async with engine() as client:
            served = [(await client.choose(request)).probabilities for request in requests]
        model = ModelConfig("smollm2_135m", "smollm2_135m", 4096)
        async with TransformersEngine(model, LocalEngineConfig()) as local:
            return served, [(await local.choose(request)).probabilities for request in requests]

    served, local = asyncio.run(both())
    for one, other in zip(served, local, strict=True):
        assert abs(sum(one) - 1) < 1e-9
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 0.03  # bfloat16, two kernels
    assert len(set(served)) == 3


def test_a_schema_binds_even_against_the_prompt(engine: OpenEngine) -> None:
    async def replies() -> list[str]:
        async with engine() as client:
            schema = answer_schema("ABC", reason=False)
            requests = [
                asked(f"Write a poem about number {i}, no JSON.", max_tokens=48, key=i, schema=schema)
                for i in range(8)
            ]
            return [reply.text for reply in await asyncio.gather(*map(client.chat, requests))]

    for text in asyncio.run(replies()):
        assert parse_answer(text, "ABC") is not None, text
        assert set(json.loads(text)) == {"answer", "confidence"}


def test_repeated_prefixes_come_from_the_cache_in_whole_blocks(engine: OpenEngine) -> None:
    async def cached() -> tuple[int, int, int]:
        async with engine() as client:
            prefix = "The flat on the hill has a view of the sea. " * 20
            first = await client.chat(asked(f"{prefix} One?"))
            again = await client.chat(asked(f"{prefix} Two?"))
            return again.usage.prompt_tokens, first.usage.cached_tokens or 0, again.usage.cached_tokens or 0

    prompt, before, after = asyncio.run(cached())
    assert after % 32 == 0
    assert before < after
    assert prompt - 64 <= after < prompt


def test_token_bounds_are_kept_and_said(engine: OpenEngine) -> None:
    async def replies() -> list[tuple[int, str]]:
        async with engine() as client:
            found = [await client.chat(asked("Tell a long story.", max_tokens=n)) for n in (1, 5, 20)]
            return [(reply.usage.completion_tokens, reply.finish_reason) for reply in found]

    assert asyncio.run(replies()) == [(1, "length"), (5, "length"), (20, "length")]


def test_a_prompt_beyond_the_context_is_refused_at_once(engine: OpenEngine) -> None:
    async def refused() -> None:
        async with engine() as client:
            with pytest.raises(EngineError, match="status 400"):
                await asyncio.wait_for(client.chat(asked("word " * 6000)), 20)

    asyncio.run(refused())


def test_another_models_name_is_refused_with_the_names_there_are(engine: OpenEngine, place: Any) -> None:
    async def opened() -> None:
        async with OpenAIServerEngine(
            ModelConfig("qwen3_8b", "Qwen/Qwen3-8B", 4096), ServerEngineConfig(urls=(place.url,))
        ):
            pass

    with pytest.raises(UserError, match="serves smollm2_135m"):
        asyncio.run(opened())


def test_sixty_four_at_once_all_come_back(engine: OpenEngine) -> None:
    async def many() -> int:
        async with engine() as client:
            requests = [asked(f"Say {i}.", key=i, affinity=str(i % 4)) for i in range(64)]
            return len({id(reply) for reply in await asyncio.gather(*map(client.chat, requests))})

    assert asyncio.run(many()) == 64


def test_a_server_that_stalls_is_waited_out_and_its_requests_asked_again(
    engine: OpenEngine, place: Any
) -> None:
    group = place.running.process.pid

    async def stalled() -> int:
        async with engine(timeout_s=10.0, attempts=20, patience_s=120.0) as client:
            await client.chat(asked("Warm up."))
            os.killpg(group, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(15, os.killpg, group, signal.SIGCONT)
            reply = await client.chat(asked("Are you still there?"))
            return reply.usage.retries

    try:
        assert asyncio.run(stalled()) >= 1
    finally:
        os.killpg(group, signal.SIGCONT)


def test_a_dead_engine_behind_a_living_server_is_an_error_not_a_wait(engine: OpenEngine, place: Any) -> None:
    async def asked_of_the_dead() -> None:
        async with engine(attempts=3, patience_s=20.0) as client:
            os.kill(engine_core(place.running.process.pid), signal.SIGKILL)
            with pytest.raises(EngineError):
                await asyncio.wait_for(client.chat(asked("Anyone?")), 60)

    asyncio.run(asked_of_the_dead())
    assert not place.running.healthy()


def engine_core(server: int) -> int:
    """Process id of the engine behind a server."""
    (found,) = [
        child for child in psutil.Process(server).children() if "EngineCore" in " ".join(child.cmdline())
    ]
    return int(found.pid)
