"""A language model as configuration: where it comes from, what its chat template demands, how it is served.

Engines and servers read it. It loads nothing, and what it says of a template is compared with what a canary
finds (`check_found`); it is never believed instead.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from sim.engines.protocol import Capabilities
from sim.errors import UserError, shown
from sim.parsing import typed


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sampling parameters that are sent with every request beside temperature and top_p.

    Neutral by default, so that a model's generation_config.json decides nothing; null is not sent, for
    endpoints that do not know the parameter.
    """

    top_k: int | None = -1
    min_p: float | None = 0.0
    repetition_penalty: float | None = 1.0

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k < -1:
            raise UserError(
                f"model.sampling.top_k is {self.top_k}; give at least 1, or -1 or 0 for all tokens"
            )
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise UserError(f"model.sampling.min_p is {self.min_p}; it must lie in [0, 1]")
        if self.repetition_penalty is not None and not 0 < self.repetition_penalty < math.inf:
            raise UserError(
                f"model.sampling.repetition_penalty is {self.repetition_penalty}; it must be positive (1: none)"
            )

    def sent(self) -> dict[str, float]:
        """The parameters by name, without those that are null."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class Template(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the chat template is expected to do.

    `system`: a system turn keeps its role (`native`), is put into the first user turn by the template
    (`folded`), or is an error (`refused`). `alternation`: turns must alternate between user and assistant.
    `arguments`: passed to the template with every request; this is how thinking is switched off.
    """

    system: Literal["native", "folded", "refused"] = "native"
    alternation: bool = False
    arguments: dict[str, bool | int | str] = msgspec.field(default_factory=dict)


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A vendor's OpenAI-compatible endpoint; the key is read from the environment, never from a file."""

    url: str
    key_variable: str

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UserError(
                f"model.endpoint.url is {shown(self.url)}; it must start with http:// or https://"
            )


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One language model; the root of `conf/model`.

    `name` is how tables call it and what it is served under. `id` is a hub id, the directory of a checkpoint,
    `smollm2_135m` (a registry package), or an endpoint's own name for it. `context` bounds prompt and answer
    together, in tokens. `tensor_parallel` is the number of 80 GB GPUs that hold one copy.
    """

    name: str
    id: str
    context: int
    revision: str | None = None
    template: Template = Template()
    sampling: Sampling = Sampling()
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    tensor_parallel: int = 1
    active_billions: float | None = None
    """Parameters a token passes through, in billions, for planning; null where the vendor does not say."""
    endpoint: Endpoint | None = None

    def __post_init__(self) -> None:
        if self.context < 1:
            raise UserError(f"model.context is {self.context}; it must be at least 1")
        if self.tensor_parallel < 1:
            raise UserError(f"model.tensor_parallel is {self.tensor_parallel}; it must be at least 1")
        if self.active_billions is not None and not 0 < self.active_billions < math.inf:
            raise UserError(
                f"model.active_billions is {self.active_billions}; give a positive number, or null where it is unknown"
            )


def parse_model(data: Mapping[str, Any]) -> ModelConfig:
    """The typed model; UserError naming the first wrong key or value."""
    return typed(data, ModelConfig, "config: model")


def check_found(model: ModelConfig, found: Capabilities) -> None:
    """Compare a canary's findings with the configuration.

    Warns where the template treats turns otherwise than expected: engines go by what was found, but it may be
    the wrong model or template. Raises UserError where thinking would not be switched off.
    """
    if "enable_thinking" in model.template.arguments and not found.thinking_switch:
        raise UserError(
            f"model {model.name}: model.template.arguments sets enable_thinking, but the template ignores it; "
            "serve the model's own template, or remove the argument"
        )
    pairs = (
        ("accepts a system turn", model.template.system != "refused", found.system_role),
        ("demands that turns alternate", model.template.alternation, found.alternation),
    )
    for what, expected, seen in pairs:
        if expected != seen:
            warnings.warn(
                f"model {model.name}: against its configuration, its template {what}: {seen}", stacklevel=2
            )
