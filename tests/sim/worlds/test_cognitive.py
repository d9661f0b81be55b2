"""Cognitive agents as a world: pure branching, and randomness that depends on its key alone."""

from __future__ import annotations

import asyncio
from dataclasses import fields, is_dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.arrays import Ints
from sim.discussion.actions import FREE, Candidates, free_messages, interventions
from sim.discussion.ending import default_horizon
from sim.discussion.routing import candidates, make_router
from sim.errors import UserError
from sim.randomness import keys
from sim.tasks import HiddenProfileTask, generate_method, generate_travel
from sim.worlds.cognitive import Cognition, CognitiveState, CognitiveWorld
from sim.worlds.protocol import Episodes, batches, shape_of

DRAWN = CognitiveWorld(Cognition(), 8, measured_text=False)
MEASURED = CognitiveWorld(Cognition(), 8)
WORLDS = st.sampled_from([DRAWN, MEASURED])
ROUTER = make_router("action_conditional")
MENU = interventions(vote=True)
TASKS = generate_travel("medium", 12, seed=2)
SEEDS = np.arange(12) % 3


def opened(world: CognitiveWorld, rows: Ints) -> CognitiveState:
    """Some of the tasks, before any message."""
    return asyncio.run(world.open(Episodes(tuple(TASKS[i] for i in rows), SEEDS[rows])))


def stepped(world: CognitiveWorld, state: CognitiveState, columns: Ints) -> CognitiveState:
    """Every branch evaluated, one column committed in each discussion."""
    options = candidates(world.view(state), MENU, ROUTER)
    branches = asyncio.run(world.branch(state, options))
    return world.select(branches, np.arange(state.view.size) * MENU.size + columns)


def arrays(value: Any, path: str = "") -> dict[str, Any]:
    """Every array in a state, by its path."""
    if isinstance(value, np.ndarray):
        return {path: value}
    if not is_dataclass(value):
        return {}
    parts = (arrays(getattr(value, field.name), f"{path}.{field.name}") for field in fields(value))
    return {name: array for part in parts for name, array in part.items()}


def same(first: CognitiveState, second: CognitiveState) -> bool:
    """Whether two states hold the same discussions, bit for bit, whatever cohort they live in."""
    ours = arrays(replace(first, cohort=None, source=None))  # type: ignore[arg-type]
    theirs = arrays(replace(second, cohort=None, source=None))  # type: ignore[arg-type]
    return all(np.array_equal(ours[name], theirs[name]) for name in ours | theirs)


@settings(max_examples=12)
@given(WORLDS, st.integers(0, 100))
def test_no_call_changes_the_state_it_is_given(world: CognitiveWorld, seed: int) -> None:
    state = stepped(world, opened(world, np.arange(12)), np.random.default_rng(seed).integers(0, 4, 12))
    before = {name: array.copy() for name, array in arrays(state).items()}
    options = candidates(world.view(state), MENU, ROUTER)
    branches = asyncio.run(world.branch(state, options))
    asyncio.run(world.final_votes(state))
    asyncio.run(world.branch(branches, candidates(world.view(branches), MENU, ROUTER)))
    world.select(state, np.array([3, 1]))
    after = arrays(state)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


@settings(max_examples=12)
@given(WORLDS, st.lists(st.integers(0, 11), min_size=1, max_size=12), st.integers(0, 100), st.integers(1, 3))
def test_a_discussion_is_the_same_bit_for_bit_in_any_batch(
    world: CognitiveWorld, rows: list[int], seed: int, rounds: int
) -> None:
    """Any subset, in any order, even with repetitions, even alone."""
    chosen = np.array(rows)
    whole, part = opened(world, np.arange(12)), opened(world, chosen)
    paths = np.random.default_rng(seed).integers(0, 4, (rounds, 12))
    for columns in paths:
        whole, part = stepped(world, whole, columns), stepped(world, part, columns[chosen])
    assert same(world.select(whole, chosen), part)
    votes, fewer = asyncio.run(world.final_votes(whole)), asyncio.run(world.final_votes(part))
    np.testing.assert_array_equal(votes.beliefs[chosen], fewer.beliefs)


@settings(max_examples=12)
@given(WORLDS, st.permutations(range(MENU.size)), st.integers(1, MENU.size), st.integers(0, 100))
def test_a_branch_does_not_depend_on_the_other_branches(
    world: CognitiveWorld, order: list[int], kept: int, seed: int
) -> None:
    """The same (task, seed, round, action, draw) gives the same branch among any others, in any column."""
    state = stepped(world, opened(world, np.arange(12)), np.random.default_rng(seed).integers(0, 4, 12))
    options = candidates(world.view(state), MENU, ROUTER)
    every = asyncio.run(world.branch(state, options))
    columns = np.array(order[:kept])
    some = asyncio.run(
        world.branch(
            state,
            Candidates(
                options.actions[:, columns], options.speakers[:, columns], options.draws[:, columns],
                options.admissible[:, columns],
            ),
        )
    )  # fmt: skip
    rows = (np.arange(12)[:, None] * MENU.size + columns).reshape(-1)
    assert same(world.select(every, rows), some)


