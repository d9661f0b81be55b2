"""The points behind group-travel tasks (METHOD 12): what a level is, a sampler, and the exact verifier.

Works on arrays of integer points, clue by option, for many tasks at once. Knows nothing of wording.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from sim.errors import UserError, shown
from sim.randomness import Keys, fold, integers, keys, uniform

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STRONGEST_SHARED = 2  # points of the strongest shared fact, for or against an option
_ATTEMPTS = 64
_PRIVATE_CANDIDATES = 32
_COLUMN_CANDIDATES = 32
_ABSENT = 0.5  # chance that a shared clue leaves out an option it need not mention
_MENTIONED = 0.3  # chance that a private clue mentions an option that is neither truth nor decoy

# What a private clue may give (truth, decoy), by the difference between the two.
_PRIVATE_PAIRS: dict[int, tuple[tuple[int, int], ...]] = {
    1: ((0, -1), (1, 0), (-1, -2), (2, 1)),
    2: ((0, -2), (2, 0), (1, -1)),
    3: ((1, -2), (2, -1), (-1, -4)),
    4: ((0, -4), (2, -2)),
    5: ((1, -4),),
}
_OTHER_PRIVATE = np.array([-4, -2, -2, -1, -1, 1, 1, 2])


class Level(msgspec.Struct, frozen=True):
    """One difficulty level: part of the benchmark's identity, not a setting.

    `margins` are the points by which the truth may win over the runner-up on all clues. With `drop_loses`,
    the truth loses as soon as any one private clue is missing. `indirect` is the chance that points are put
    into circumstances rather than a verdict, `asides` the fewest and most irrelevant facts in a clue.
    """

    margins: tuple[int, ...]
    drop_loses: bool
    indirect: float
    asides: tuple[int, int]


LEVELS: dict[str, Level] = {
    "easy": Level(margins=(5, 6, 7), drop_loses=False, indirect=0.0, asides=(0, 0)),
    "medium": Level(margins=(3, 4), drop_loses=False, indirect=0.5, asides=(0, 1)),
    "hard": Level(margins=(1, 2), drop_loses=True, indirect=1.0, asides=(1, 2)),
}


class Shape(msgspec.Struct, frozen=True):
    """Number of agents N, options K and shared clues S of a batch of tasks."""

    n_agents: int = 4
    n_options: int = 3
    n_shared: int = 4


def check_shape(level: str, shape: Shape) -> None:
    """Raise UserError for an unknown level, or a shape for which the level's rules cannot be met."""
    if level not in LEVELS:
        raise UserError(f"travel tasks: field 'level': {shown(level)}; give one of {', '.join(LEVELS)}")
    limits = {"n_agents": (3, 8), "n_options": (3, 6), "n_shared": (2, 8)}
    for field, (low, high) in limits.items():
        value = getattr(shape, field)
        if type(value) is not int or not low <= value <= high:
            raise UserError(
                f"travel tasks: field '{field}': {shown(value)}; give a number from {low} to {high}"
            )
    least = _least_shared(LEVELS[level], shape.n_agents)
    if shape.n_shared < least:
        raise UserError(
            f"travel tasks: field 'n_shared': {shape.n_shared}; at level {level} with {shape.n_agents} "
            f"agents give at least {least}, or the shared facts cannot outweigh the private ones"
        )


def draw_points(level: str, seed: int, index: Ints, shape: Shape) -> tuple[Ints, Ints]:
    """Points (n, S + N, K) and truth (n,) of the tasks with these indices; every one keeps METHOD 12's rules.

    A task depends on level, shape, seed and its own index alone: it is the first valid one of its own
    sequence of attempts.
    """
    rules = LEVELS[level]
    root = keys("travel-points", level, shape.n_agents, shape.n_options, shape.n_shared, seed, index)
    points = np.zeros((index.size, shape.n_shared + shape.n_agents, shape.n_options), dtype=np.int64)
    truth = np.zeros(index.size, dtype=np.int64)
    waiting = np.arange(index.size)
    for attempt in range(_ATTEMPTS):
        drawn, answer, valid = _attempt(fold(root[waiting], attempt), rules, shape)
        points[waiting[valid]] = drawn[valid]
        truth[waiting[valid]] = answer[valid]
        waiting = waiting[~valid]
        if waiting.size == 0:
            return points, truth
    raise AssertionError(
        f"no valid points in {_ATTEMPTS} attempts for {level}, {shape}, index {index[waiting[0]]}"
    )


