# ruff: noqa: A002 - `round` is the contract's word for it
"""Gates: accept a proposal whose regret is within the threshold, else execute the candidate of lowest
objective.

A gate sees regrets and masks over a batch (B rows, C candidates) and nothing else; regrets are those of the
very branches that will be committed, which is why an executed regret never exceeds the threshold (METHOD 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from conformal.ranks import Level, exact_level, order_statistics
from conformal.scores import BoolArray, FloatArray, IntArray, check_units
from conformal.thresholds import Thresholds


@dataclass(frozen=True, eq=False)
class Decision:
    """What a gate decided for each row of a batch.

    executed (B,): index of the candidate to commit. admissible_set (B, C): the set Γ of candidates within the
    threshold. threshold (B,): what was accepted at. certified (B,): whether that threshold is finite and
    carries a guarantee. replaced (B,): whether something other than the proposal is executed.
    """

    executed: IntArray
    admissible_set: BoolArray
    threshold: FloatArray
    certified: BoolArray
    replaced: BoolArray

    @property
    def set_size(self) -> IntArray:
        """Number of candidates in Γ (B,)."""
        return np.asarray(self.admissible_set.sum(1), dtype=np.int64)


class Gate(Protocol):
    """Anything that turns proposals and regrets into a decision."""

    def accept(
        self,
        round: int,
        proposal: IntArray,
        regrets: FloatArray,
        admissible: BoolArray,
    ) -> Decision:
        """Decide for a batch at a round (1-based).

        proposal (B,); regrets (B, C), +inf where inadmissible or failed; admissible (B, C).
        A row without any admissible candidate is an episode that has ended: its proposal passes through.
        Raises ValueError naming the row of a NaN or negative regret or of an inadmissible proposal.
        """
        ...


def check_batch(proposal: npt.ArrayLike, regrets: npt.ArrayLike, admissible: npt.ArrayLike) -> BoolArray:
    """Rows still running (B,); ValueError naming the row and what is wrong with it."""
    p, r, a = np.asarray(proposal), np.asarray(regrets), np.asarray(admissible)
    if r.ndim != 2 or a.shape != r.shape or p.shape != r.shape[:1]:
        raise ValueError(
            f"accept: proposal {p.shape}, regrets {r.shape}, admissible {a.shape}; expected (B,), (B, C) and "
            "(B, C)"
        )
    running = np.asarray(a.any(1), dtype=np.bool_)
    wrong = (a & ~(r >= 0)).any(1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"regrets: row {row} is {r[row].tolist()}; expected numbers >= 0 where admissible (or +inf)"
        )
    lost = running & ~(a & np.isfinite(r)).any(1)
    if lost.any():
        raise ValueError(
            f"regrets: row {int(np.argmax(lost))} has no candidate with a finite regret to execute"
        )
    known = (p >= 0) & (p < r.shape[1])
    proper = known & a[np.arange(len(p)), np.where(known, p, 0)]
    if (running & ~proper).any():
        row = int(np.argmax(running & ~proper))
        raise ValueError(f"proposal: row {row} proposes {p[row]}, inadmissible there; map it before scoring")
    return running


def proposal_scores(proposal: IntArray, regrets: FloatArray) -> FloatArray:
    """S (B,): the regret of each row's proposal."""
    return regrets[np.arange(len(proposal)), proposal]


def lowest(regrets: FloatArray, admissible: BoolArray) -> IntArray:
    """The admissible candidate of lowest regret, so of lowest objective (B,); ties to the lowest index."""
    return np.asarray(np.where(admissible, regrets, np.inf).argmin(1), dtype=np.int64)


def screen_by_threshold(
    proposal: IntArray,
    regrets: FloatArray,
    admissible: BoolArray,
    threshold: FloatArray,
    certified: BoolArray,
) -> Decision:
    """Accept iff the proposal's regret is within its row's threshold (closed), else execute the argmin."""
    running = check_batch(proposal, regrets, admissible)
    within = admissible & (regrets <= threshold[:, None]) & np.isfinite(regrets)
    accepted = within[np.arange(len(proposal)), np.where(running, proposal, 0)]
    executed = np.where(accepted | ~running, proposal, lowest(regrets, admissible)).astype(np.int64)
    return Decision(executed, within, threshold, certified, executed != proposal)


