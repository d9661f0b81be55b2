"""Asks vLLM in this process and a server the same, and writes what came back; run by the environment of vLLM."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil

from sim.engines.models import ModelConfig
from sim.engines.openai_server import OpenAIServerEngine, ServerEngineConfig
from sim.engines.protocol import ChatRequest, ChooseRequest, Engine, EngineError, Turn
from sim.engines.vllm_inprocess import InprocessEngine, InprocessEngineConfig
from sim.worlds.language import answer_schema

MODEL = ModelConfig("smollm2_135m", "smollm2_135m", 4096)
RULES = Turn("system", "You are one of four people who choose a flat together. " * 8)


async def probabilities(engine: Engine) -> list[tuple[float, ...]]:
    """Label probabilities of three questions."""
    questions = [f"Flat {k} is quiet. Which flat is best, A, B or C? Answer with a letter." for k in "ABC"]
    asked = [ChooseRequest((RULES, Turn("user", question)), ("A", "B", "C")) for question in questions]
    return [(await engine.choose(request)).probabilities for request in asked]


async def failure(engine: Engine, words: int) -> EngineError:
    """What a request of so many words fails with."""
    try:
        await engine.chat(ChatRequest((Turn("user", "word " * words),), max_tokens=4, key=1))
    except EngineError as error:
        return error
    raise AssertionError("the request was answered")


async def found(url: str) -> dict[str, Any]:
    """Everything the test looks at; the engine's process is killed at the end."""
    config = InprocessEngineConfig(block_size=32, max_num_seqs=64, arguments={"enforce_eager": True})
    async with OpenAIServerEngine(MODEL, ServerEngineConfig(urls=(url,))) as server:
        served = await probabilities(server)
    async with InprocessEngine(MODEL, config) as engine:
        here = await probabilities(engine)
        schema = answer_schema("ABC", reason=False)
        turns = (RULES, Turn("user", "Write a poem."))
        bound = await engine.chat(ChatRequest(turns, max_tokens=48, key=1, schema=schema))
        again = await engine.chat(ChatRequest(turns, max_tokens=4, key=1))
        too_long = await failure(engine, 6000)
        for child in psutil.Process().children(recursive=True):
            if "VLLM::" in " ".join(child.cmdline()):
                os.kill(child.pid, signal.SIGKILL)
        down = await failure(engine, 5)
        return {
            "served": served,
            "here": here,
            "schema": bound.text,
            "cached": again.usage.cached_tokens,
            "too_long": str(too_long),
            "down": type(down).__name__,
            "seeds": engine.capabilities.seeds,
        }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(asyncio.run(found(sys.argv[1]))), encoding="utf-8")
