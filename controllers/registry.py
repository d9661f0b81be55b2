"""Controllers by name: the one place that knows them all. Loads only what the name asked for needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from controllers.card import Training
from controllers.protocol import Controller
from controllers.references import Best, Fixed, Random
from controllers.rules import NoisyRules, Rules, Stubborn
from sim.discussion.actions import ACTION_NAMES, ACTIONS, FREE
from sim.errors import UserError, shown

if TYPE_CHECKING:
    from controllers.llm import Asked
    from sim.engines.protocol import Engine

LEARNED = ("mlp", "mlp_vote")
PROMPTED = ("llm", "llm_vote")
_PLAIN: dict[str, Controller] = {
    "rules": Rules(),
    "rules_vote": Rules(vote=True),
    "random": Random(),
    "greedy": Best("greedy"),
    "best_of_4_free": Best("best_of_4_free"),
    ACTION_NAMES[FREE]: Fixed(ACTION_NAMES[FREE]),
    **{f"fixed_{action}": Fixed(action) for action in ACTIONS},
}
_NOISY = ("noisy_rules", "stubborn")
NAMES = (*_PLAIN, *_NOISY, *LEARNED, *PROMPTED)


def make_controller(
    name: str,
    *,
    path: Path | None = None,
    engine: Engine | None = None,
    log: Callable[[Asked], None] | None = None,
    training: Training | None = None,
    eps: float = 0.4,
    again: float = 0.85,
) -> Controller:
    """The controller of a name.

    `path` is the folder of a trained one, and `training`, if given, the settings it must have been trained
    with; `engine` is the model that an `llm` asks, `log` is told of every such call; `eps` and `again` are
    the noise of `noisy_rules` and the stubbornness of `stubborn`. Raises UserError for an unknown name,
    listing them, for a checkpoint that is missing or another one, and for an `llm` without an engine.
    """
    if name in _PLAIN:
        return _PLAIN[name]
    if name in _NOISY:
        return NoisyRules(eps) if name == "noisy_rules" else Stubborn(again, eps)
    if name in LEARNED:
        return _trained(name, path, training)
    if name in PROMPTED:
        return _prompted(name, engine, log)
    raise UserError(f"controller {shown(name)} is unknown; it must be one of {', '.join(NAMES)}")


def _trained(name: str, path: Path | None, training: Training | None) -> Controller:
    from controllers.mlp import load

    if path is None:
        raise UserError(
            f"controller {name!r} needs the folder of a trained network; run the train stage first"
        )
    model = load(path)
    if model.name != name:
        raise UserError(
            f"{path}: holds {model.name!r}, not {name!r}; give the folder of the right controller"
        )
    if training is not None and model.card.training != training:
        raise UserError(
            f"{path}: was trained with other settings ({shown(model.card.training)}); train it again, or "
            "give the settings it was trained with"
        )
    return model


def _prompted(name: str, engine: Engine | None, log: Callable[[Asked], None] | None) -> Controller:
    from controllers.llm import LLM

    if engine is None:
        raise UserError(f"controller {name!r} needs a language model; choose an engine and a model")
    vote = name.endswith("_vote")
    return LLM(engine, vote) if log is None else LLM(engine, vote, log)
