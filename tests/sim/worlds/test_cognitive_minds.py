"""What a message does to the agents, recomputed agent by agent in plain arithmetic from METHOD 9's sentences."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, chisquare, kstest, norm

from sim.arrays import Floats, Ints
from sim.discussion.actions import (
    ACTION_NAMES,
    CHALLENGE,
    CLARIFY,
    FREE,
    ROUTE,
    SEEK_EVIDENCE,
    VOTE,
    Candidates,
    free_messages,
    interventions,
)
from sim.discussion.routing import candidates, make_router
from sim.discussion.text import novelty, overlap, vocabulary
from sim.errors import UserError
from sim.randomness import keys
from sim.tasks import HiddenProfileTask, generate_method, generate_travel
from sim.worlds.cognitive import Cognition, CognitiveState, CognitiveWorld
from sim.worlds.protocol import Episodes

ROUTER = make_router("round_robin")
OBEDIENT = Cognition(comply=(1.0, 1.0, 1.0, 1.0))
DEAF = Cognition(comply=(0.0, 0.0, 0.0, 0.0))


def world(cognition: Cognition, measured: bool = False) -> CognitiveWorld:
    """A world of such agents over eight rounds."""
    return CognitiveWorld(cognition, 8, measured_text=measured)


def opened(where: CognitiveWorld, tasks: tuple[HiddenProfileTask, ...], full: bool = False) -> CognitiveState:
    """The agents before any message."""
    return asyncio.run(where.open(Episodes(tasks, np.arange(len(tasks))), full))


def offers(state: CognitiveState, actions: Ints, speakers: Ints) -> Candidates:
    """One candidate per discussion."""
    shape = (state.view.size, 1)
    return Candidates(
        actions.reshape(shape), speakers.reshape(shape), np.zeros(shape, np.int64), np.ones(shape, bool)
    )


def talked(where: CognitiveWorld, state: CognitiveState, seed: int, rounds: int) -> CognitiveState:
    """The state after some rounds of random interventions to random agents."""
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        action = rng.choice([CHALLENGE, CLARIFY, SEEK_EVIDENCE, ROUTE, FREE], state.view.size)
        speaker = rng.integers(0, state.view.n_agents, state.view.size)
        state = asyncio.run(where.branch(state, offers(state, action, speaker)))
    return state


def said(before: CognitiveState, after: CognitiveState) -> Ints:
    """The clue mentioned in each discussion."""
    item: Ints = (after.minds.mentions - before.minds.mentions).argmax(1)
    return item


@dataclass(frozen=True)
class Mind:
    """One discussion's private state, taken out of the arrays."""

    evidence: Floats
    memory: Floats
    latent: Floats
    surfaced: Floats
    mentions: Floats
    stated: Ints
    lead: int
    n_shared: int


def mind(state: CognitiveState, row: int) -> Mind:
    """The row's agents."""
    m = state.minds
    return Mind(
        evidence=state.cohort.perceived[state.source[row]],
        memory=m.memory[row],
        latent=m.latent[row],
        surfaced=m.surfaced[row].astype(float),
        mentions=m.mentions[row],
        stated=m.stated[row],
        lead=int(state.view.beliefs[row].mean(0).argmax()),
        n_shared=state.cohort.n_shared,
    )


def instructed(m: Mind, action: int, speaker: int) -> set[int]:
    """The clues a complying speaker may mention (several where the rule ties)."""
    known = [j for j in range(len(m.mentions)) if m.memory[speaker, j] > 0]
    own, favourite = m.n_shared + speaker, int(m.latent[speaker].argmax())
    if action in (SEEK_EVIDENCE, ROUTE):
        if not m.surfaced[speaker]:
            return {own}
        fewest = min(m.mentions[j] for j in known)
        return {j for j in known if m.mentions[j] == fewest}
    option, sign = (m.lead, -1.0) if action == CHALLENGE else (favourite, 1.0)
    scores = {j: sign * m.evidence[speaker, j, option] - 0.3 * m.mentions[j] for j in known}
    return {j for j in known if scores[j] == max(scores.values())}


