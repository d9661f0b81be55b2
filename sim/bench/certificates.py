"""Speed of the certificates: thresholds of a million scores against the libraries that compute them too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformal import ThresholdGate, fit, order_statistic
from sim.bench.measure import Measurement, repeated, seconds


def measure(reduced: bool) -> Iterator[Measurement]:
    """Fit and accept; the same order statistic by crepes (which sorts too) as a ratio of wall times."""
    count = 10_000 if reduced else 100_000
    rng = np.random.default_rng(0)
    scores = rng.random((count, 10))
    reached = np.ones_like(scores, bool)
    units = [f"family-{i}" for i in range(count)]
    value, low, high = repeated(
        lambda: seconds(lambda: fit("roundwise", scores, reached, 0.1, units=units)), 3
    )
    yield Measurement(
        "certificates", f"fit of {10 * count:,} scores over 10 rounds", value, low, high, "s", "< 1"
    )
    thresholds = fit("roundwise", scores, reached, 0.1, units=units)
    regrets = rng.random((count, 4))
    regrets -= regrets.min(1, keepdims=True)
    proposal, admissible = rng.integers(4, size=count), np.ones((count, 4), bool)
    gate = ThresholdGate(thresholds)
    value, low, high = repeated(
        lambda: count / seconds(lambda: gate.accept(1, proposal, regrets, admissible)), 5
    )
    yield Measurement("certificates", "proposals accepted or replaced a second", value, low, high, "1/s")
    yield _against_crepes(rng.random(10 * count))


def _against_crepes(scores: np.ndarray) -> Measurement:
    """Wall time of crepes over ours for one threshold of all the scores, alternated in one run."""
    from crepes import ConformalRegressor

    def theirs() -> float:
        model = ConformalRegressor()
        return seconds(lambda: model.fit(residuals=scores).predict_int(np.zeros(1), confidence=0.9))

    def ratio() -> float:
        return theirs() / seconds(lambda: order_statistic(scores, 0.1))

    value, low, high = repeated(ratio, 5)
    return Measurement(
        "certificates", f"crepes / ours, one threshold of {len(scores):,} scores", value, low, high, "×"
    )
