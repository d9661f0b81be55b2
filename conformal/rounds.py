"""What every round-by-round calibrator shares: fitting all rounds at once, and the words of the guarantee."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from conformal.pac import pac_ranks
from conformal.ranks import Level, OrderStatistics, exact_level, order_statistics, select
from conformal.scores import check_scores

RoundRule: TypeAlias = Callable[[npt.ArrayLike, npt.ArrayLike | None, Sequence[str]], OrderStatistics]

EXCHANGEABLE = (
    "calibration and test units are exchangeable (one episode per unit) and share one policy: "
    "controller, objective, router, stop rule, number of rounds, candidates, elicitation, model and "
    "failure handling"
)


def promise(alpha: Level, delta: Level | None, subject: str, where: str) -> str:
    """The guarantee as one sentence: marginal, or training-conditional where `delta` is given."""
    level = float(1 - exact_level(alpha))
    if delta is None:
        return f"P({subject} | round t reached, n_t) >= {level:g} {where}"
    sure = float(1 - exact_level(delta))
    return f"with probability {sure:g} over calibration, P({subject} | round t reached) >= {level:g} {where}"


def fit_rounds(
    scores: npt.ArrayLike,
    reached: npt.ArrayLike | None,
    alpha: Level,
    *,
    units: Sequence[str] | None = None,
    delta: Level | None = None,
) -> OrderStatistics:
    """The conformal order statistic of every round's reached scores; the PAC rank where `delta` is given."""
    if delta is None:
        return order_statistics(scores, reached, alpha, episodes=units)
    values, mask = check_scores(scores, reached, episodes=units)
    n = np.asarray(mask.sum(0), dtype=np.int64)
    k = pac_ranks(n, alpha, delta)
    return OrderStatistics(select(values, mask, k), n, k)
