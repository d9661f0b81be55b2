"""The rule table by hand, its noise, and the stubborn controller's memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from controllers.protocol import BEST, Controller
from controllers.references import Best, Fixed, Random
from controllers.rules import NoisyRules, Rules, Stubborn, path_key
from sim.arrays import Floats, Ints, take
from sim.discussion.actions import (
    CHALLENGE,
    CLARIFY,
    FREE,
    ROUTE,
    SEEK_EVIDENCE,
    VOTE,
    Candidates,
    Menu,
    interventions,
)
from sim.discussion.public import PublicView, Utterance, advance, opening
from sim.discussion.routing import action_conditional, candidates
from sim.discussion.state import observe
from sim.errors import UserError
from sim.randomness import keys
from sim.tasks.task import PublicTask

SURE, SPLIT = 0.9, 0.5


def start(beliefs: Floats, horizon: int = 8) -> PublicView:
    task = PublicTask("t", "name", "description", (), ("a", "b"), beliefs.shape[1])
    return opening(
        keys("test", np.arange(len(beliefs))),
        beliefs,
        horizon=horizon,
        max_words=1.0,
        tasks=(task,) * len(beliefs),
    )


def agreeing(size: int, confidence: float) -> Floats:
    """Four agents, all for option 0 of two."""
    return np.tile(np.array([confidence, 1 - confidence]), (size, 4, 1))


def opposed(size: int) -> Floats:
    """Two agents sure of one option, two sure of the other."""
    return np.tile(np.array([[SURE, 1 - SURE], [SURE, 1 - SURE], [0.1, 0.9], [0.1, 0.9]]), (size, 1, 1))


def at(view: PublicView, rounds: int, *, heard: int = 4, evidence: float = 0.0) -> PublicView:
    """The record as it would stand after `rounds` rounds in which `heard` agents spoke."""
    words = np.zeros((view.size, 4))
    words[:, :heard] = 1.0
    return replace(
        view,
        rounds=np.full(view.size, rounds),
        words=words,
        evidence=np.full((view.size, 4), evidence),
    )


def ask(controller: Controller, view: PublicView, menu: Menu | None = None) -> Ints:
    options = candidates(view, menu or interventions(), action_conditional)
    return asyncio.run(controller.propose(view, observe(view), options))


@pytest.mark.parametrize(
    ("beliefs", "rounds", "heard", "evidence", "expected"),
    [
        (agreeing(1, SPLIT), 0, 0, 0.0, ROUTE),
        (agreeing(1, SPLIT), 3, 3, 0.0, ROUTE),
        (agreeing(1, SPLIT), 3, 4, 0.0, SEEK_EVIDENCE),
        (agreeing(1, SURE), 2, 2, 0.0, CHALLENGE),
        (agreeing(1, SURE), 5, 4, 0.0, CHALLENGE),
        (agreeing(1, SURE), 4, 4, 0.0, SEEK_EVIDENCE),
        (agreeing(1, SURE), 2, 4, 0.65, SEEK_EVIDENCE),
        (opposed(1), 4, 4, 0.7, CLARIFY),
        (opposed(1), 4, 4, 0.6, SEEK_EVIDENCE),
        (opposed(1), 4, 3, 0.7, CLARIFY),
    ],
)
def test_rule_table(beliefs: Floats, rounds: int, heard: int, evidence: float, expected: int) -> None:
    assert ask(Rules(), at(start(beliefs), rounds, heard=heard, evidence=evidence)).tolist() == [expected]


def test_later_rules_win() -> None:
    """An early consensus with an informed disagreement hardly occurs, so both are set by hand."""
    view = at(start(opposed(1)), 2, evidence=0.61)
    features = observe(view)
    both = replace(
        features,
        signals=replace(
            features.signals, premature_consensus=np.array([0.36]), disagreement=np.array([0.31])
        ),
    )
    options = candidates(view, interventions(), action_conditional)
    assert asyncio.run(Rules().propose(view, both, options)).tolist() == [CLARIFY]


@pytest.mark.parametrize(
    ("rounds", "evidence", "confidence", "expected"),
    [
        (1, 0.61, 0.9, VOTE),
        (0, 0.61, 0.9, SEEK_EVIDENCE),
        (1, 0.60, 0.9, SEEK_EVIDENCE),
        (1, 0.61, 0.6, SEEK_EVIDENCE),
    ],
)
def test_rules_vote(rounds: int, evidence: float, confidence: float, expected: int) -> None:
    view = at(start(agreeing(1, confidence)), rounds, evidence=evidence)
    assert ask(Rules(vote=True), view, interventions(vote=True)).tolist() == [expected]
    assert ask(Rules(), view).tolist() == [SEEK_EVIDENCE]


def test_noise_has_the_stated_rate_and_is_uniform() -> None:
    size = 40_000
    view = at(start(agreeing(size, SPLIT)), 3)
    share = np.bincount(ask(NoisyRules(0.4), view), minlength=4) / size
    expected = np.array([0.1, 0.1, 0.7, 0.1])
    assert np.abs(share - expected).max() < 4 * np.sqrt(0.25 / size)


def test_noisy_rules_replace_an_ablated_intervention_uniformly() -> None:
    size = 40_000
    view = at(start(agreeing(size, SPLIT)), 0, heard=0)
    share = np.bincount(ask(NoisyRules(0.4), view, interventions(without=("route",))), minlength=4) / size
    assert share[ROUTE] == 0
    assert np.abs(share[:3] - 1 / 3).max() < 4 * np.sqrt(0.25 / size)


def test_proposals_depend_on_the_discussion_and_its_round_alone() -> None:
    view = at(start(agreeing(64, SPLIT)), 3)
    for controller in (NoisyRules(), Random(), Rules()):
        whole = ask(controller, view)
        some = np.array([40, 3, 17])
        np.testing.assert_array_equal(ask(controller, take(view, some)), whole[some])
        np.testing.assert_array_equal(ask(controller, view), whole)
    assert (ask(Random(), view) != ask(Random(), at(view, 4))).any()


def test_random_is_uniform_over_the_admissible_set() -> None:
    size = 40_000
    menu = interventions(vote=True)
    first = ask(Random(), at(start(agreeing(size, SPLIT)), 0), menu)
    later = ask(Random(), at(start(agreeing(size, SPLIT)), 1), menu)
    assert np.abs(np.bincount(first, minlength=5) / size - [0.25, 0.25, 0.25, 0.25, 0.0]).max() < 0.01
    assert np.abs(np.bincount(later, minlength=5) / size - 0.2).max() < 0.01


def test_fixed_and_best() -> None:
    view = start(agreeing(3, SPLIT))
    assert ask(Fixed("clarify"), view).tolist() == [CLARIFY] * 3
    assert Fixed("free").name == "free"
    assert ask(Fixed("free"), view).tolist() == [FREE] * 3
    assert ask(Best(), view).tolist() == [BEST] * 3
    with pytest.raises(UserError, match="'shout' is unknown"):
        Fixed("shout")
    with pytest.raises(UserError, match="eps"):
        NoisyRules(1.5)


def step(view: PublicView, actions: Ints) -> PublicView:
    said = Utterance(
        words=np.ones(view.size),
        novelty=np.zeros(view.size),
        overlap=np.zeros(view.size),
        beliefs=view.beliefs,
        stale=view.stale,
        texts=("",) * view.size,
    )
    return advance(view, actions, np.zeros(view.size, np.int64), np.zeros(view.size, np.int64), said)


def options(view: PublicView) -> Candidates:
    return candidates(view, interventions(), action_conditional)


def test_stubborn_repeats_what_was_refused_and_only_that() -> None:
    size = 20_000
    controller = Stubborn(again=0.85, eps=0.4)
    view = start(agreeing(size, SPLIT))
    first = ask(controller, view)
    refused = np.arange(size) % 2 == 0
    view = step(view, np.where(refused, (first + 1) % 4, first))
    second = ask(controller, view)
    fresh = ask(NoisyRules(0.4), view)
    np.testing.assert_array_equal(second[~refused], fresh[~refused])
    agree = (first == fresh)[refused].mean()
    expected = 0.85 + 0.15 * agree
    repeated = (second == first)[refused].mean()
    assert abs(repeated - expected) < 4 * np.sqrt(0.25 / size)


def test_stubborn_does_not_depend_on_batches_and_forgets_nothing_it_needs() -> None:
    def play(batches: list[Ints]) -> Ints:
        controller = Stubborn()
        whole = start(agreeing(12, SPLIT))
        views = [take(whole, rows) for rows in batches]
        last = np.zeros(12, np.int64)
        for _ in range(4):
            for i, rows in enumerate(batches):
                last[rows] = ask(controller, views[i])
                views[i] = step(views[i], np.where(rows % 3 == 0, 0, last[rows]))
        assert len(controller._proposed) == 12
        return last

    together = play([np.arange(12)])
    np.testing.assert_array_equal(play([np.arange(5), np.arange(5, 12)]), together)


def test_stubborn_refuses_a_discussion_it_did_not_start() -> None:
    view = step(start(agreeing(2, SPLIT)), np.array([0, 1]))
    with pytest.raises(LookupError, match="not proposed by this controller"):
        ask(Stubborn(), view)


def test_path_key_names_discussion_and_path() -> None:
    view = start(agreeing(3, SPLIT))
    later = step(view, np.array([0, 1, 1]))
    np.testing.assert_array_equal(path_key(later, 1), path_key(view, 0))
    others = replace(later, key=later.key[[0, 0, 0]])
    assert len(set(path_key(others, 0).tolist())) == 2
    assert not set(path_key(later, 0).tolist()) & set(path_key(view, 0).tolist())
