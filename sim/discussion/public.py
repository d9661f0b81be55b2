"""The public record of a batch of discussions: all that state, objective, router and controllers may see.

It has no field for private clues or for the answer (METHOD 0). Both worlds advance it with the same function,
so what a message does to the record is written once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np

from sim.arrays import Bools, Floats, Ints, Words
from sim.discussion.actions import ACTION_NAMES, NOBODY, VOTE
from sim.randomness import fold, mix, text_key
from sim.tasks.task import PublicTask

SHIFT_SCALE = 0.25
NOVEL = 0.35


class Message(msgspec.Struct, frozen=True):
    """One public message: who spoke, under which intervention, and the words."""

    speaker: int
    action: str
    text: str


@dataclass(frozen=True)
class PublicView:
    """H_t of B discussions of N agents and K options, after `rounds` decisions.

    beliefs and previous (B, N, K); stale (B, N): the belief was repeated because the report was unparsable;
    words and evidence (B, N): words spoken and evidence contributed e_i; novelty, overlap, shift and
    last_words (B,) of the last message; path (B, T): codes of the branches committed so far, -1 beyond;
    key (B,): public 64-bit identity of (task, seed). `transcripts` and `tasks` are empty where a world has no
    texts.
    """

    horizon: int
    max_words: float
    rounds: Ints
    beliefs: Floats
    previous: Floats
    stale: Bools
    words: Floats
    evidence: Floats
    novelty: Floats
    overlap: Floats
    shift: Floats
    last_words: Floats
    last_speaker: Ints
    voted: Bools
    path: Ints
    key: Words
    transcripts: tuple[tuple[Message, ...], ...] = ()
    tasks: tuple[PublicTask, ...] = ()

    @property
    def size(self) -> int:
        """Number of discussions B."""
        return len(self.rounds)

    @property
    def n_agents(self) -> int:
        """Number of agents N."""
        return int(self.beliefs.shape[1])

    @property
    def n_options(self) -> int:
        """Number of options K."""
        return int(self.beliefs.shape[2])


@dataclass(frozen=True)
class Utterance:
    """What one message adds to the public record, as a world measured it; all arrays over the batch.

    words, novelty and overlap (B,); beliefs (B, N, K) elicited after it; stale (B, N). `texts` is empty where
    a world has no texts. The entries of a vote are ignored except its beliefs.
    """

    words: Floats
    novelty: Floats
    overlap: Floats
    beliefs: Floats
    stale: Bools
    texts: tuple[str, ...] = ()


def opening(
    key: Words,
    beliefs: Floats,
    *,
    horizon: int,
    max_words: float,
    stale: Bools | None = None,
    tasks: tuple[PublicTask, ...] = (),
) -> PublicView:
    """The record before any message, with the first elicited beliefs."""
    size, n_agents, _ = beliefs.shape
    return PublicView(
        horizon=horizon,
        max_words=max_words,
        rounds=np.zeros(size, np.int64),
        beliefs=beliefs,
        previous=beliefs,
        stale=np.zeros((size, n_agents), bool) if stale is None else stale,
        words=np.zeros((size, n_agents)),
        evidence=np.zeros((size, n_agents)),
        novelty=np.zeros(size),
        overlap=np.zeros(size),
        shift=np.zeros(size),
        last_words=np.zeros(size),
        last_speaker=np.full(size, NOBODY),
        voted=np.zeros(size, bool),
        path=np.full((size, horizon), -1),
        key=key,
        transcripts=((),) * size if tasks else (),
        tasks=tasks,
    )


def listener_shift(beliefs: Floats, previous: Floats, speaker: Ints) -> Floats:
    """δ (B,): mean total variation of the listeners' beliefs over 0.25, at most 1 (METHOD 1)."""
    moved = 0.5 * np.abs(beliefs - previous).sum(-1)
    moved[np.arange(len(speaker)), speaker] = 0.0
    mean: Floats = moved.sum(1) / (moved.shape[1] - 1)
    return np.minimum(1.0, mean / SHIFT_SCALE)


