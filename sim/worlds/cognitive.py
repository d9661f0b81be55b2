"""Synthetic agents with memory, anchoring, conformity and biased sampling (METHOD 9), thousands at a time.

They hold no text: a message is the index of the clue it mentions. Only this room sees clues and perceptions;
what leaves it is the public record.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import scipy  # its parts load at first use, which keeps start-up short

from sim.arrays import Bools, Floats, Ints, Words, take
from sim.discussion.actions import CHALLENGE, CLARIFY, VOTE, Candidates
from sim.discussion.beliefs import leader
from sim.discussion.ending import Horizon, Votes, horizon_of
from sim.discussion.public import PublicView, Utterance, advance, opening
from sim.discussion.text import fresh_words, pair_overlap
from sim.errors import UserError
from sim.randomness import fold, keys, normal, uniform
from sim.worlds.protocol import Episodes

_NO_STATEMENT = -1
_MENTION_PENALTY = 0.3
_NOT_KNOWN = -9e9
_SHARES = ("miss", "speed", "uptake", "contrary_discount", "forgetting", "clarify_refresh", "comply", "words")
_LARGEST = 100.0
"""No log-odds, spread or factor of METHOD 9 comes near it; beyond it exponentials overflow."""


class Cognition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the agents; METHOD 9 gives meaning and origin of each."""

    sd_agent: float = 0.85
    sd_start: float = 0.30
    sd_read: float = 0.10
    miss: float = 0.20
    unshared_weight: float = 0.45
    preference_tilt: float = 0.70
    conformity: float = 0.90
    speed: float = 0.70
    uptake: float = 0.95
    contrary_discount: float = 0.08
    repetition: float = 0.18
    memory_ceiling: float = 1.5
    forgetting: float = 0.01
    comply: tuple[float, float, float, float] = (0.75, 0.75, 0.95, 0.90)
    challenge_conformity: float = 0.35
    challenge_speed: float = 1.3
    clarify_refresh: float = 0.35
    words: tuple[float, float, float, float] = (1.0, 1.0, 0.8, 0.55)

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            numbers = value if isinstance(value, tuple) else (value,)
            limit = 1.0 if name in _SHARES else _LARGEST
            if not all(0 <= number <= limit for number in numbers):
                raise UserError(f"world.cognition.{name} is {value}; it must lie in [0, {limit:g}]")


@dataclass(frozen=True)
class Cohort:
    """What never changes in a batch: perceived evidence (B, N, M, K), identities (B,), and for tasks with
    texts the tables of their clues' words, or None."""

    n_shared: int
    perceived: Floats
    key: Words
    text: ClueWords | None


@dataclass(frozen=True)
class ClueWords:
    """What novelty and overlap of a clue follow from: `overlap` (B, M, M) with each other clue, `shares`
    (B, M, W) of its fresh words and `held` (B, M, W, M), which clues hold them (sim.discussion.text)."""

    overlap: Floats
    shares: Floats
    held: Bools


@dataclass(frozen=True)
class Minds:
    """The private state: memory weights (B, N, M), log-odds ℓ (B, N, K), whose private clue surfaced (B, N),
    mentions per clue (B, M), last stated preference (B, N)."""

    memory: Floats
    latent: Floats
    surfaced: Bools
    mentions: Floats
    stated: Ints


@dataclass(frozen=True)
class CognitiveState:
    """A batch of discussions: `source` (B,) says which row of the cohort each one is."""

    cohort: Cohort
    source: Ints
    view: PublicView
    minds: Minds


@dataclass(frozen=True)
class _Turn:
    """One message per candidate, before anybody hears it; arrays (B, C)."""

    item: Ints
    speaker: Ints
    preference: Ints
    complied: Bools
    first_private: Bools


