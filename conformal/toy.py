"""The stress world of METHOD 4: an artificial process in which a replacement changes the scale of later
scores.

Scores are |N(0,1)| * exp(u), u ~ N(0, effect^2) persistent over an episode, times `factor` once a proposal of
the episode has been replaced; an episode ends before each later round with probability `stop`. Made to break
naive calibration, not to resemble anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from conformal.ranks import Level, order_statistics
from conformal.scores import BoolArray, FloatArray


class ToyRun(NamedTuple):
    """R replicates of n episodes: scores, reached and executed regrets (R, n, T), acceptance thresholds (R,
    T).
    """

    scores: FloatArray
    reached: BoolArray
    executed: FloatArray
    acceptance: FloatArray


@dataclass(frozen=True)
class ToyWorld:
    """factor: what a replacement multiplies later scores by; stop: chance to end before each round after the
    first; effect: standard deviation of the episode's log scale.
    """

    factor: float = 2.5
    rounds: int = 8
    stop: float = 0.06
    effect: float = 0.5

    def run(
        self,
        replicates: int,
        episodes: int,
        rng: np.random.Generator,
        *,
        acceptance: FloatArray | None = None,
        lockstep: Level | None = None,
        upto: int | None = None,
    ) -> ToyRun:
        """Run replicates side by side: behind acceptance thresholds (R, T), in lockstep at a level, or
        ungated.

        With `upto` only that many rounds are run; later ones count as not reached.
        """
        shape = (replicates, episodes, self.rounds)
        scores, executed, reached = np.zeros(shape), np.zeros(shape), np.zeros(shape, bool)
        bound = np.full((replicates, self.rounds), np.inf) if acceptance is None else acceptance.copy()
        log_scale = self.effect * rng.standard_normal(shape[:2])
        replaced, running = np.zeros(shape[:2], bool), np.ones(shape[:2], bool)
        for t in range(self.rounds if upto is None else upto):
            if t > 0:
                running &= rng.random(shape[:2]) >= self.stop
            raw = np.abs(rng.standard_normal(shape[:2])) * np.exp(log_scale)
            score = raw * np.where(replaced, self.factor, 1.0)
            if lockstep is not None:
                bound[:, t] = order_statistics(score, running, lockstep, axis=1).values
            refused = score > bound[:, t, None]
            scores[..., t], reached[..., t] = score, running
            executed[..., t] = np.where(refused, 0.0, score)
            replaced |= refused
        return ToyRun(scores, reached, executed, bound)
