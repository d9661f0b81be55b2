"""Splits of tasks by family: no family is ever divided, so the parts share no fact (METHOD 3).

Every function is deterministic in its seed and does not depend on the order of the tasks: families are ranked
by a hash of their name. The parts keep the order of the tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from sim.errors import UserError, shown
from sim.randomness import keys, text_keys
from sim.tasks.task import HiddenProfileTask

Tasks: TypeAlias = tuple[HiddenProfileTask, ...]

_JOINED = " (without a field 'family', tasks with a text in common are one family)"


def split_by_family(
    tasks: Sequence[HiddenProfileTask], shares: Mapping[str, float | int], seed: int
) -> dict[str, Tasks]:
    """Named, disjoint parts of the tasks; families that no share claims stay out.

    A whole number (`5`) is a count of families. A fraction (`0.5`, or `1.0`) is a share of the families that
    remain once all counts are served, rounded by largest remainder. Raises UserError naming the split if it
    would be empty, or if the shares ask for more than there is.
    """
    families = _ranked_families(tasks, seed)
    sizes = _sizes(shares, len(families))
    ends = np.cumsum(list(sizes.values())).tolist()
    starts = [0, *ends[:-1]]
    part_of = {
        family: name
        for name, start, end in zip(sizes, starts, ends, strict=True)
        for family in families[start:end]
    }
    return {name: tuple(task for task in tasks if part_of.get(task.family) == name) for name in sizes}


def halves(tasks: Sequence[HiddenProfileTask], seed: int) -> tuple[Tasks, Tasks]:
    """Two disjoint halves by family; with an odd number of families the first has one more."""
    first, second = folds(tasks, 2, seed)
    return first, second


def folds(tasks: Sequence[HiddenProfileTask], k: int, seed: int) -> tuple[Tasks, ...]:
    """k disjoint folds by family, whose numbers of families differ by at most one.

    Raises UserError if there are fewer families than folds.
    """
    families = _ranked_families(tasks, seed)
    if not 1 <= k <= len(families):
        raise UserError(
            f"folds: {k} folds of {len(families)} families; give a whole number from 1 to the number of "
            "families, or more tasks"
        )
    fold_of = {family: rank % k for rank, family in enumerate(families)}
    return tuple(tuple(task for task in tasks if fold_of[task.family] == fold) for fold in range(k))


def one_per_family(tasks: Sequence[HiddenProfileTask], seed: int) -> Tasks:
    """One task of each family, picked by a hash of its id: the unit of exchangeability (METHOD 3)."""
    if not tasks:
        return ()
    rank = keys("one-per-family", seed, text_keys(task.id for task in tasks)).tolist()
    chosen: dict[str, int] = {}
    for place, task in enumerate(tasks):
        if task.family not in chosen or rank[place] < rank[chosen[task.family]]:
            chosen[task.family] = place
    return tuple(tasks[place] for place in sorted(chosen.values()))


def check_disjoint(parts: Mapping[str, Sequence[HiddenProfileTask]]) -> None:
    """Raise UserError naming the family that has tasks in two parts, perhaps read from different files."""
    owner: dict[str, str] = {}
    for name, tasks in parts.items():
        for task in tasks:
            if owner.setdefault(task.family, name) != name:
                raise UserError(
                    f"split {shown(name)}: task {shown(task.id)} is of family {shown(task.family)}, which is "
                    f"also in split {shown(owner[task.family])}; keep a family in one split"
                )


def _ranked_families(tasks: Sequence[HiddenProfileTask], seed: int) -> list[str]:
    """The distinct families in an order that depends on their names and the seed alone."""
    families = sorted({task.family for task in tasks})
    if not families:
        return []
    order = np.argsort(keys("split", seed, text_keys(families)), kind="stable")
    return [families[place] for place in order.tolist()]


def _sizes(shares: Mapping[str, float | int], n_families: int) -> dict[str, int]:
    """Number of families of each split."""
    if not shares:
        raise UserError("splits: none is named; give at least one, such as {'train': 0.5, 'test': 0.5}")
    for name, share in shares.items():
        _check_share(name, share)
    counts = {name: share for name, share in shares.items() if isinstance(share, int)}
    fractions = {name: share for name, share in shares.items() if not isinstance(share, int)}
    rest = n_families - sum(counts.values())
    if rest < 0:
        raise UserError(
            f"splits {shown(dict(shares))}: {sum(counts.values())} families are asked for and {n_families} "
            f"are there; give more tasks or smaller counts{_JOINED}"
        )
    sizes = {**counts, **_rounded(fractions, rest)}
    for name, share in shares.items():
        if sizes[name] == 0:
            raise UserError(
                f"split {shown(name)}: a share of {shown(share)} of {rest} families (of {n_families}, after "
                f"counts) is 0 tasks; give more tasks or a larger share{_JOINED}"
            )
    return {name: sizes[name] for name in shares}


def _check_share(name: str, share: float | int) -> None:
    whole = isinstance(share, int) and not isinstance(share, bool) and share >= 1
    fraction = isinstance(share, float) and 0 < share <= 1
    if not whole and not fraction:
        raise UserError(
            f"split {shown(name)}: share {shown(share)}; give a whole number of families from 1, "
            "or a fraction above 0 and up to 1.0"
        )


def _rounded(fractions: Mapping[str, float], total: int) -> dict[str, int]:
    """Whole numbers near fraction * total, adding up to the rounded sum: largest remainders first."""
    whole_sum = math.fsum(fractions.values())
    if whole_sum > 1 + 1e-9:
        raise UserError(
            f"splits {shown(dict(fractions))}: fractions add up to {whole_sum:.6g}; at most 1 is right"
        )
    quotas = {name: fraction * total for name, fraction in fractions.items()}
    sizes = {name: math.floor(quota + 1e-9) for name, quota in quotas.items()}
    missing = math.floor(whole_sum * total + 1e-9) - sum(sizes.values())
    by_remainder = sorted(quotas, key=lambda name: sizes[name] - quotas[name])
    return {name: size + (name in by_remainder[:missing]) for name, size in sizes.items()}
