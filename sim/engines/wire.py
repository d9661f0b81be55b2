"""What comes back from an OpenAI-compatible server, as typed records: only what is read, everything else ignored.

Decoded by ourselves, because the SDK's own models take more time than the rest of a request put together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import msgspec

from sim.engines.protocol import BadReply, Usage


class Candidate(msgspec.Struct, frozen=True):
    """A token that might have come, and the logarithm of its probability; None or NaN where the server has none."""

    token: str
    logprob: float | None = None


class Position(msgspec.Struct, frozen=True):
    """The likeliest tokens at one place of the answer."""

    top_logprobs: tuple[Candidate, ...] = ()


class Logprobs(msgspec.Struct, frozen=True):
    """One position for every token of the answer."""

    content: tuple[Position, ...] | None = None


class Said(msgspec.Struct, frozen=True):
    """The answer's text; None where there is none."""

    content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """One answer."""

    message: Said
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class PromptDetails(msgspec.Struct, frozen=True):
    """What the server found in its prefix cache."""

    cached_tokens: int | None = None


class Used(msgspec.Struct, frozen=True):
    """Tokens taken."""

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Completion(msgspec.Struct, frozen=True):
    """A reply to a chat completion request."""

    choices: tuple[Choice, ...] = ()
    usage: Used | None = None

    @property
    def text(self) -> str:
        """The first answer's text; empty where there is none."""
        return self.choices[0].message.content or ""

    @property
    def finish_reason(self) -> str:
        """`stop`, or `length` where the bound on tokens cut the answer."""
        return self.choices[0].finish_reason or "stop"

    def label_probabilities(self, labels: Sequence[str]) -> tuple[float, ...]:
        """Probabilities of the labels at the first token, renormalised over them.

        Raises BadReply where the reply has no log-probabilities, a NaN, or none of the labels.
        """
        logprobs = self.choices[0].logprobs
        if logprobs is None or not logprobs.content:
            raise BadReply("the reply holds no log-probabilities; use elicitation=verbal with this server")
        mass = dict.fromkeys(labels, 0.0)
        for candidate in logprobs.content[0].top_logprobs:
            if candidate.logprob is None or math.isnan(candidate.logprob):
                raise BadReply(f"the log-probability of {candidate.token!r} is no number")
            if candidate.token.strip() in mass:
                mass[candidate.token.strip()] += math.exp(candidate.logprob)
        total = sum(mass.values())
        if not total > 0:
            raise BadReply(f"none of the labels {', '.join(labels)} is among the likely tokens")
        return tuple(mass[label] / total for label in labels)

    def taken(self, latency: float, retries: int, replica: int) -> Usage:
        """What the request took."""
        if self.usage is None:
            return Usage(0, 0, None, latency, retries, replica)
        details = self.usage.prompt_tokens_details
        cached = details.cached_tokens if details is not None else None
        return Usage(
            self.usage.prompt_tokens, self.usage.completion_tokens, cached, latency, retries, replica
        )


def decoded(content: bytes) -> Completion:
    """The reply in a response's body. Raises ValueError where it is no JSON, or not of that form.

    Python's own decoder, because servers write NaN, which JSON does not know.
    """
    return msgspec.convert(json.loads(content), Completion)
