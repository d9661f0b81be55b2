"""Public records to test on: random but valid ones, and small ones written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sim.discussion.public import PublicView, opening
from sim.randomness import keys

MakeView = Callable[..., PublicView]


def make(beliefs: object, **changes: object) -> PublicView:
    """An opening record with the given beliefs (B, N, K) and any field replaced."""
    given = np.asarray(beliefs, dtype=np.float64)
    view = opening(keys("test", np.arange(len(given))), given, horizon=8, max_words=1.0)
    return replace(view, **changes)  # type: ignore[arg-type]


def scrambled(seed: int, size: int = 40, n_agents: int = 4, n_options: int = 3) -> PublicView:
    """A record whose every field is random within its range."""
    rng = np.random.default_rng(seed)
    beliefs = rng.dirichlet(np.full(n_options, rng.choice([0.05, 1.0, 10.0])), (size, n_agents))
    beliefs = np.maximum(beliefs, 1e-12)
    return make(
        beliefs / beliefs.sum(-1, keepdims=True),
        words=rng.random((size, n_agents)) * rng.integers(0, 2, (size, n_agents)),
        evidence=rng.random((size, n_agents)),
        novelty=rng.random(size),
        overlap=rng.random(size),
        shift=rng.random(size),
        rounds=rng.integers(0, 8, size),
        last_speaker=rng.integers(-1, n_agents, size),
        voted=rng.random(size) < 0.2,
    )


@pytest.fixture(name="make_view", scope="session")
def _make_view() -> MakeView:
    return make


@pytest.fixture(name="random_view", scope="session")
def _random_view() -> Callable[..., PublicView]:
    return scrambled