class CognitiveWorld:
    """The batch world of synthetic agents; implements `World[CognitiveState]`."""

    def __init__(self, cognition: Cognition, horizon: Horizon = None, measured_text: bool = True) -> None:
        """`horizon` None is METHOD 1's default for the number of agents.

        `measured_text`: novelty and overlap from the clues' texts; otherwise drawn as METHOD 9 says for
        tasks without text."""
        self.cognition = cognition
        self.horizon = horizon
        self.measured_text = measured_text

    async def open(self, episodes: Episodes, full_information: bool = False) -> CognitiveState:
        """Agents perceive the clues they hold and state a first belief. Raises UserError for a task without
        evidence."""
        key = episodes.key
        cohort = self._cohort(episodes)
        minds = self._wake(cohort, full_information)
        view = opening(
            key,
            _softmax(minds.latent + self._reading(fold(key, 0), minds.latent.shape)),
            horizon=horizon_of(self.horizon, episodes.tasks[0].n_agents),
            max_words=1.0,
        )
        return CognitiveState(cohort, np.arange(episodes.size), view, minds)

    def view(self, state: CognitiveState) -> PublicView:
        """The public record."""
        return state.view

    def select(self, state: CognitiveState, rows: Ints | Bools) -> CognitiveState:
        """Some discussions of the batch."""
        index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return CognitiveState(
            state.cohort, state.source[index], take(state.view, index), take(state.minds, index)
        )

    async def final_votes(self, state: CognitiveState) -> Votes:
        """A fresh read of every agent's log-odds."""
        key = keys("final vote", state.view.key, state.view.rounds)
        beliefs = _softmax(state.minds.latent + self._reading(key, state.minds.latent.shape))
        return Votes(choice=beliefs.argmax(-1), beliefs=beliefs)

    async def branch(self, state: CognitiveState, candidates: Candidates) -> CognitiveState:
        """All candidate messages from the frozen state, each heard by everybody: B·C rows."""
        size, width = candidates.actions.shape
        view = state.view
        key = keys("branch", view.key[:, None], view.rounds[:, None], candidates.actions, candidates.draws)
        evidence = state.cohort.perceived[state.source]
        turn = self._speak(state, evidence, candidates, key)
        minds = self._listen(state, evidence, candidates, turn)
        novelty, overlap = self._measure(state, turn, key)
        flat = Minds(*(_flatten(getattr(minds, field.name)) for field in fields(minds)))
        beliefs = _softmax(flat.latent + self._reading(fold(key, 1).reshape(-1), flat.latent.shape))
        said = Utterance(
            words=self._words()[candidates.actions].reshape(-1),
            novelty=novelty.reshape(-1),
            overlap=overlap.reshape(-1),
            beliefs=beliefs,
            stale=np.zeros(beliefs.shape[:2], bool),
        )
        rows = np.repeat(np.arange(size), width)
        advanced = advance(
            take(view, rows),
            candidates.actions.reshape(-1),
            candidates.speakers.reshape(-1),
            candidates.draws.reshape(-1),
            said,
        )
        return CognitiveState(state.cohort, state.source[rows], advanced, flat)

    def _words(self) -> Floats:
        return np.array([*self.cognition.words, 0.0, 1.0])

    def _reading(self, key: Words, shape: tuple[int, ...]) -> Floats:
        noise = normal(fold(key, 7), shape[1] * shape[2]).reshape(shape)
        return self.cognition.sd_read * noise

    def _cohort(self, episodes: Episodes) -> Cohort:
        tasks = episodes.tasks
        evidence = np.stack([task.evidence_array() for task in tasks])[:, None]
        n_agents = tasks[0].n_agents
        shape = (len(tasks), n_agents, *evidence.shape[2:])
        noise = normal(keys("perception", episodes.key), int(np.prod(shape[1:]))).reshape(shape)
        perceived = evidence + self.cognition.sd_agent * noise
        perceived -= perceived.mean(-1, keepdims=True)
        text = _clue_words(episodes) if self.measured_text else None
        return Cohort(tasks[0].n_shared, perceived, episodes.key, text)

    def _wake(self, cohort: Cohort, full_information: bool) -> Minds:
        size, n_agents, n_clues, n_options = cohort.perceived.shape
        agents = np.arange(n_agents)
        memory = np.zeros((size, n_agents, n_clues))
        memory[:, :, : cohort.n_shared] = 1.0
        if full_information:
            dice = uniform(keys("miss", cohort.key), n_agents * n_clues).reshape(memory.shape)
            memory[:, :, cohort.n_shared :] = dice[:, :, cohort.n_shared :] > self.cognition.miss
        memory[:, agents, cohort.n_shared + agents] = 1.0
        start = normal(keys("start", cohort.key), n_agents * n_options).reshape(size, n_agents, n_options)
        return Minds(
            memory=memory,
            latent=_weigh(memory, cohort.perceived) + self.cognition.sd_start * start,
            surfaced=np.zeros((size, n_agents), bool),
            mentions=np.zeros((size, n_clues)),
            stated=np.full((size, n_agents), _NO_STATEMENT),
        )

    def _speak(self, state: CognitiveState, evidence: Floats, candidates: Candidates, key: Words) -> _Turn:
        """Which clue each candidate's speaker mentions: by the intervention if the agent complies, else by
        Stasser–Titus sampling."""
        minds, actions = state.minds, candidates.actions
        rows = np.arange(len(actions))[:, None]
        speaker = np.where(actions == VOTE, 0, candidates.speakers)
        own = state.cohort.n_shared + speaker
        preference = minds.latent.argmax(-1)[rows, speaker]
        memory = minds.memory[rows, speaker]
        held = evidence[rows, speaker]
        for_favourite = np.take_along_axis(held, preference[..., None, None], 3)[..., 0]
        unshared = ~minds.surfaced[rows, speaker]
        dice = uniform(key, 2 + memory.shape[-1])
        weight = memory * np.where(for_favourite > 0, np.exp(self.cognition.preference_tilt), 1.0)
        own_weight = np.take_along_axis(weight, own[..., None], 2)
        damped = own_weight * np.where(unshared, self.cognition.unshared_weight, 1.0)[..., None]
        np.put_along_axis(weight, own[..., None], damped, 2)
        reach = weight.cumsum(-1)
        sampled = (reach > dice[..., :1] * reach[..., -1:]).argmax(-1)
        lead = leader(state.view.beliefs)
        against_leader = -held[rows, np.arange(held.shape[1]), :, lead[:, None]]
        told = minds.mentions[:, None]
        score = np.where(
            (actions == CHALLENGE)[..., None],
            against_leader - _MENTION_PENALTY * told,
            np.where(
                (actions == CLARIFY)[..., None],
                for_favourite - _MENTION_PENALTY * told,
                1e-3 * dice[..., 2:] - told,
            ),
        )
        instructed = np.where(memory > 0, score, _NOT_KNOWN).argmax(-1)
        offers_own = (actions != CHALLENGE) & (actions != CLARIFY) & unshared
        instructed = np.where(offers_own, own, instructed)
        comply = np.array([*self.cognition.comply, 0.0, 0.0])[actions]
        complied = dice[..., 1] < comply
        item = np.where(complied, instructed, sampled)
        first_private = (actions != VOTE) & (item == own) & unshared
        return _Turn(item, speaker, preference, complied, first_private)

    def _listen(self, state: CognitiveState, evidence: Floats, candidates: Candidates, turn: _Turn) -> Minds:
        """Everybody's memory, statements and log-odds after each candidate message, shapes (B, C, ...)."""
        minds, c = state.minds, self.cognition
        actions = candidates.actions
        spoken = actions != VOTE
        rows = np.arange(len(actions))[:, None]
        columns = np.arange(actions.shape[1])
        memory = self._remember(state, evidence, turn, spoken, (actions == CLARIFY) & turn.complied)
        mentions = np.repeat(minds.mentions[:, None], actions.shape[1], 1)
        mentions[rows, columns, turn.item] += spoken
        surfaced = np.repeat(minds.surfaced[:, None], actions.shape[1], 1)
        surfaced[rows, columns, turn.speaker] |= turn.first_private
        stated = np.repeat(minds.stated[:, None], actions.shape[1], 1)
        before = stated[rows, columns, turn.speaker]
        stated[rows, columns, turn.speaker] = np.where(spoken, turn.preference, before)
        challenged = ((actions == CHALLENGE) & turn.complied)[..., None, None]
        pressure = c.conformity * np.where(challenged, c.challenge_conformity, 1.0)
        speed = np.where(challenged, min(1.0, c.speed * c.challenge_speed), c.speed)
        target = _weigh(memory, evidence[:, None]) + pressure * _conformity(stated, evidence.shape[-1])
        latent = (1 - speed) * minds.latent[:, None] + speed * target
        latent = np.where(spoken[..., None, None], latent, minds.latent[:, None])
        return Minds(memory, latent, surfaced, mentions, stated)

    def _remember(
        self, state: CognitiveState, evidence: Floats, turn: _Turn, spoken: Bools, clarified: Bools
    ) -> Floats:
        """Memory weights (B, C, N, M): decay, uptake or repetition of the clue heard, refresh by Clarify."""
        c, minds, n_shared = self.cognition, state.minds, state.cohort.n_shared
        size, width = turn.item.shape
        n_agents = minds.memory.shape[1]
        rows, agents = np.arange(size)[:, None, None], np.arange(n_agents)
        decayed = minds.memory * (1 - c.forgetting)
        decayed[:, agents, n_shared + agents] = minds.memory[:, agents, n_shared + agents]
        memory = np.where(spoken[..., None, None], decayed[:, None], minds.memory[:, None])
        item = turn.item[..., None]
        columns = np.arange(width)[:, None]
        known = memory[rows, columns, agents, item]
        heard = evidence[rows, agents, item]
        favourite = minds.latent.argmax(-1)[:, None, :, None]
        contrary = np.take_along_axis(heard, np.broadcast_to(favourite, (*known.shape, 1)), 3)[..., 0] < 0
        learned = c.uptake * (1 - c.contrary_discount * contrary)
        updated = np.where(known > 0, np.minimum(c.memory_ceiling, known + c.repetition), learned)
        speaking = agents == turn.speaker[..., None]
        updated = np.where(speaking, np.maximum(known, 1.0), updated)
        memory[rows, columns, agents, item] = np.where(spoken[..., None], updated, known)
        if clarified.any():
            discussed = (minds.mentions > 0)[:, None, None, :] & (memory > 0) & (memory < 1)
            refreshed = memory + c.clarify_refresh * (1 - memory)
            memory = np.where(clarified[..., None, None] & discussed, refreshed, memory)
        return memory

    def _measure(self, state: CognitiveState, turn: _Turn, key: Words) -> tuple[Floats, Floats]:
        """Novelty and overlap (B, C) of each message: from the clues' texts, or drawn."""
        cohort, mentioned = state.cohort, state.minds.mentions > 0
        if cohort.text is None:
            return self._draw_text(turn, mentioned, cohort.n_shared, key)
        source = state.source[:, None]
        earlier = mentioned[:, None]
        known = (cohort.text.held[source, turn.item] & earlier[:, :, None]).any(-1)
        fresh = np.where(known, 0.0, cohort.text.shares[source, turn.item])
        public = earlier | (np.arange(mentioned.shape[1]) < cohort.n_shared)
        overlap = np.where(public, cohort.text.overlap[source, turn.item], 0.0).max(-1)
        return _in_order(fresh), overlap

    @staticmethod
    def _draw_text(turn: _Turn, mentioned: Bools, n_shared: int, key: Words) -> tuple[Floats, Floats]:
        dice = uniform(fold(key, 2), 2)
        fresh = np.interp(dice[..., 0], *_beta_quantiles(8.0, 2.5))
        stale = np.interp(dice[..., 1], *_beta_quantiles(1.5, 10.0))
        said = mentioned[np.arange(len(mentioned))[:, None], turn.item] | (turn.item < n_shared)
        repeated = np.clip(np.where(said, 1 - 1.5 * stale, 1 - fresh), 0.0, 1.0)
        return np.where(turn.first_private, fresh, stale), np.where(turn.first_private, 1 - fresh, repeated)


