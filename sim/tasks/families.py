"""Task families: tasks that share a fact belong together and are never divided by a split (METHOD 3).

Knows tasks and nothing of where they come from.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import scipy  # its parts load at first use, which keeps start-up short


def normalised(text: str) -> str:
    """A text without case, punctuation, or differences of spacing and Unicode form."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def family_names(ids: Sequence[str], facts: Sequence[Iterable[str]]) -> tuple[str, ...]:
    """One family name per task, named after its first member in the order given.

    `facts` holds the texts of each task (description and clues). Tasks connected through any normalised text
    they have in common, directly or through other tasks, get the same family.
    """
    tasks_of_edges: list[int] = []
    facts_of_edges: list[int] = []
    number_of: dict[str, int] = {}
    for task, texts in enumerate(facts):
        for text in {normalised(text) for text in texts} - {""}:
            tasks_of_edges.append(task)
            facts_of_edges.append(number_of.setdefault(text, len(number_of)))
    size = len(ids) + len(number_of)
    columns = np.array(facts_of_edges, dtype=np.int64) + len(ids)
    ones = np.ones(len(tasks_of_edges), dtype=np.int8)
    graph = scipy.sparse.coo_array(
        (ones, (np.array(tasks_of_edges, dtype=np.int64), columns)), shape=(size, size)
    )
    labels = scipy.sparse.csgraph.connected_components(graph, directed=False)[1][: len(ids)].tolist()
    first: dict[int, str] = {}
    return tuple(first.setdefault(label, f"family-{name}") for name, label in zip(ids, labels, strict=True))