def broken_rules(points: Ints, truth: Ints, n_shared: int, level: Level) -> dict[str, Bools]:
    """METHOD 12's rules, each with a mask (n,) of the tasks that break it; exact, on integers.

    `points` is (n, S + N, K); only differences between options matter.
    """
    rows = np.arange(len(points))
    shared = points[:, :n_shared].sum(axis=1)
    private = points[:, n_shared:]
    decoy = shared.argmax(axis=-1)
    one_clue = shared[:, None] + private
    total = shared + private.sum(axis=1)
    margin = _lead(total, truth)
    dropped = np.stack([_lead(total - private[:, i], truth) for i in range(private.shape[1])], axis=-1)
    each = np.stack([_lead(one_clue[:, i], decoy) for i in range(private.shape[1])], axis=-1)
    rules = {
        "on the shared clues one option other than the truth must win": (_lead(shared, decoy) <= 0)
        | (decoy == truth[rows]),
        "on the shared clues and any one private clue the decoy must win": (each <= 0).any(axis=-1),
        "on all clues the truth must win": margin <= 0,
        "dropping any one private clue must lower the truth's margin": (dropped >= margin[:, None]).any(
            axis=-1
        ),
        f"the truth's margin must be one of {', '.join(map(str, level.margins))}": ~np.isin(
            margin, level.margins
        ),
    }
    if level.drop_loses:
        rules["dropping any one private clue must take the truth's win away"] = (dropped >= 0).any(axis=-1)
    return rules


