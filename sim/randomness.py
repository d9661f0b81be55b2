"""Counter-based random numbers over hashed 64-bit keys, computed for a whole batch at once.

A key names its use: (purpose, task, seed, round, action, draw). The same key gives the same numbers whatever
the batch, the order of evaluation or the resume, which is what makes counterfactual branches comparable.
Nothing here holds state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy  # its parts load at first use, which keeps start-up short

Keys: TypeAlias = npt.NDArray[np.uint64]
Part: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.uint64] | np.uint64 | int

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def text_key(text: str) -> int:
    """64-bit hash of a text, stable across processes and platforms."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def text_keys(texts: Iterable[str]) -> Keys:
    """64-bit hashes of several texts, shape (n,)."""
    return np.array([text_key(text) for text in texts], dtype=np.uint64)


def mix(x: Keys) -> Keys:
    """SplitMix64's finaliser: a bijection of 64-bit words whose output bits all depend on all input bits."""
    x = x ^ (x >> np.uint64(30))
    x = x * _MIX_1
    x = x ^ (x >> np.uint64(27))
    x = x * _MIX_2
    return x ^ (x >> np.uint64(31))


def fold(key: Keys, part: Part) -> Keys:
    """The key extended by one more part; shapes broadcast."""
    word = np.atleast_1d(np.asarray(part)).astype(np.uint64)
    return mix((key + _GOLDEN) ^ mix(word + _GOLDEN))


def keys(purpose: str, *parts: Part | str) -> Keys:
    """64-bit keys for a purpose and any number of integer (or text) parts; array parts broadcast together."""
    key = np.array([text_key(purpose)], dtype=np.uint64)
    for part in parts:
        key = fold(key, np.uint64(text_key(part)) if isinstance(part, str) else part)
    return key


def bits(key: Keys, n: int) -> Keys:
    """n independent 64-bit words per key, shape (*key.shape, n)."""
    steps = np.arange(1, n + 1, dtype=np.uint64) * _GOLDEN
    return mix(key[..., None] + steps)


def uniform(key: Keys, n: int) -> npt.NDArray[np.float64]:
    """n uniforms in the open interval (0, 1) per key, shape (*key.shape, n)."""
    return ((bits(key, n) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normal(key: Keys, n: int) -> npt.NDArray[np.float64]:
    """n standard normals per key, shape (*key.shape, n)."""
    values: npt.NDArray[np.float64] = scipy.special.ndtri(uniform(key, n))
    return values


def integers(key: Keys, n: int, high: int) -> npt.NDArray[np.int64]:
    """n integers uniform on {0, ..., high-1} per key, shape (*key.shape, n)."""
    return (uniform(key, n) * high).astype(np.int64)
