"""Full-text search."""

from __future__ import annotations

from ._corpus import documents, words

PACKAGES = ("bm25s",)


def search_corpus(query: str, most: int = 5) -> list[tuple[str, float]]:
    """Titles of the documents of the local corpus that match a query best, with their BM25 scores."""
    import bm25s

    texts = documents()
    index = bm25s.BM25()
    index.index([words(f"{title} {text}") for title, text in texts.items()], show_progress=False)
    known = {word for title, text in texts.items() for word in words(f"{title} {text}")}
    wanted = [word for word in words(query) if word in known]
    if not wanted:
        return []
    ranked = sorted(zip(texts, index.get_scores(wanted), strict=True), key=lambda pair: -pair[1])
    return [(title, round(float(score), 3)) for title, score in ranked[:most] if score > 0]
