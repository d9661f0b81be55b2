"""vLLM's own engine in this process, for one job per GPU: no server, no HTTP.

Needs vLLM in the same environment. Prompts are built with the model's chat template, probed at start-up.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from sim.engines.checkpoints import Checkpoint, local_checkpoint
from sim.engines.models import ModelConfig
from sim.engines.protocol import (
    BadReply,
    Capabilities,
    ChatReply,
    ChatRequest,
    ChooseReply,
    ChooseRequest,
    EngineDown,
    EngineError,
    Usage,
)
from sim.engines.serving import STRUCTURED_OUTPUTS
from sim.engines.templates import ChatTemplate
from sim.errors import UserError

_SEEDS = 2**31


class InprocessEngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How vLLM runs in this process; `arguments` are further fields of its EngineArgs."""

    block_size: int | None = None
    max_num_seqs: int = 256
    gpu_memory_utilization: float = 0.9
    timeout_s: float = 600.0
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise UserError(f"engine.max_num_seqs is {self.max_num_seqs}; it must be at least 1")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise UserError(
                f"engine.gpu_memory_utilization is {self.gpu_memory_utilization}; it must lie in (0, 1]"
            )
        if self.timeout_s <= 0:
            raise UserError(f"engine.timeout_s is {self.timeout_s}; it must be positive")


class InprocessEngine:
    """Implements `Engine` on vLLM's AsyncLLM."""

    def __init__(self, model: ModelConfig, config: InprocessEngineConfig) -> None:
        self._model = model
        self._config = config
        self._numbers = itertools.count()
        self._llm: Any = None
        self._template: ChatTemplate | None = None
        self._capabilities: Capabilities | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What was found at start-up."""
        if self._capabilities is None:
            raise RuntimeError("the engine is not started; use it as an async context manager")
        return self._capabilities

    async def __aenter__(self) -> Self:
        checkpoint = local_checkpoint(self._model)
        self._llm = _started(self._model, self._config, checkpoint)
        try:
            self._template = ChatTemplate(self._llm.get_tokenizer(), self._model.template.arguments)
            self._capabilities = _found(self._model, checkpoint, self._template)
        except BaseException:
            self._llm.shutdown()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._llm.shutdown()
        self._llm = None

    async def chat(self, request: ChatRequest) -> ChatReply:
        """Generate a text. Raises EngineError where vLLM refuses it, EngineDown if vLLM died."""
        sampling = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "max_tokens": request.max_tokens,
            "seed": request.key % _SEEDS if self.capabilities.seeds else None,
        }
        output, usage = await self._completion(request, sampling, request.schema)
        answer = output.outputs[0]
        return ChatReply(answer.text.strip(), answer.finish_reason or "stop", usage)

    async def choose(self, request: ChooseRequest) -> ChooseReply:
        """Label probabilities at the answer's first token, renormalised over the labels.

        Raises BadReply for a label of several tokens, or where the model gives no finite number.
        """
        template = self._open_template()
        tokens = [template.label_token(label) for label in request.labels]
        sampling = {"temperature": 1.0, "max_tokens": 1, "logprob_token_ids": tokens}
        output, usage = await self._completion(request, sampling, None)
        return ChooseReply(_label_probabilities(output, tokens), usage)

    def _open_template(self) -> ChatTemplate:
        if self._template is None:
            raise RuntimeError("the engine is not started; use it as an async context manager")
        return self._template

    async def _completion(
        self, request: ChatRequest | ChooseRequest, sampling: dict[str, Any], schema: dict[str, object] | None
    ) -> tuple[Any, Usage]:
        """vLLM's last output for a request, and what it took."""
        from vllm.exceptions import VLLMError
        from vllm.v1.engine.exceptions import EngineDeadError

        prompt = {"prompt_token_ids": self._open_template().tokens(request.turns)}
        parameters = self._parameters(sampling, schema)
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._config.timeout_s):
                rendered = (await self._llm.renderer.render_cmpl_async([prompt]))[0]
                answers = self._llm.generate(rendered, parameters, str(next(self._numbers)))
                output = [answer async for answer in answers][-1]
        except EngineDeadError as error:
            raise EngineDown(f"vLLM's engine died: {error}") from error
        except TimeoutError as error:
            raise EngineError(f"no answer within engine.timeout_s={self._config.timeout_s:g} s") from error
        except (VLLMError, ValueError) as error:
            raise EngineError(f"vLLM refused the request: {' '.join(str(error).split())[:300]}") from error
        return output, _usage(output, time.perf_counter() - started)

    def _parameters(self, sampling: dict[str, Any], schema: dict[str, object] | None) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        bound = None if schema is None else StructuredOutputsParams(json=schema)
        return SamplingParams(
            **self._model.sampling.sent(),
            **sampling,
            structured_outputs=bound,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def _started(model: ModelConfig, config: InprocessEngineConfig, checkpoint: Checkpoint) -> Any:
    """vLLM's engine, its weights loaded. Raises UserError where vLLM is missing or cannot start."""
    for name, value in (
        ("VLLM_NO_USAGE_STATS", "1"),
        ("DO_NOT_TRACK", "1"),
        ("VLLM_LOGGING_LEVEL", "WARNING"),
    ):
        os.environ.setdefault(name, value)
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise UserError(
            "engine=vllm_inprocess needs vLLM in this environment (pip install -e '.[vllm]'); it is not there: "
            f"{error}"
        ) from error
    given = {"block_size": config.block_size} if config.block_size is not None else {}
    try:
        arguments = AsyncEngineArgs(
            model=str(checkpoint.directory),
            dtype=model.dtype,
            max_model_len=model.context,
            tensor_parallel_size=model.tensor_parallel,
            max_num_seqs=config.max_num_seqs,
            gpu_memory_utilization=config.gpu_memory_utilization,
            enable_prefix_caching=True,
            generation_config="vllm",
            structured_outputs_config=STRUCTURED_OUTPUTS,
            **given,
            **config.arguments,
        )
        return AsyncLLM.from_engine_args(arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"model {model.name}: vLLM could not start: {reason}") from error


def _found(model: ModelConfig, checkpoint: Checkpoint, template: ChatTemplate) -> Capabilities:
    from vllm.platforms import current_platform

    return Capabilities(
        model=model.name,
        revision=checkpoint.revision,
        seeds=not current_platform.is_cpu(),  # a seed can end vLLM's CPU engine
        structured=True,
        label_logprobs=True,
        system_role=template.system_role,
        alternation=template.alternation,
        thinking_switch=template.thinking_switch,
        cached_tokens=True,
    )


def _label_probabilities(output: Any, tokens: Sequence[int]) -> tuple[float, ...]:
    found = output.outputs[0].logprobs[0]
    weights = [math.exp(found[token].logprob) if token in found else math.nan for token in tokens]
    total = sum(weights)
    if not (math.isfinite(total) and total > 0):
        raise BadReply(f"label probabilities are {weights}; the model gave no finite numbers")
    return tuple(weight / total for weight in weights)


def _usage(output: Any, latency: float) -> Usage:
    return Usage(
        prompt_tokens=len(output.prompt_token_ids),
        completion_tokens=len(output.outputs[0].token_ids),
        cached_tokens=output.num_cached_tokens,
        latency_s=latency,
    )