def heard(c: Cognition, m: Mind, action: int, speaker: int, item: int) -> tuple[Floats, Floats]:
    """Memory (N, M) and log-odds (N, K) after everybody heard the item from a complying speaker."""
    n, n_clues = m.memory.shape
    k = m.latent.shape[1]
    memory = m.memory.copy()
    for i in range(n):
        for j in range(n_clues):
            if j != m.n_shared + i:
                memory[i, j] *= 1 - c.forgetting
        contrary = m.evidence[i, item, int(m.latent[i].argmax())] < 0
        if i == speaker:
            memory[i, item] = max(memory[i, item], 1.0)
        elif memory[i, item] > 0:
            memory[i, item] = min(c.memory_ceiling, memory[i, item] + c.repetition)
        else:
            memory[i, item] = c.uptake * (1 - c.contrary_discount * contrary)
        for j in range(n_clues):
            if action == CLARIFY and m.mentions[j] > 0 and 0 < memory[i, j] < 1:
                memory[i, j] += c.clarify_refresh * (1 - memory[i, j])
    stated = m.stated.copy()
    stated[speaker] = m.latent[speaker].argmax()
    challenged = action == CHALLENGE
    pressure = c.conformity * (c.challenge_conformity if challenged else 1.0)
    speed = min(1.0, c.speed * c.challenge_speed) if challenged else c.speed
    latent = np.empty_like(m.latent)
    for i in range(n):
        voices = [int(stated[o]) for o in range(n) if o != i and stated[o] >= 0]
        pull = np.zeros(k)
        if voices:
            share = np.array([voices.count(option) for option in range(k)]) / len(voices)
            pull = (share - 1 / k) * np.sqrt(len(voices) / (n - 1))
        target = sum(memory[i, j] * m.evidence[i, j] for j in range(n_clues)) + pressure * pull
        latent[i] = (1 - speed) * m.latent[i] + speed * target
    return memory, latent


PARAMETERS = st.builds(
    Cognition,
    comply=st.just((1.0, 1.0, 1.0, 1.0)),
    speed=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    uptake=st.sampled_from([0.5, 0.95]),
    contrary_discount=st.sampled_from([0.0, 0.08, 0.6]),
    repetition=st.sampled_from([0.0, 0.18, 0.9]),
    memory_ceiling=st.sampled_from([1.0, 1.5]),
    forgetting=st.sampled_from([0.0, 0.01, 0.3]),
    conformity=st.sampled_from([0.0, 0.9, 3.0]),
    challenge_conformity=st.sampled_from([0.0, 0.35, 1.0]),
    challenge_speed=st.sampled_from([1.0, 1.3]),
    clarify_refresh=st.sampled_from([0.0, 0.35, 1.0]),
)


@settings(max_examples=25)
@given(PARAMETERS, st.integers(0, 500), st.integers(0, 5))
def test_a_message_moves_memory_and_log_odds_as_method_9_says(c: Cognition, seed: int, rounds: int) -> None:
    where = world(c)
    state = talked(where, opened(where, generate_method(8, seed=seed)), seed, rounds)
    rng = np.random.default_rng(seed + 1)
    action, speaker = rng.choice([CHALLENGE, CLARIFY, SEEK_EVIDENCE, ROUTE], 8), rng.integers(0, 4, 8)
    after = asyncio.run(where.branch(state, offers(state, action, speaker)))
    items = said(state, after)
    for row in range(8):
        before, a, i, item = mind(state, row), int(action[row]), int(speaker[row]), int(items[row])
        assert item in instructed(before, a, i), (ACTION_NAMES[a], item)
        memory, latent = heard(c, before, a, i, item)
        np.testing.assert_allclose(after.minds.memory[row], memory, atol=1e-12)
        np.testing.assert_allclose(after.minds.latent[row], latent, atol=1e-12)
        assert after.minds.stated[row, i] == before.latent[i].argmax()
        assert after.minds.surfaced[row, i] == (before.surfaced[i] or item == before.n_shared + i)


def test_a_vote_changes_no_mind_and_says_nothing() -> None:
    where = world(Cognition(sd_read=0.0))
    state = talked(where, opened(where, generate_method(20, seed=1)), 1, 3)
    votes = offers(state, np.full(20, VOTE), np.full(20, -1))
    after = asyncio.run(where.branch(state, votes))
    for name in ("memory", "latent", "surfaced", "mentions", "stated"):
        np.testing.assert_array_equal(getattr(after.minds, name), getattr(state.minds, name))
    np.testing.assert_array_equal(after.view.beliefs, state.view.beliefs)
    assert after.view.voted.all()
    np.testing.assert_array_equal(after.view.words, state.view.words)


