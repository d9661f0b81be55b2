"""Speed of the certificates: thresholds of a million scores against the libraries that compute them too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from conformal import ThresholdGate, fit, order_statistic
from sim.bench.config import BenchConfig
from sim.bench.measure import Measurement, repeated, seconds

Scores: TypeAlias = npt.NDArray[np.float64]


def measure(config: BenchConfig) -> Iterator[Measurement]:
    """Fit and accept; the same order statistic by crepes (which sorts too) as a ratio of wall times."""
    count = 10_000 if config.reduced else 100_000
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
    scores = rng.random(10 * count)
    for name, theirs in (("crepes", _crepes), ("MAPIE", _mapie)):
        yield _against(name, theirs, scores)


def _against(name: str, theirs: Callable[[Scores], object], scores: Scores) -> Measurement:
    """Wall time of a library over ours for one threshold of all the scores, alternated in one run."""

    def ratio() -> float:
        return seconds(lambda: theirs(scores)) / seconds(lambda: order_statistic(scores, 0.1))

    value, low, high = repeated(ratio, 5)
    what = f"{name} / ours, one threshold of {len(scores):,} scores"
    return Measurement("certificates", what, value, low, high, "×", "≥ 1")


def _crepes(scores: Scores) -> object:
    from crepes import ConformalRegressor

    return ConformalRegressor().fit(residuals=scores).predict_int(np.zeros(1), confidence=0.9)


def _mapie(scores: Scores) -> object:
    """The scores as absolute residuals of a model that predicts zero."""
    from mapie.regression import SplitConformalRegressor
    from sklearn.dummy import DummyRegressor

    zero = DummyRegressor(strategy="constant", constant=0.0).fit(np.zeros((2, 1)), np.zeros(2))
    model = SplitConformalRegressor(zero, confidence_level=0.9, conformity_score="absolute", prefit=True)
    model.conformalize(np.zeros((len(scores), 1)), scores)
    return model.predict_interval(np.zeros((1, 1)))
