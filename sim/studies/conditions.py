"""From a condition's name to its policy: the rows of every accuracy table (METHOD 11).

`X` executes its proposals; `X+gate` is the same policy behind a calibrated gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from conformal import OpenGate, Thresholds
from controllers.protocol import Controller
from controllers.references import Best, Fixed
from controllers.registry import NAMES
from sim.config import BASELINES, GATE_SUFFIX, LEARNED, GateKind, StudyConfig, Variant
from sim.discussion.actions import ACTION_NAMES, FREE, Menu, free_messages, interventions
from sim.discussion.ending import Stop
from sim.discussion.routing import make_router
from sim.errors import UserError
from sim.studies.gates import make_gate
from sim.studies.rollout import Policy

EXPLORE, EVALUATE = "explore", "evaluate"
FREE_DRAWS = 4


def baseline(config: StudyConfig, name: str) -> Policy:
    """`hidden_pre`, `full_info` (votes on first beliefs) or `hidden_post` (uncontrolled round-robin)."""
    return Policy(
        name=name,
        controller=Fixed(ACTION_NAMES[FREE]),
        menu=free_messages(),
        router=make_router("round_robin"),
        objective=config.objective,
        gate=OpenGate(),
        stop=Stop(quorum=None),
        discuss=name == "hidden_post",
        full_information=name == "full_info",
        decision=config.decision,
    )


def menu_for(config: StudyConfig, variant: Variant) -> Menu:
    """The menu of a controller: four free messages for `best_of_4_free`; vote for those that may vote."""
    if variant.controller == "best_of_4_free":
        return free_messages(FREE_DRAWS)
    may_vote = config.menu.vote if variant.vote is None else variant.vote
    without = config.menu.without if variant.without is None else variant.without
    return interventions(vote=may_vote or variant.controller.endswith("_vote"), without=without)


def controlled(config: StudyConfig, condition: str, controller: Controller) -> Policy:
    """The policy of a condition with a controller, executing its proposals."""
    variant = config.variant(condition)
    return Policy(
        name=condition,
        controller=controller,
        menu=menu_for(config, variant),
        router=make_router(variant.routing or config.routing.name),
        objective=config.objective,
        gate=OpenGate(),
        stop=variant.stop or config.stop,
        exhaustive=config.exhaustive or condition in config.certified or isinstance(controller, Best),
        decision=config.decision,
    )


def check_condition(config: StudyConfig, condition: str) -> None:
    """Raise UserError if a condition names no controller, router or menu that exists."""
    variant = config.variant(condition)
    if variant.controller not in NAMES:
        raise UserError(
            f"conditions: {condition!r} is unknown; describe it in variants, or give one of "
            + ", ".join((*BASELINES, *NAMES))
        )
    config.training_of(condition)
    menu_for(config, variant)
    make_router(variant.routing or config.routing.name)


def check_behaviour(config: StudyConfig) -> None:
    """Raise UserError if the exploration's behaviour is no controller that chooses among interventions, or one
    that is not trained yet."""
    name = config.exploration.behaviour
    if name not in NAMES:
        raise UserError(f"exploration.behaviour is {name!r}; it must be one of {', '.join(NAMES)}")
    if "free" in name:
        raise UserError(
            f"exploration.behaviour is {name!r}, which chooses among free messages; give another one"
        )
    if name in LEARNED and config.from_run is None:
        raise UserError(
            f"exploration.behaviour is {name!r}, which is not trained yet; give from_run=<a run with its weights>"
        )


def gated(policy: Policy, thresholds: Thresholds, kind: GateKind = "replace") -> Policy:
    """The same policy behind its calibrated gate, as the condition `X+gate`."""
    return replace(policy, name=policy.name + GATE_SUFFIX, gate=make_gate(thresholds, kind))


def explorer(config: StudyConfig, behaviour: Controller) -> Policy:
    """The exhaustive explorer: every branch evaluated, the behaviour policy's proposal committed (METHOD 8)."""
    may_vote = config.menu.vote or "mlp_vote" in config.learned or behaviour.name.endswith("_vote")
    policy = controlled(config, EXPLORE, behaviour)
    return replace(policy, menu=interventions(vote=may_vote, without=config.menu.without), exhaustive=True)


def describe_policy(config: StudyConfig, policy: Policy, world: Mapping[str, object]) -> dict[str, str]:
    """The readable parts of the policy hash: everything that must agree between calibration and deployment
    (METHOD 3), without the gate's thresholds."""
    variant = config.variant(policy.name)
    parts = {
        "controller": policy.controller.describe(),
        "objective": msgspec.to_builtins(policy.objective),
        "router": variant.routing or config.routing.name,
        "menu": [ACTION_NAMES[action] for action in policy.menu.actions],
        "draws": list(policy.menu.draws),
        "stop": msgspec.to_builtins(policy.stop),
        "world": dict(world),
    }
    if config.gate_of(policy.name) != "replace":
        parts["gate"] = config.gate_of(policy.name)
    return {name: msgspec.json.encode(part, order="sorted").decode() for name, part in parts.items()}


def is_baseline(name: str) -> bool:
    """Whether a condition has no controller."""
    return name in BASELINES
