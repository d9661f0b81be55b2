"""Who plays which seat: rotation is exact over seeds, spread over tasks, and depends on nothing else."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sim.discussion.seating import Rotation, seated

ORDERS = st.integers(1, 6).map(lambda n: tuple("abcdef"[:n]))
AGENTS = st.integers(2, 8)
TASKS = st.text(min_size=1, max_size=8)
SEEDS = st.integers(0, 10**6)


@given(ORDERS, AGENTS, TASKS, SEEDS, st.sampled_from(["none", "tasks", "seeds", "both"]))
def test_neighbours_in_the_order_are_neighbours_at_the_table(
    order: tuple[str, ...], n_agents: int, task: str, seed: int, rotate: Rotation
) -> None:
    members = seated(order, rotate, task, seed, n_agents)
    assert len(members) == n_agents
    for left, right in pairwise(members):
        assert order[(order.index(left) + 1) % len(order)] == right


@given(ORDERS, AGENTS, TASKS, SEEDS, st.sampled_from(["seeds", "both"]))
def test_as_many_seeds_as_members_put_each_on_every_seat_once(
    order: tuple[str, ...], n_agents: int, task: str, seed: int, rotate: Rotation
) -> None:
    tables = [seated(order, rotate, task, seed + i, n_agents) for i in range(len(order))]
    for seat in zip(*tables, strict=True):
        assert sorted(seat) == sorted(order)


@given(ORDERS, AGENTS, TASKS, SEEDS)
def test_what_is_not_rotated_over_does_not_matter(
    order: tuple[str, ...], n_agents: int, task: str, seed: int
) -> None:
    fixed = seated(order, "none", task, seed, n_agents)
    assert fixed == tuple(order[i % len(order)] for i in range(n_agents))
    assert seated(order, "tasks", task, seed, n_agents) == seated(order, "tasks", task, 0, n_agents)
    assert seated(order, "seeds", task, seed, n_agents) == seated(order, "seeds", "other", seed, n_agents)


def test_tasks_spread_the_members_evenly() -> None:
    """2,000 tasks on four members: a count leaves 500 ± 4.4 standard deviations with probability 1e-5."""
    firsts = Counter(seated("abcd", "tasks", f"task {i}", 0, 4)[0] for i in range(2000))
    assert firsts.keys() == set("abcd")
    assert all(abs(count - 500) < 4.4 * (2000 * 0.25 * 0.75) ** 0.5 for count in firsts.values())