def test_an_uninstructed_speaker_samples_as_stasser_and_titus() -> None:
    """One mind asked 6,000 times: frequencies against w·ψ^[own unshared]·e^(χ·[supports own favourite])."""
    c, size = DEAF, 6000
    where = world(c)
    start = talked(where, opened(where, generate_method(1, seed=3)), 2, 3)
    for speaker in range(4):
        many = where.select(start, np.zeros(size, np.int64))
        many = replace(many, view=replace(many.view, key=keys("asked again", np.arange(size))))
        asked = offers(many, np.full(size, CHALLENGE), np.full(size, speaker))
        counts = np.bincount(said(many, asyncio.run(where.branch(many, asked))), minlength=8)
        m = mind(start, 0)
        supports = m.evidence[speaker, :, int(m.latent[speaker].argmax())] > 0
        weight = m.memory[speaker] * np.exp(c.preference_tilt * supports)
        if not m.surfaced[speaker]:
            weight[m.n_shared + speaker] *= c.unshared_weight
        expected = size * weight / weight.sum()
        assert counts[weight == 0].sum() == 0
        assert chisquare(counts[weight > 0], expected[weight > 0]).pvalue > 1e-3


@pytest.mark.parametrize("action", [CHALLENGE, CLARIFY, SEEK_EVIDENCE, ROUTE])
def test_agents_comply_as_often_as_configured(action: int) -> None:
    """Where the instructed clue is one that free sampling can never give (the ψ of the own clue is 0), its
    frequency is the compliance itself."""
    comply = [0.0] * 4
    comply[action] = 0.6
    size = 3000
    where = world(Cognition(comply=(*comply,), unshared_weight=0.0))  # type: ignore[arg-type]
    state = opened(where, generate_method(size, seed=4))
    spoken = offers(state, np.full(size, action), np.zeros(size, np.int64))
    after = asyncio.run(where.branch(state, spoken))
    unique = [instructed(mind(state, row), action, 0) == {4} for row in range(size)]
    told_own = (said(state, after) == 4)[unique]
    assert len(told_own) > 200
    assert abs(told_own.mean() - 0.6) < 3.29 * np.sqrt(0.24 / len(told_own))


def test_beliefs_are_the_softmax_of_log_odds_read_with_noise() -> None:
    exact = world(Cognition(sd_read=0.0))
    state = talked(exact, opened(exact, generate_method(50, seed=5)), 3, 2)
    raised = np.exp(state.minds.latent)
    np.testing.assert_allclose(state.view.beliefs, raised / raised.sum(-1, keepdims=True), rtol=1e-12)
    noisy = world(Cognition(sd_read=0.3))
    read = opened(noisy, generate_method(3000, seed=5))
    error = np.log(read.view.beliefs) - read.minds.latent
    centred = (error - error.mean(-1, keepdims=True)).reshape(-1, 3)
    assert kstest(centred[:, 0] / (0.3 * np.sqrt(2 / 3)), norm.cdf).pvalue > 1e-3


def test_perception_and_first_opinions_have_their_noise() -> None:
    tasks = generate_method(1500, seed=6)
    state = opened(world(Cognition(sd_agent=0.85, sd_start=0.3)), tasks)
    truth = np.stack([task.evidence_array() for task in tasks])[:, None]
    noise = (state.cohort.perceived - truth)[:, 0, 0, 0]
    assert kstest(noise / (0.85 * np.sqrt(2 / 3)), norm.cdf).pvalue > 1e-3
    weighed = (state.minds.memory[..., None] * state.cohort.perceived).sum(2)
    assert kstest((state.minds.latent - weighed)[:, 0, 0] / 0.3, norm.cdf).pvalue > 1e-3
    np.testing.assert_allclose(state.cohort.perceived.sum(-1), 0, atol=1e-12)


def test_agents_hold_the_shared_clues_and_their_own() -> None:
    state = opened(world(Cognition()), generate_method(5, seed=7))
    expected = np.hstack([np.ones((4, 4)), np.eye(4)])
    np.testing.assert_array_equal(state.minds.memory, np.tile(expected, (5, 1, 1)))