def advance(view: PublicView, actions: Ints, speakers: Ints, draws: Ints, said: Utterance) -> PublicView:
    """The record after one intervention each: actions, speakers and draws (B,). The view is not changed."""
    rows = np.arange(view.size)
    spoken = actions != VOTE
    speaker = np.where(spoken, speakers, 0)
    words, last_words = view.words.copy(), np.where(spoken, said.words, 0.0)
    words[rows, speaker] += last_words
    novelty = np.where(spoken, said.novelty, 0.0)
    evidence = view.evidence.copy()
    gained = evidence[rows, speaker] + np.where(novelty > NOVEL, novelty, 0.0)
    evidence[rows, speaker] = np.minimum(1.0, gained)
    path = view.path.copy()
    path[rows, view.rounds] = step_code(actions, speakers, draws)
    return replace(
        view,
        rounds=view.rounds + 1,
        beliefs=said.beliefs,
        previous=view.beliefs,
        stale=said.stale,
        words=words,
        evidence=evidence,
        novelty=novelty,
        overlap=np.where(spoken, said.overlap, 0.0),
        shift=np.where(spoken, listener_shift(said.beliefs, view.beliefs, speaker), 0.0),
        last_words=last_words,
        last_speaker=np.where(spoken, speakers, view.last_speaker),
        voted=view.voted | ~spoken,
        path=path,
        transcripts=_extend(view, actions, speakers, said.texts),
    )


def _extend(
    view: PublicView, actions: Ints, speakers: Ints, texts: tuple[str, ...]
) -> tuple[tuple[Message, ...], ...]:
    if not view.transcripts:
        return ()
    return tuple(
        heard if action == VOTE else (*heard, Message(int(speaker), ACTION_NAMES[action], text))
        for heard, action, speaker, text in zip(view.transcripts, actions, speakers, texts, strict=True)
    )


def step_code(actions: Ints, speakers: Ints, draws: Ints) -> Ints:
    """One integer per branch step: action, speaker (NOBODY allowed) and draw."""
    return ((actions * 64) + speakers + 1) * 64 + draws


def step_text(code: int) -> str:
    """A step code as read in records: `route@2`, `vote`, `free@0#3`."""
    action, speaker, draw = code // 4096, code // 64 % 64 - 1, code % 64
    at = "" if speaker == NOBODY else f"@{speaker}"
    return f"{ACTION_NAMES[action]}{at}" + (f"#{draw}" if draw else "")


def path_texts(view: PublicView) -> list[str]:
    """The committed path of each discussion as text, steps joined by `/`; empty before any message."""
    names: dict[int, str] = {-1: ""}
    for code in np.unique(view.path).tolist():
        names.setdefault(code, step_text(code))
    return [
        "/".join(names[code] for code in steps[:count])
        for steps, count in zip(view.path.tolist(), view.rounds.tolist(), strict=True)
    ]


def digest(view: PublicView) -> Words:
    """64-bit content hash of each discussion's public record (B,), texts included, to assert that what was
    accepted is what was committed (METHOD 3)."""
    numbers = [
        view.beliefs.reshape(view.size, -1),
        view.previous.reshape(view.size, -1),
        view.words,
        view.evidence,
        np.stack([view.novelty, view.overlap, view.shift, view.last_words], 1),
    ]
    codes = [view.path, view.stale, np.stack([view.rounds, view.last_speaker, view.voted], 1)]
    content = np.concatenate(
        [
            np.concatenate(numbers, axis=1).view(np.uint64),
            np.concatenate(codes, axis=1).astype(np.uint64),
            _text_words(view),
        ],
        axis=1,
    )
    salt = mix(np.arange(1, content.shape[1] + 1, dtype=np.uint64))
    return fold(view.key, np.bitwise_xor.reduce(mix(content + salt), axis=1))


def _text_words(view: PublicView) -> Words:
    """What was said and what it was about as one 64-bit word each, shape (B, 0 to 2)."""
    texts = [[text_key(repr(heard)) for heard in view.transcripts], [text_key(repr(t)) for t in view.tasks]]
    return np.array([column for column in texts if column], np.uint64).reshape(-1, view.size).T
