"""A language model proposes the next intervention from the public transcript and state, by a choice that is
bound to the letters of the admissible interventions. Which engine answers is not known here.
"""

from __future__ import annotations

import asyncio
import hashlib
import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from controllers.protocol import ProposalFailure
from sim.arrays import Ints, take
from sim.discussion.actions import ACTION_NAMES, VOTE, Candidates
from sim.discussion.naming import names_of
from sim.discussion.public import PublicView, path_texts
from sim.discussion.state import Features
from sim.engines.protocol import BadReply, ChooseRequest, Engine, EngineDown, EngineError, Turn, Usage
from sim.errors import UserError
from sim.randomness import keys, uniform
from sim.templates import Templates

MALFORMED = -1
"""No intervention's code: the rollout maps it by METHOD 1's rule and counts it."""

_TEMPLATES = Templates(Path(__file__).parent / "prompts")
_WORDING = {
    "challenge": "Challenge: ask {name} to argue against the option that leads.",
    "clarify": "Clarify: ask {name} to explain what their view rests on.",
    "seek_evidence": "Seek evidence: ask {name} for a fact that nobody has mentioned yet.",
    "route": "Route: give the floor to {name}.",
    "vote": "Vote: end the discussion and let the group decide now.",
}


@dataclass(frozen=True)
class Question:
    """What the model is asked about one discussion: the turns, the labels, and each label's intervention."""

    turns: tuple[Turn, ...]
    labels: tuple[str, ...]
    actions: tuple[int, ...]


@dataclass(frozen=True)
class Asked:
    """One call to the model, for the record: task, 64-bit key of the discussion, its path, what it took, and
    the error of a reply that was none."""

    task: str
    key: int
    path: str
    prompt_hash: str
    usage: Usage
    error: str = ""


@dataclass(frozen=True)
class LLM:
    """Asks a language model which intervention comes next; with `vote` it may end the discussion.

    `log` is told of every call. A discussion's whole question is one request; those of a batch run together.
    """

    engine: Engine
    vote: bool = False
    log: Callable[[Asked], None] = lambda asked: None

    @property
    def name(self) -> str:
        """`llm` or `llm_vote`."""
        return "llm_vote" if self.vote else "llm"

    async def propose(self, view: PublicView, features: Features, candidates: Candidates) -> Ints:
        """The most probable intervention of each discussion (B,); MALFORMED where the model gave none.

        Raises UserError in a world without texts, ProposalFailure where the engine gave up on a question, and
        EngineDown where the engine is gone, which ends no discussion: the run stops, resumable.
        """
        singles = [np.array([row]) for row in range(view.size)]
        asked = [self._ask(take(view, row), take(features, row), take(candidates, row)) for row in singles]
        return np.array(await asyncio.gather(*asked), dtype=np.int64)

    async def _ask(self, view: PublicView, features: Features, candidates: Candidates) -> int:
        asked = question(view, features, candidates, self.vote)
        key = int(view.key[0])
        try:
            reply = await self.engine.choose(ChooseRequest(asked.turns, asked.labels, f"proposal/{key}"))
        except BadReply as error:
            self._log(view, asked, Usage(0, 0), str(error))
            return MALFORMED
        except EngineDown:
            raise
        except EngineError as error:
            raise ProposalFailure(f"{self.name}: {error}") from error
        self._log(view, asked, reply.usage)
        return asked.actions[int(np.argmax(reply.probabilities))]

    def _log(self, view: PublicView, asked: Question, usage: Usage, error: str = "") -> None:
        content = hashlib.blake2b(msgspec.json.encode(asked.turns), digest_size=8).hexdigest()
        path = path_texts(view)[0]
        self.log(Asked(view.tasks[0].id, int(view.key[0]), path, content, usage, error))

    def describe(self) -> dict[str, object]:
        """Name, model and prompt."""
        found = self.engine.capabilities
        return {
            "name": self.name,
            "model": found.model,
            "revision": found.revision,
            "prompt": prompt_hash(),
        }


def question(view: PublicView, features: Features, candidates: Candidates, vote: bool) -> Question:
    """The question about a view of one discussion. Interventions and options are listed in an order drawn
    from the discussion and its round, so that a model's liking for a position favours none of them.

    Raises UserError where the world has no texts to show.
    """
    if not view.tasks:
        raise UserError("controller llm needs a world with texts; use a language world")
    names = names_of(view.tasks[0])
    listed = _listed(view, candidates, vote)
    actions = [int(candidates.actions[0, column]) for column in listed]
    speakers = [names[int(candidates.speakers[0, column])] for column in listed]
    labels = tuple(string.ascii_uppercase[: len(listed)])
    interventions = [
        (label, _WORDING[ACTION_NAMES[action]].format(name=name))
        for label, action, name in zip(labels, actions, speakers, strict=True)
    ]
    system = _TEMPLATES.render("chair", names=names, task=view.tasks[0])
    user = _TEMPLATES.render(
        "propose", names=names, interventions=interventions, **_public_state(view, features)
    )
    return Question((Turn("system", system), Turn("user", user)), labels, tuple(actions))


def _listed(view: PublicView, candidates: Candidates, vote: bool) -> list[int]:
    """The admissible columns in the order they are listed, one column per intervention."""
    columns = [
        column
        for column in np.flatnonzero(candidates.admissible[0]).tolist()
        if vote or candidates.actions[0, column] != VOTE
    ]
    return [columns[place] for place in _order(view, "interventions", len(columns))]


def _public_state(view: PublicView, features: Features) -> dict[str, object]:
    """What the prompt says of one discussion's state."""
    task, state = view.tasks[0], features.signals
    names, mean_belief = names_of(task), view.beliefs[0].mean(0).tolist()
    return {
        "transcript": view.transcripts[0],
        "round": int(view.rounds[0]) + 1,
        "horizon": view.horizon,
        "beliefs": [
            (task.possible_answers[k], mean_belief[k]) for k in _order(view, "options", view.n_options)
        ],
        "silent": [names[i] for i in np.flatnonzero(view.words[0] == 0).tolist()],
        "uncertainty": state.uncertainty[0],
        "disagreement": state.disagreement[0],
        "coverage": state.coverage_proxy[0],
        "redundancy": state.redundancy[0],
        "consensus": state.premature_consensus[0],
    }


def _order(view: PublicView, purpose: str, n: int) -> list[int]:
    """A permutation of n drawn for the (single) discussion and its round."""
    chance = uniform(keys("proposal order", purpose, view.key, view.rounds), n)[0]
    order: list[int] = np.argsort(chance, kind="stable").tolist()
    return order


@lru_cache(maxsize=1)
def prompt_hash() -> str:
    """Hash of the templates and of the wording of the interventions."""
    return _TEMPLATES.version("\n".join(_WORDING.values()))