def test_full_information_overlooks_foreign_clues_only_and_as_often_as_configured() -> None:
    state = opened(world(Cognition(miss=0.2)), generate_method(1500, seed=8), full=True)
    memory = state.minds.memory
    assert (memory[:, :, :4] == 1).all()
    assert (memory[:, np.arange(4), 4 + np.arange(4)] == 1).all()
    foreign = memory[:, :, 4:][:, ~np.eye(4, dtype=bool)]
    assert abs(foreign.mean() - 0.8) < 3.29 * np.sqrt(0.16 / foreign.size)
    assert opened(world(Cognition(miss=0.0)), generate_method(50, seed=8), full=True).minds.memory.all()


def test_drawn_text_statistics_have_their_laws() -> None:
    """A private clue said for the first time is novel by Beta(8, 2.5), anything else by Beta(1.5, 10)."""
    where = world(OBEDIENT)
    tasks = generate_method(3000, seed=9)
    first = opened(where, tasks)
    revealing = asyncio.run(
        where.branch(first, offers(first, np.full(3000, ROUTE), np.zeros(3000, np.int64)))
    )
    assert kstest(revealing.view.novelty, beta(8, 2.5).cdf).pvalue > 1e-3
    np.testing.assert_allclose(revealing.view.overlap, 1 - revealing.view.novelty, atol=1e-12)
    again = asyncio.run(
        where.branch(revealing, offers(revealing, np.full(3000, ROUTE), np.zeros(3000, np.int64)))
    )
    assert kstest(again.view.novelty, beta(1.5, 10).cdf).pvalue > 1e-3
    np.testing.assert_allclose(again.view.overlap, np.clip(1 - 1.5 * again.view.novelty, 0, 1), atol=1e-12)


@settings(max_examples=10)
@given(st.integers(0, 300), st.sampled_from([(4, 3, 4), (3, 4, 4), (6, 3, 5)]))
def test_measured_novelty_and_overlap_are_those_of_the_words(seed: int, shape: tuple[int, int, int]) -> None:
    """A clue is said in its own words, so METHOD 1's formulas on the texts must give the same numbers."""
    where = CognitiveWorld(Cognition(), 8)
    n_agents, n_options, n_shared = shape
    tasks = generate_travel("medium", 3, seed, n_agents=n_agents, n_options=n_options, n_shared=n_shared)
    state = opened(where, tasks)
    earlier: list[list[str]] = [[], [], []]
    rng = np.random.default_rng(seed)
    for _ in range(6):
        action, speaker = rng.choice([CLARIFY, ROUTE, FREE], 3), rng.integers(0, n_agents, 3)
        after = asyncio.run(where.branch(state, offers(state, action, speaker)))
        for row, item in enumerate(said(state, after).tolist()):
            task = tasks[row]
            text = task.clues[item]
            public = [*task.shared_information, *earlier[row]]
            known = vocabulary([task.description, *public])
            assert after.view.novelty[row] == pytest.approx(novelty(text, known), abs=1e-12)
            assert after.view.overlap[row] == pytest.approx(overlap(text, public), abs=1e-12)
            earlier[row].append(text)
        state = after


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("miss", 2.0),
        ("speed", -0.1),
        ("uptake", 1.5),
        ("forgetting", float("nan")),
        ("sd_agent", -1.0),
        ("sd_read", float("nan")),
        ("sd_start", float("inf")),
        ("conformity", float("nan")),
        ("memory_ceiling", 1e6),
        ("comply", (0.5, 0.5, 0.5, 1.5)),
        ("comply", (0.5, 0.5, float("nan"), 0.5)),
        ("words", (1.0, 1.0, 0.8, 1.2)),
        ("words", (1.0, -1.0, 0.8, 0.5)),
    ],
)
def test_impossible_agents_are_refused_by_field_and_value(name: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"world\.cognition\.{name} is {re.escape(str(value))}; it must lie"):
        msgspec.structs.replace(Cognition(), **{name: value})


def test_two_draws_of_a_free_message_differ_and_interventions_are_worded_as_configured() -> None:
    where = world(Cognition(words=(0.9, 0.7, 0.5, 0.3)))
    state = opened(where, generate_method(30, seed=10))
    after = asyncio.run(where.branch(state, candidates(state.view, interventions(vote=True), ROUTER)))
    np.testing.assert_array_equal(after.view.last_words.reshape(30, 5)[0], [0.9, 0.7, 0.5, 0.3, 0.0])
    free = asyncio.run(where.branch(state, candidates(state.view, free_messages(2), ROUTER)))
    assert (free.view.last_words == 1.0).all()
    assert (free.view.novelty[0::2] != free.view.novelty[1::2]).all()