def _of_round(thresholds: Thresholds, t: int, rows: int) -> tuple[FloatArray, BoolArray]:
    if not 1 <= t <= thresholds.rounds:
        raise ValueError(f"accept: round {t} has no threshold; expected 1 to {thresholds.rounds}")
    return np.full(rows, thresholds.acceptance[t - 1]), np.full(rows, bool(thresholds.certified[t - 1]))


@dataclass(frozen=True)
class ThresholdGate:
    """Accepts at calibrated thresholds and replaces a refused proposal by the argmin."""

    thresholds: Thresholds

    def __post_init__(self) -> None:
        if self.thresholds.mode == "audit":
            raise ValueError(
                "ThresholdGate: thresholds of mode 'audit' hold without replacement; use AuditGate"
            )

    def accept(self, round: int, proposal: IntArray, regrets: FloatArray, admissible: BoolArray) -> Decision:
        """See `Gate`; rounds beyond the calibrated ones raise ValueError."""
        threshold, certified = _of_round(self.thresholds, round, len(proposal))
        return screen_by_threshold(proposal, regrets, admissible, threshold, certified)


@dataclass(frozen=True)
class RowGate:
    """Accepts at thresholds given row by row: weighted, group-conditional, or many replicates in one batch.

    `thresholds(round, proposal)` returns the (B,) thresholds of the batch, +inf where there is none.
    """

    thresholds: Callable[[int, IntArray], FloatArray]

    def accept(self, round: int, proposal: IntArray, regrets: FloatArray, admissible: BoolArray) -> Decision:
        """See `Gate`; certified where the row's threshold is finite."""
        threshold = np.asarray(self.thresholds(round, proposal), dtype=np.float64)
        return screen_by_threshold(proposal, regrets, admissible, threshold, np.isfinite(threshold))


@dataclass(frozen=True)
class OpenGate:
    """Executes every proposal: Γ is everything admissible, the threshold +inf, and nothing is certified."""

    def accept(self, round: int, proposal: IntArray, regrets: FloatArray, admissible: BoolArray) -> Decision:
        """See `Gate`."""
        rows = len(proposal)
        return screen_by_threshold(proposal, regrets, admissible, np.full(rows, np.inf), np.zeros(rows, bool))


@dataclass(frozen=True)
class ArgminGate:
    """Always executes the candidate of lowest objective; what a gate adds concerns the proposal only."""

    def accept(self, round: int, proposal: IntArray, regrets: FloatArray, admissible: BoolArray) -> Decision:
        """See `Gate`; the threshold is 0, which every executed regret meets, and certified is False."""
        running = check_batch(proposal, regrets, admissible)
        executed = np.where(running, lowest(regrets, admissible), proposal).astype(np.int64)
        rows = len(proposal)
        within = admissible & (regrets <= 0)
        return Decision(executed, within, np.zeros(rows), np.zeros(rows, bool), executed != proposal)


@dataclass(frozen=True)
class AuditGate:
    """Flags proposals outside Γ and executes them all the same; a flag is a proposal absent from
    `admissible_set`.
    """

    thresholds: Thresholds

    def __post_init__(self) -> None:
        if self.thresholds.mode in {"pilot", "sequential", "lockstep", "risk"}:
            raise ValueError(
                f"AuditGate: thresholds of mode {self.thresholds.mode!r} were calibrated under a gate "
                "that replaces; expected mode 'audit'"
            )

    def accept(self, round: int, proposal: IntArray, regrets: FloatArray, admissible: BoolArray) -> Decision:
        """See `Gate`; replaced is False everywhere, so an executed regret may exceed the threshold."""
        check_batch(proposal, regrets, admissible)
        threshold, certified = _of_round(self.thresholds, round, len(proposal))
        within = admissible & (regrets <= threshold[:, None])
        return Decision(
            proposal.astype(np.int64), within, threshold, certified, np.zeros(len(proposal), bool)
        )


