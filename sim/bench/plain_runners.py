"""What people would write instead: the same discussions without concurrency, or with a thread for each.

Straightforward on purpose: the same prompts, the same branches, beliefs and votes, one request after another; no
records, no resume, no objective. They are the bench's baselines and used nowhere else.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import openai

from sim.discussion.actions import ACTION_NAMES
from sim.discussion.naming import names_of
from sim.discussion.public import Message
from sim.engines.protocol import Turn
from sim.tasks.task import HiddenProfileTask
from sim.worlds.language import LanguageSettings, clean_message
from sim.worlds.prompts import LABELS, participant_turns, render

INTERVENTIONS = ACTION_NAMES[:4]


@dataclass(frozen=True)
class PlainRunner:
    """Holds discussions with one blocking request after another."""

    client: openai.OpenAI
    model: str
    settings: LanguageSettings
    rounds: int

    def discuss(self, task: HiddenProfileTask) -> int:
        """One discussion along random interventions, every branch of every round evaluated; how many branches."""
        dice = random.Random(task.id)
        heard: list[Message] = []
        self.ask_everybody(task, heard, "belief")
        for _ in range(self.rounds):
            branches = [self.branch(task, heard, action, dice) for action in INTERVENTIONS]
            heard.append(dice.choice(branches))
        self.ask_everybody(task, heard, "vote")
        return self.rounds * len(INTERVENTIONS)

    def branch(
        self, task: HiddenProfileTask, heard: list[Message], action: str, dice: random.Random
    ) -> Message:
        """One branch: a message of some agent, and everybody's belief after it."""
        speaker = dice.randrange(task.n_agents)
        question = render(action, name=names_of(task)[speaker], leader=task.possible_answers[0])
        reply = self.client.chat.completions.create(
            model=self.model,
            messages=self.messages(task, speaker, heard, question),
            max_tokens=self.settings.max_tokens,
            temperature=self.settings.temperature,
            top_p=self.settings.top_p,
        )
        text = clean_message(reply.choices[0].message.content or "", names_of(task), self.settings.max_words)
        message = Message(speaker, action, text)
        self.ask_everybody(task, [*heard, message], "belief")
        return message

    def ask_everybody(
        self, task: HiddenProfileTask, heard: list[Message], purpose: str
    ) -> list[tuple[float, ...]]:
        """Every agent's probabilities of the options."""
        return [self.ask(task, agent, heard, purpose) for agent in range(task.n_agents)]

    def ask(
        self, task: HiddenProfileTask, agent: int, heard: list[Message], purpose: str
    ) -> tuple[float, ...]:
        """One agent's probabilities of the options, from one constrained token."""
        options = list(task.possible_answers)
        random.Random(f"{task.id}/{agent}").shuffle(options)
        question = render(purpose, name=names_of(task)[agent], options=options, labels=LABELS)
        labels = list(LABELS[: task.n_options])
        reply = self.client.chat.completions.create(
            model=self.model,
            messages=self.messages(task, agent, heard, question),
            max_tokens=1,
            temperature=1.0,
            logprobs=True,
            top_logprobs=5,
            extra_body={"structured_outputs": {"choice": labels}},
        )
        logprobs = reply.choices[0].logprobs
        likely = logprobs.content[0].top_logprobs if logprobs and logprobs.content else []
        chances = {candidate.token.strip(): math.exp(candidate.logprob) for candidate in likely}
        return tuple(chances.get(label, 0.0) for label in labels)

    def messages(self, task: HiddenProfileTask, agent: int, heard: list[Message], question: str) -> Any:
        """The prompt, in the toolkit's own words."""
        clues = (task.hidden_information[agent],)
        turns: tuple[Turn, ...] = participant_turns(task, clues, agent, heard, question, self.settings.layout)
        return [{"role": turn.role, "content": turn.content} for turn in turns]


def run_sequentially(runner: PlainRunner, tasks: Sequence[HiddenProfileTask]) -> int:
    """One discussion after the other; how many branches."""
    return sum(runner.discuss(task) for task in tasks)


def run_in_threads(runner: PlainRunner, tasks: Sequence[HiddenProfileTask]) -> int:
    """All discussions at once, a thread each; how many branches."""
    with ThreadPoolExecutor(len(tasks)) as threads:
        return sum(threads.map(runner.discuss, tasks))
