"""Training-conditional ranks: coverage of at least 1 - alpha with probability 1 - delta over the calibration
draw.

Source: METHOD 5. Given calibration, coverage of continuous scores follows Beta(k, n + 1 - k); with ties it is
stochastically larger. Needs independent episodes, not mere exchangeability.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import scipy  # its parts load at first use, which keeps start-up short

from conformal.ranks import Level, exact_level
from conformal.scores import IntArray


def pac_ranks(n: npt.ArrayLike, alpha: Level, delta: Level) -> IntArray:
    """Smallest k with BinomCDF(k - 1; n, 1 - alpha) >= 1 - delta for every n; k = n + 1 stands for +inf."""
    sizes, inverse = np.unique(np.asarray(n, dtype=np.int64), return_inverse=True)
    found = np.array([_pac_rank(int(size), alpha, delta) for size in sizes], dtype=np.int64)
    return found[inverse].reshape(np.shape(n))


def _pac_rank(n: int, alpha: Level, delta: Level) -> int:
    enough = scipy.stats.binom.cdf(np.arange(n), n, float(1 - exact_level(alpha))) >= float(
        1 - exact_level(delta)
    )
    return int(np.argmax(enough)) + 1 if enough.any() else n + 1


def pac_smallest_n(alpha: Level, delta: Level) -> int:
    """Fewest scores with a finite threshold, ceil(log delta / log(1 - alpha)): 22 at alpha = delta = 0.1."""
    return math.ceil(math.log(float(exact_level(delta))) / math.log(float(1 - exact_level(alpha))))


def coverage_confidence(n: int, k: int, alpha: Level) -> float:
    """P(training-conditional coverage >= 1 - alpha) for the k-th of n continuous scores."""
    return 1.0 if k > n else float(scipy.stats.beta.sf(float(1 - exact_level(alpha)), k, n + 1 - k))
