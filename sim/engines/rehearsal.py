"""An engine that answers at once with filler, and counts what a real one would have had to read and write.

It stands in for a model where a study's cost is planned. Tokens are estimated from pieces of text, and what a
prefix cache would have held is simulated block by block, as vLLM does it; nothing here knows of discussions.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import msgspec

from sim.engines.protocol import Capabilities, ChatReply, ChatRequest, ChooseReply, ChooseRequest, Turn, Usage

TOKENS_PER_PIECE = 1.15
"""Tokens of a word, number or punctuation mark in our prompts, by SmolLM2's tokenizer (tests/sim/engines)."""

BLOCK = 32
"""Tokens of a block of the prefix cache; only whole blocks are shared."""

_PIECES = re.compile(r"\w+|[^\w\s]")
_FILLER = ("the", "group", "should", "weigh", "this", "clue", "before", "it", "decides", "on", "an", "option")


class RehearsalEngine:
    """Implements `Engine`. Every text is as long as its bound allows, so costs are upper bounds; probabilities
    are nearly even, so that no discussion agrees early. Equal requests get equal answers."""

    def __init__(self, model: str) -> None:
        self._capabilities = Capabilities(
            model=model, revision=None, seeds=True, structured=True, label_logprobs=True, system_role=True,
            alternation=False, thinking_switch=True, cached_tokens=True,
        )  # fmt: skip
        self._blocks: set[bytes] = set()

    @property
    def capabilities(self) -> Capabilities:
        """Everything: a plan is about the work, not about a server."""
        return self._capabilities

    async def chat(self, request: ChatRequest) -> ChatReply:
        """Filler up to the bound; words that differ by request, so that texts do too."""
        words = [_FILLER[byte % len(_FILLER)] for byte in _bytes(request, request.max_tokens)]
        return ChatReply(" ".join(words), "length", self._usage(request.turns, request.max_tokens))

    async def choose(self, request: ChooseRequest) -> ChooseReply:
        """Nearly even probabilities, a little apart by request."""
        weights = [1000 + byte for byte in _bytes(request, len(request.labels))]
        total = sum(weights)
        return ChooseReply(tuple(weight / total for weight in weights), self._usage(request.turns, 1))

    def _usage(self, turns: tuple[Turn, ...], completion: int) -> Usage:
        pieces = [piece for turn in turns for piece in (turn.role, *_PIECES.findall(turn.content))]
        cached = self._found(pieces)
        return Usage(
            prompt_tokens=round(len(pieces) * TOKENS_PER_PIECE),
            completion_tokens=completion,
            cached_tokens=round(cached * TOKENS_PER_PIECE),
        )

    def _found(self, pieces: list[str]) -> int:
        """Pieces at the start of a prompt that an unbounded cache holds already; keeps the others."""
        size = round(BLOCK / TOKENS_PER_PIECE)
        hashes = list(_chained(pieces, size))
        hits = next((i for i, block in enumerate(hashes) if block not in self._blocks), len(hashes))
        self._blocks.update(hashes[hits:])
        return hits * size

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def _chained(pieces: list[str], size: int) -> Iterator[bytes]:
    """A hash for every whole block, of it and all before it."""
    state = hashlib.blake2b(digest_size=16)
    for start in range(0, len(pieces) - size + 1, size):
        state.update("\0".join(pieces[start : start + size]).encode())
        yield state.copy().digest()


def _bytes(request: ChatRequest | ChooseRequest, n: int) -> bytes:
    """n bytes that are a function of the request."""
    return hashlib.shake_128(msgspec.json.encode(request)).digest(n)