def test_selecting_by_mask_and_by_index_is_the_same() -> None:
    state = opened(MEASURED, np.arange(12))
    mask = np.arange(12) % 3 == 1
    assert same(MEASURED.select(state, mask), MEASURED.select(state, np.flatnonzero(mask)))


def test_every_part_of_the_key_gives_another_branch() -> None:
    """Seed, round and draw each change what is said or felt; the discussion before it stays the same."""
    task = (generate_method(1, seed=1)[0],)

    def branch(seed: int, rounds: int, draw: int) -> float:
        state = asyncio.run(DRAWN.open(Episodes(task, np.array([seed]))))
        later = replace(state, view=replace(state.view, rounds=np.array([rounds])))
        action, speaker, number = (np.array([[value]]) for value in (FREE, 0, draw))
        one = Candidates(action, speaker, number, np.array([[True]]))
        return float(asyncio.run(DRAWN.branch(later, one)).view.novelty[0])

    values = {branch(0, 0, 0), branch(1, 0, 0), branch(0, 1, 0), branch(0, 0, 1)}
    assert len(values) == 4
    assert branch(0, 0, 0) in values


def test_draws_of_one_state_are_independent() -> None:
    """One mind asked 1,500 times for four messages: nothing that is drawn is shared between the draws."""
    start = asyncio.run(DRAWN.open(Episodes(generate_method(1, seed=3), np.zeros(1, np.int64))))
    many = DRAWN.select(start, np.zeros(1500, np.int64))
    many = replace(many, view=replace(many.view, key=keys("asked again", np.arange(1500))))
    branches = asyncio.run(DRAWN.branch(many, candidates(many.view, free_messages(4), ROUTER)))
    noise = np.log(branches.view.beliefs) - branches.minds.latent
    drawn = {
        "novelty": branches.view.novelty,
        "item": branches.minds.mentions.argmax(1).astype(float),
        "reading": (noise - noise.mean(-1, keepdims=True))[:, 0, 0],
    }
    for name, values in drawn.items():
        correlation = np.asarray(np.corrcoef(values.reshape(1500, 4).T))[np.triu_indices(4, 1)]
        assert (np.abs(correlation) < 3.9 / np.sqrt(1500)).all(), name  # 18 tests at 1e-4 each


def test_final_votes_are_fresh_reads_of_the_same_minds() -> None:
    state = opened(DRAWN, np.arange(12))
    votes = asyncio.run(DRAWN.final_votes(state))
    assert (votes.beliefs != state.view.beliefs).all()
    noise = np.log(votes.beliefs) - state.minds.latent
    assert np.abs(noise - noise.mean(-1, keepdims=True)).max() < 0.5  # five standard deviations of sd_read
    np.testing.assert_array_equal(votes.choice, votes.beliefs.argmax(-1))
    again = asyncio.run(DRAWN.final_votes(state))
    np.testing.assert_array_equal(votes.beliefs, again.beliefs)


@pytest.mark.parametrize("n_agents", [3, 4, 5, 8])
def test_the_horizon_defaults_to_the_number_of_agents(n_agents: int) -> None:
    tasks = generate_travel("easy", 1, seed=1, n_agents=n_agents, n_options=3, n_shared=4)
    state = asyncio.run(CognitiveWorld(Cognition()).open(Episodes(tasks, np.zeros(1, np.int64))))
    assert state.view.horizon == default_horizon(n_agents) == (8 if n_agents <= 4 else 2 * n_agents)


def test_a_task_without_evidence_is_refused_by_name() -> None:
    task = msgspec.structs.replace(generate_method(1, seed=1)[0], evidence=None)
    with pytest.raises(UserError, match=rf"task '{task.id}': field 'evidence': None; .* world=language"):
        asyncio.run(DRAWN.open(Episodes((task,), np.zeros(1, np.int64))))


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from([(4, 3, 4), (3, 4, 4), (5, 3, 5)]), min_size=1, max_size=9), st.integers(1, 5)
)
def test_batches_hold_one_shape_and_every_discussion_once(
    shapes: list[tuple[int, int, int]], limit: int
) -> None:
    tasks = tuple(_shaped(place, shape) for place, shape in enumerate(shapes))
    cut = batches(tasks, (0, 7), limit)
    assert all(1 <= part.size <= limit for part in cut)
    assert all(len({shape_of(task) for task in part.tasks}) == 1 for part in cut)
    held = [(task.id, int(seed)) for part in cut for task, seed in zip(part.tasks, part.seeds, strict=True)]
    assert sorted(held) == sorted((task.id, seed) for task in tasks for seed in (0, 7))


def _shaped(place: int, shape: tuple[int, int, int]) -> HiddenProfileTask:
    n_agents, n_options, n_shared = shape
    return HiddenProfileTask(
        id=f"t{place}", name="t", description="d", family=f"t{place}", correct_answer="0",
        shared_information=tuple(f"s{i}" for i in range(n_shared)),
        hidden_information=tuple(f"h{i}" for i in range(n_agents)),
        possible_answers=tuple(str(i) for i in range(n_options)),
    )  # fmt: skip
