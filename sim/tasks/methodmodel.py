"""METHOD 9's own task model: evidence drawn clue by clue, with placeholder texts.

A task is a function of (seed, index) and the parameters alone, whatever else is generated with it. Nothing
here knows agents; how they perceive the evidence is the cognitive world's matter.
"""

from __future__ import annotations

import math
import string

import msgspec
import numpy as np
import numpy.typing as npt

from sim.errors import UserError, shown
from sim.randomness import fold, integers, keys, normal, uniform
from sim.tasks.task import HiddenProfileTask

_SHARED_CONCENTRATION = 4  # of the Dirichlet that spreads the decoy's lead over the shared clues
_SHAPE_LIMITS = {"n_agents": (2, 26), "n_options": (2, 26), "n_shared": (1, 26)}
_SCALES = ("shared_strength", "private_strength", "sd_task", "sd_private", "sd_clue")


class MethodParams(msgspec.Struct, frozen=True):
    """METHOD 9's values: shape, and strengths and spreads in log-odds.

    The shared clues add up to As·exp(sd_task·z) for the decoy, a private clue gives g·exp(sd_task·z +
    sd_private·z') split at random between the truth and against the decoy, and every entry gets normal noise
    of standard deviation sd_clue / 2, as in the reference.
    """

    n_agents: int = 4
    n_options: int = 3
    n_shared: int = 4
    shared_strength: float = 3.0
    private_strength: float = 1.65
    sd_task: float = 0.25
    sd_private: float = 0.25
    sd_clue: float = 0.5

    def __post_init__(self) -> None:
        for field, (low, high) in _SHAPE_LIMITS.items():
            value = getattr(self, field)
            if not low <= value <= high:
                raise UserError(
                    f"method tasks: field '{field}': {shown(value)}; give a number from {low} to {high}"
                )
        for field in _SCALES:
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"method tasks: field '{field}': {shown(value)}; give a finite number from 0")


def method_evidence(
    n: int, seed: int, params: MethodParams | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Evidence (n, S + N, K) in log-odds centred over options, truth (n,) and decoy (n,) of n tasks."""
    if n < 1:
        raise UserError(f"method tasks: field 'n': {shown(n)}; give a number of tasks from 1")
    params = params or MethodParams()
    key = keys("method-task", seed, np.arange(n))
    truth, decoy = _truth_and_decoy(fold(key, 0), params.n_options)
    scale = np.exp(params.sd_task * normal(fold(key, 1), 2))
    lead = _dirichlet(fold(key, 2), params.n_shared) * (params.shared_strength * scale[:, :1])
    for_truth, against_decoy = _private(fold(key, 3), scale[:, 1:], params)
    shape = (n, params.n_shared + params.n_agents, params.n_options)
    noise = normal(fold(key, 4), shape[1] * shape[2]).reshape(shape)
    evidence = 0.5 * params.sd_clue * noise
    rows = np.arange(n)
    evidence[rows, : params.n_shared, decoy] += lead
    evidence[rows, params.n_shared :, truth] += for_truth
    evidence[rows, params.n_shared :, decoy] -= against_decoy
    evidence -= evidence.mean(axis=-1, keepdims=True)
    return evidence, truth, decoy


def generate_method(n: int, seed: int, params: MethodParams | None = None) -> tuple[HiddenProfileTask, ...]:
    """Tasks 0 to n - 1 of METHOD 9's model, each its own family; their clues only say what they favour."""
    params = params or MethodParams()
    evidence, truth, _ = method_evidence(n, seed, params)
    options = tuple(f"option {letter}" for letter in string.ascii_uppercase[: params.n_options])
    strongest = np.abs(evidence).argmax(axis=-1)
    speaks_for = np.take_along_axis(evidence, strongest[..., None], axis=-1)[..., 0] > 0
    return tuple(
        _task(f"method-{seed}-{index}", params, options, options[answer], rows, tops, signs)
        for index, (answer, rows, tops, signs) in enumerate(
            zip(truth.tolist(), evidence.tolist(), strongest.tolist(), speaks_for.tolist(), strict=True)
        )
    )


def _truth_and_decoy(
    key: npt.NDArray[np.uint64], n_options: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    truth = integers(fold(key, 0), 1, n_options)[:, 0]
    step = 1 + integers(fold(key, 1), 1, n_options - 1)[:, 0]
    return truth, (truth + step) % n_options


def _dirichlet(key: npt.NDArray[np.uint64], size: int) -> npt.NDArray[np.float64]:
    """Dirichlet with equal whole concentration: a gamma of whole shape is a sum of exponentials."""
    exponentials = -np.log(uniform(key, size * _SHARED_CONCENTRATION))
    gammas = exponentials.reshape(*key.shape, size, _SHARED_CONCENTRATION).sum(axis=-1)
    shares: npt.NDArray[np.float64] = gammas / gammas.sum(axis=-1, keepdims=True)
    return shares


def _private(
    key: npt.NDArray[np.uint64], scale: npt.NDArray[np.float64], params: MethodParams
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """What each private clue adds to the truth and takes from the decoy, both (n, N)."""
    strength = (
        params.private_strength * scale * np.exp(params.sd_private * normal(fold(key, 0), params.n_agents))
    )
    share = uniform(fold(key, 1), params.n_agents)
    return strength * share, strength * (1 - share)


def _task(
    name: str,
    params: MethodParams,
    options: tuple[str, ...],
    answer: str,
    rows: list[list[float]],
    tops: list[int],
    signs: list[bool],
) -> HiddenProfileTask:
    clues = tuple(
        f"Clue {place} speaks {'for' if sign else 'against'} {options[top]}."
        for place, (top, sign) in enumerate(zip(tops, signs, strict=True), start=1)
    )
    return HiddenProfileTask(
        id=name,
        name=f"METHOD 9 task {name}",
        description=(
            f"{params.n_agents} people choose one of {params.n_options} options. All know the first "
            f"{params.n_shared} clues; each holds one more. One option is right once all clues are weighed."
        ),
        shared_information=clues[: params.n_shared],
        hidden_information=clues[params.n_shared :],
        possible_answers=options,
        correct_answer=answer,
        family=name,
        evidence=tuple(map(tuple, rows)),
    )