def _lead(scores: Ints, option: Ints) -> Ints:
    """Score of one option minus the best of the others, (n,)."""
    own = np.take_along_axis(scores, option[:, None], axis=-1)[:, 0]
    others = np.where(np.arange(scores.shape[-1]) == option[:, None], np.iinfo(np.int64).min // 2, scores)
    lead: Ints = own - others.max(axis=-1)
    return lead


def _private_range(rules: Level, n_agents: int) -> tuple[int, int]:
    """Least and greatest number of points by which a private clue favours the truth over the decoy."""
    if n_agents == 3:
        return (3, 5)
    if n_agents <= 5:
        return (2, 4)
    return (2, 3) if rules.drop_loses else (1, 3)


def _least_shared(rules: Level, n_agents: int) -> int:
    """Fewest shared clues that can hold the smallest shared lead the decoy needs."""
    low, _ = _private_range(rules, n_agents)
    least_lead = (
        (n_agents - 1) * low + 1 if rules.drop_loses else max(low + 1, n_agents * low - max(rules.margins))
    )
    return math.ceil(least_lead / (2 * STRONGEST_SHARED))


def _attempt(key: Keys, rules: Level, shape: Shape) -> tuple[Ints, Ints, Bools]:
    """One candidate per key: points in a random order of options, the truth's position, and validity.

    Built with the truth first, the decoy second and the others after them, then permuted. On the shared clues
    the truth is drawn by the same law as the others, so that being weak there does not give it away.
    """
    gains, lead, found = _gains(fold(key, 0), rules, shape)
    truth_private, decoy_private = _private_pairs(fold(key, 1), gains)
    shared, leads = _shared_columns(fold(key, 2), lead, shape)
    others, fitting = _other_private(fold(key, 3), decoy_private, leads[:, 1:], shape)
    private = np.concatenate([truth_private[:, None], decoy_private[:, None], others], axis=1)
    columns = np.concatenate([shared, private], axis=-1)
    order = np.argsort(uniform(fold(key, 4), shape.n_options), axis=-1)
    points = np.take_along_axis(columns, order[..., None], axis=1).swapaxes(1, 2)
    truth = (order == 0).argmax(axis=-1)
    broken = broken_rules(points, truth, shape.n_shared, rules)
    silent = (points == 0).all(axis=-1).any(axis=-1)
    return points, truth, found & fitting & ~silent & ~np.logical_or.reduce(list(broken.values()))


def _gains(key: Keys, rules: Level, shape: Shape) -> tuple[Ints, Ints, Bools]:
    """How far each private clue favours the truth over the decoy (n, N), and the decoy's shared lead (n,).

    The first of a fixed number of candidates that leaves the decoy in front of any single clue.
    """
    low, high = _private_range(rules, shape.n_agents)
    size = _PRIVATE_CANDIDATES * shape.n_agents
    gains = low + integers(fold(key, 0), size, high - low + 1)
    gains = gains.reshape(-1, _PRIVATE_CANDIDATES, shape.n_agents)
    margins = np.array(rules.margins)[integers(fold(key, 1), _PRIVATE_CANDIDATES, len(rules.margins))]
    lead = gains.sum(axis=-1) - margins
    valid = (lead > gains.max(axis=-1)) & (lead <= 2 * STRONGEST_SHARED * shape.n_shared)
    if rules.drop_loses:
        valid &= margins < gains.min(axis=-1)
    first = valid.argmax(axis=-1)
    rows = np.arange(len(key))
    return gains[rows, first], np.where(valid.any(axis=-1), lead[rows, first], 0), valid.any(axis=-1)


def _private_pairs(key: Keys, gains: Ints) -> tuple[Ints, Ints]:
    """Points of the truth and of the decoy in each private clue, two arrays (n, N), `gains` apart."""
    longest = max(map(len, _PRIVATE_PAIRS.values()))
    counts = np.array([len(_PRIVATE_PAIRS.get(gain, ())) for gain in range(max(_PRIVATE_PAIRS) + 1)])
    pairs = np.zeros((len(counts), longest, 2), dtype=np.int64)
    for gain, choices in _PRIVATE_PAIRS.items():
        pairs[gain, : len(choices)] = choices
    picks = (uniform(key, gains.shape[-1]) * counts[gains]).astype(np.int64)
    chosen = pairs[gains, picks]
    return chosen[..., 0], chosen[..., 1]


def _shared_columns(key: Keys, lead: Ints, shape: Shape) -> tuple[Ints, Ints]:
    """Points (n, K, S) on the shared clues, and the decoy's lead (n, K - 1) over truth and others.

    The leads differ by chance alone: each is a common value plus -1, 0 or 1, the truth's being the lead asked
    for.
    """
    n_rivals, n_shared = shape.n_options - 1, shape.n_shared
    strongest = STRONGEST_SHARED * n_shared
    shift = integers(fold(key, 0), n_rivals, 3) - 1
    leads = np.clip(lead[:, None] + shift - shift[:, :1], 1, 2 * strongest)
    low = np.maximum(-(-leads.max(axis=-1) // 2), leads.max(axis=-1) - strongest)
    high = np.minimum(strongest, np.maximum(low, lead))
    decoy = low + (uniform(fold(key, 1), 1)[:, 0] * (high - low + 1)).astype(np.int64)
    totals = np.concatenate(
        [decoy[:, None] - leads[:, :1], decoy[:, None], decoy[:, None] - leads[:, 1:]], axis=-1
    )
    option_keys = fold(fold(key, 2)[:, None], np.arange(shape.n_options))
    return _spread(option_keys, totals, n_shared), leads


def _spread(key: Keys, total: Ints, parts: int) -> Ints:
    """Points from -2 to 2, many of them 0, that add up to the total, in random order, (*shape, parts)."""
    chances, draws = uniform(fold(key, 0), parts), uniform(fold(key, 1), parts)
    rest = total.copy()
    shares = np.empty((*total.shape, parts), dtype=np.int64)
    for part in range(parts):
        reserve = STRONGEST_SHARED * (parts - part - 1)
        low = np.maximum(-STRONGEST_SHARED, rest - reserve)
        high = np.minimum(STRONGEST_SHARED, rest + reserve)
        value = low + (draws[..., part] * (high - low + 1)).astype(np.int64)
        absent = (chances[..., part] < _ABSENT) & (low <= 0) & (high >= 0)
        shares[..., part] = np.where(absent, 0, value)
        rest -= shares[..., part]
    order = np.argsort(uniform(fold(key, 2), parts), axis=-1)
    return np.take_along_axis(shares, order, axis=-1)


def _other_private(key: Keys, decoy: Ints, leads: Ints, shape: Shape) -> tuple[Ints, Bools]:
    """Points (n, K - 2, N) of the options that are neither truth nor decoy, and whether all were found.

    The first of a fixed number of candidates that does not pass the decoy: not with any one private clue, and
    on all clues not by even a point.
    """
    size = (len(key), shape.n_options - 2, _COLUMN_CANDIDATES, shape.n_agents)
    flat = math.prod(size[1:])
    present = uniform(fold(key, 0), flat).reshape(size) < _MENTIONED
    which = integers(fold(key, 1), flat, len(_OTHER_PRIVATE)).reshape(size)
    column = np.where(present, _OTHER_PRIVATE[which], 0)
    gain = column - decoy[:, None, None]
    valid = (gain.max(axis=-1) < leads[..., None]) & (gain.sum(axis=-1) <= leads[..., None])
    first = valid.argmax(axis=-1)
    chosen = np.take_along_axis(column, first[..., None, None], axis=2)[:, :, 0]
    return chosen, valid.any(axis=-1).all(axis=-1)
