"""Agreement with crepes and MAPIE where they are right; ours right where they are wrong."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from crepes import ConformalRegressor
from hypothesis import given, settings
from hypothesis import strategies as st
from mapie.regression import SplitConformalRegressor
from sklearn.base import BaseEstimator, RegressorMixin

from conformal.calibrators import roundwise
from conformal.mondrian import mondrian
from conformal.ranks import order_statistic, rank
from conformal.weighted import weighted_threshold

SCORES = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=150)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Zero(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Predicts 0, or NaN where the covariate is positive."""

    def fit(self, x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> Zero:
        """Nothing to fit."""
        self.n_features_in_ = 1
        return self

    def predict(self, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Zeros, NaN where x > 0."""
        return np.where(np.asarray(x)[:, 0] > 0, np.nan, 0.0)


def crepes_threshold(scores: list[float], alpha: float) -> float:
    """Half-width of crepes' interval."""
    model = ConformalRegressor()
    model.fit(residuals=np.asarray(scores))
    return float(model.predict_int(np.zeros(1), confidence=1 - alpha)[0, 1])


def mapie_threshold(scores: list[float], alpha: float, covariates: list[float] | None = None) -> float:
    """Half-width of MAPIE's interval."""
    x = np.zeros((len(scores), 1)) if covariates is None else np.asarray(covariates)[:, None]
    estimator = Zero().fit(np.zeros((2, 1)), np.zeros(2))
    model = SplitConformalRegressor(
        estimator, confidence_level=1 - alpha, conformity_score="absolute", prefit=True
    )
    model.conformalize(x, np.asarray(scores))
    return float(model.predict_interval(np.zeros((1, 1)))[1].ravel()[1])


@given(SCORES, st.sampled_from([0.5, 0.25, 0.125, 0.05]))
@settings(max_examples=60, deadline=None)
def test_crepes_agrees_where_its_floats_are_right(scores: list[float], alpha: float) -> None:
    assert crepes_threshold(scores, alpha) == order_statistic(scores, alpha)


@given(st.lists(st.floats(0, 1e6), min_size=21, max_size=120), st.sampled_from([0.5, 0.25, 0.1, 0.05]))
@settings(max_examples=25, deadline=None)
def test_mapie_agrees_from_its_smallest_size_on(scores: list[float], alpha: float) -> None:
    assert mapie_threshold(scores, alpha) == order_statistic(scores, alpha)


def test_crepes_gives_up_at_nine_scores_where_the_maximum_is_exact() -> None:
    scores = [float(i) for i in range(1, 10)]
    assert math.isinf(crepes_threshold(scores, 0.1))
    assert order_statistic(scores, 0.1) == 9.0
    assert rank(9, 0.1) == 9


def test_an_unseen_group_is_infinite_with_a_reason_where_crepes_says_zero() -> None:
    model = ConformalRegressor()
    model.fit(residuals=np.arange(1.0, 40), bins=np.zeros(39, int))
    assert model.predict_int(np.zeros(1), bins=np.array([5]), confidence=0.9).tolist() == [[0.0, 0.0]]
    scores, units = np.arange(1.0, 40)[:, None], [str(i) for i in range(39)]
    ours = mondrian(
        lambda mask: roundwise(scores, mask, 0.1, units=units), np.ones((39, 1), bool), np.full((39, 1), "0")
    )
    assert ours.at(1, ["0", "5"]).tolist() == [36.0, np.inf]
    assert "did not occur" in str(ours.reason(1, "5"))


def test_nan_scores_are_refused_where_mapie_drops_them() -> None:
    scores = [float(i) for i in range(1, 40)]
    nan_from_31 = [0.0] * 30 + [1.0] * 9
    assert mapie_threshold(scores, 0.1, nan_from_31) == order_statistic(scores[:30], 0.1) == 28.0
    with pytest.raises(ValueError, match="'task-30'"):
        order_statistic(scores[:30] + [np.nan] * 9, 0.1, episodes=[f"task-{i}" for i in range(39)])


def test_weights_stay_with_their_scores_where_torchcp_sorts_them_apart() -> None:
    scores, weights = [4.0, 1.0, 3.0, 2.0], [0.1, 3.0, 0.1, 3.0]
    assert weighted_threshold(scores, weights, [0.1], "0.25").tolist() == [2.0]
    apart = weighted_threshold(np.sort(scores), weights, [0.1], "0.25")
    assert apart.tolist() == [4.0]