@dataclass(frozen=True)
class SamplingGate:
    """Conformal-set sampling: executes a uniform draw from Γ, whatever was proposed.

    `uniforms(round, rows)` returns a number in [0, 1) per row, so that a run can be repeated. The deployed
    policy is another one than the thresholds' unless the certification fold was run behind this gate.
    """

    thresholds: Thresholds
    uniforms: Callable[[int, int], FloatArray]

    def __post_init__(self) -> None:
        if self.thresholds.mode in {"trajectory", "bonferroni", "hierarchical", "risk", "audit"}:
            raise ValueError(
                f"SamplingGate: mode {self.thresholds.mode!r} holds only if accepted proposals are "
                "executed and refused ones become the argmin; certify a pilot behind this gate instead"
            )

    def accept(self, round: int, proposal: IntArray, regrets: FloatArray, admissible: BoolArray) -> Decision:
        """See `Gate`; Γ always holds the argmin, so there is always something to draw."""
        threshold, certified = _of_round(self.thresholds, round, len(proposal))
        base = screen_by_threshold(proposal, regrets, admissible, threshold, certified)
        order = (np.asarray(self.uniforms(round, len(proposal))) * base.set_size).astype(np.int64)
        rank_in_set = np.cumsum(base.admissible_set, axis=1) - 1
        drawn = (base.admissible_set & (rank_in_set == order[:, None])).argmax(1)
        executed = np.where(base.set_size > 0, drawn, proposal).astype(np.int64)
        return Decision(executed, base.admissible_set, threshold, certified, executed != proposal)


@dataclass
class LockstepGate:
    """Computes each round's threshold from the batch itself and applies it to the same batch. Approximate.

    The whole fold must pass as one batch, one call per round. `replicate` (B,) numbers independent folds that
    share a batch (0..R-1). Not exactly exchangeable (METHOD 4); as a pilot it is the recommended source of
    acceptance thresholds, because `certify` then measures what they achieve.
    """

    alpha: Level
    replicate: IntArray | None = None
    _values: list[FloatArray] = field(default_factory=list, init=False)
    _n: list[IntArray] = field(default_factory=list, init=False)
    _k: list[IntArray] = field(default_factory=list, init=False)

    def accept(self, round: int, proposal: IntArray, regrets: FloatArray, admissible: BoolArray) -> Decision:
        """See `Gate`; rounds come in order, each once."""
        if round != len(self._values) + 1:
            raise ValueError(
                f"LockstepGate: round {round} after {len(self._values)}; expected rounds in order, each once"
            )
        running = check_batch(proposal, regrets, admissible)
        group = np.zeros(len(proposal), np.int64) if self.replicate is None else self.replicate
        scores = proposal_scores(np.where(running, proposal, 0), regrets)
        table, present = _by_group(scores, running, group)
        found = order_statistics(table, present, self.alpha, axis=1)
        self._values.append(found.values)
        self._n.append(found.n)
        self._k.append(found.k)
        threshold = found.values[group]
        return screen_by_threshold(proposal, regrets, admissible, threshold, np.zeros(len(proposal), bool))

    @property
    def values(self) -> FloatArray:
        """Thresholds found so far, (R, T)."""
        return np.stack(self._values, axis=1) if self._values else np.empty((0, 0))

    def thresholds(
        self, *, units: Sequence[str], policy_hash: str = "", replicate: int = 0, rounds: int | None = None
    ) -> Thresholds:
        """The thresholds of one fold (mode `lockstep`), padded with +inf up to `rounds` if every episode
        ended.
        """
        missing = max(0, (rounds or 0) - len(self._values))
        values = np.array([v[replicate] for v in self._values] + [np.inf] * missing)
        return Thresholds(
            mode="lockstep",
            alpha=float(exact_level(self.alpha)),
            values=values,
            acceptance=values,
            n=np.array([n[replicate] for n in self._n] + [0] * missing),
            k=np.array([k[replicate] for k in self._k] + [1] * missing),
            certified=np.zeros(len(values), bool),
            guarantee="none proved: P(S_t <= q_t | round t reached) is close to "
            f"{float(1 - exact_level(self.alpha)):g} (approximate)",
            assumptions="calibration episodes were replaced at thresholds their own scores set, so they "
            "are not exactly exchangeable with test episodes; the gap shrinks as the fold grows",
            folds={"lockstep": check_units(units, len(units), "lockstep")},
            policy_hash=policy_hash,
        )


def _by_group(scores: FloatArray, present: BoolArray, group: IntArray) -> tuple[FloatArray, BoolArray]:
    """Rows laid out as (R, largest group), with the mask of what is there."""
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group)
    place = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    table, mask = np.zeros((len(counts), counts.max())), np.zeros((len(counts), counts.max()), bool)
    table[group[order], place] = scores[order]
    mask[group[order], place] = present[order]
    return table, mask