@lru_cache(maxsize=4)
def _beta_quantiles(a: float, b: float) -> tuple[Floats, Floats]:
    """Grid and quantiles of a beta law, for interpolation: its inverse is too slow to call per branch."""
    grid = np.linspace(0.0, 1.0, 4097)
    return grid, scipy.special.betaincinv(a, b, grid)


def _flatten(array: Any) -> Any:
    return array.reshape(-1, *array.shape[2:])


def _softmax(logits: Floats) -> Floats:
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    beliefs: Floats = raised / raised.sum(-1, keepdims=True)
    return beliefs


def _weigh(memory: Floats, evidence: Floats) -> Floats:
    """Σ_j w_ij e_ij over clues: (..., N, M) and (..., N, M, K) -> (..., N, K)."""
    total: Floats = (memory[..., None] * evidence).sum(-2)
    return total


def _conformity(stated: Ints, n_options: int) -> Floats:
    """Pull of the others' last stated preferences (..., N, K), METHOD 9."""
    voices = (stated[..., None] == np.arange(n_options)).astype(float)
    others = voices.sum(-2, keepdims=True) - voices
    heard = others.sum(-1, keepdims=True)
    share = np.where(heard > 0, others / np.maximum(heard, 1) - 1 / n_options, 0.0)
    pull: Floats = share * np.sqrt(heard / (stated.shape[-1] - 1))
    return pull


def _in_order(terms: Floats) -> Floats:
    """Sum over the last axis, term by term: padding with zeros must not change its last bit."""
    total: Floats = terms.cumsum(-1)[..., -1]
    return total


def _clue_words(episodes: Episodes) -> ClueWords:
    tables = [_words_of((task.description, *task.shared_information), task.clues) for task in episodes.tasks]
    width = max(shares.shape[1] for _, shares, _ in tables)
    size, n_clues = len(tables), len(episodes.tasks[0].clues)
    words = ClueWords(
        np.zeros((size, n_clues, n_clues)),
        np.zeros((size, n_clues, width)),
        np.zeros((size, n_clues, width, n_clues), bool),
    )
    for row, (overlap, shares, held) in enumerate(tables):
        words.overlap[row] = overlap
        words.shares[row, :, : shares.shape[1]] = shares
        words.held[row, :, : shares.shape[1]] = held
    return words


@lru_cache(maxsize=8192)
def _words_of(base: tuple[str, ...], clues: tuple[str, ...]) -> tuple[Floats, Floats, Bools]:
    """The tables of one task; cached because every condition of a study opens the same tasks again."""
    return pair_overlap(clues), *fresh_words(base, clues)
