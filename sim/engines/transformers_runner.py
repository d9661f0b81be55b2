"""The torch half of the local engine: loads a checkpoint, runs batches with a shared, kept prefix.

Runs in one worker thread. Knows tokens, caches and sampling; nothing of who asks.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from sim.arrays import Floats
from sim.engines.checkpoints import local_checkpoint
from sim.engines.models import ModelConfig
from sim.engines.protocol import (
    BadReply,
    ChatReply,
    ChatRequest,
    ChooseReply,
    ChooseRequest,
    EngineError,
    Usage,
)
from sim.engines.templates import ChatTemplate
from sim.engines.transformers_local import LocalEngineConfig
from sim.errors import UserError
from sim.randomness import uniform

Tokens: TypeAlias = list[int]
Request: TypeAlias = ChatRequest | ChooseRequest
Outcome: TypeAlias = ChatReply | ChooseReply | EngineError
_MIN_SHARED = 32


@dataclass
class _Read:
    """Prompts that were read: logits after each (B, V), their key-value cache, its mask (B, L), and how many
    tokens of each were not computed for it: they came from a kept prefix, or from another prompt of its group."""

    logits: torch.Tensor
    cache: Any
    mask: torch.Tensor
    cached: list[int]


class Runner:
    """A loaded model; `serve` answers a batch of requests of one kind."""

    def __init__(self, model: ModelConfig, config: LocalEngineConfig) -> None:
        """Raises UserError where the model cannot be had or loaded, or has no chat template."""
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        checkpoint = local_checkpoint(model)
        self.revision = checkpoint.revision
        self.tokenizer, self.model = _loaded(model, checkpoint.directory)
        self.template = ChatTemplate(self.tokenizer, model.template.arguments)
        self.model.eval()
        self._prefixes: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._kept = config.kept_prefixes
        self._context = model.context
        self._stop = _stop_tokens(self.tokenizer, self.model)
        self._pads = not _slides(self.model)

    def serve(self, requests: Sequence[Request]) -> list[Outcome]:
        """What became of the requests, which are all of one kind, in their order: an EngineError stands where
        one cannot be answered, and touches no other.

        A model with a sliding window counts padding as words it has seen, so its prompts are read one by one.
        """
        prompts = [self.template.tokens(request.turns) for request in requests]
        found: dict[int, Outcome] = {}
        for i, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
            if (excess := self._excess(request, prompt)) is not None:
                found[i] = excess
        fitting = [i for i in range(len(requests)) if i not in found]
        for group in [fitting] if self._pads and fitting else [[i] for i in fitting]:
            replies = self._batch([requests[i] for i in group], [prompts[i] for i in group])
            found.update(zip(group, replies, strict=True))
        return [found[i] for i in range(len(requests))]

    def _excess(self, request: Request, prompt: Tokens) -> EngineError | None:
        """Why a request does not fit into the model's context; a model read beyond it gives nonsense."""
        answer = request.max_tokens if isinstance(request, ChatRequest) else 1
        if len(prompt) + answer <= self._context:
            return None
        return EngineError(
            f"model.context is {self._context} tokens, but a prompt takes {len(prompt)} and its answer up to "
            f"{answer}; shorten the task or its discussion (world.horizon, world.settings.max_words)"
        )

    def _batch(self, requests: Sequence[Request], prompts: list[Tokens]) -> Sequence[Outcome]:
        """Outcomes of one batch.

        Prompts are read group by group, since only those of one affinity share a long prefix; texts are then
        written together.
        """
        started = time.perf_counter()
        with torch.inference_mode():
            read = [self._prefill([prompts[i] for i in group]) for group in _by_affinity(requests)]
            rows = _joined(read, _by_affinity(requests))
            if isinstance(requests[0], ChooseRequest):
                return self._chosen(requests, prompts, rows, started)  # type: ignore[arg-type]
            return self._written(requests, prompts, rows, started)  # type: ignore[arg-type]

    def _chosen(
        self, requests: Sequence[ChooseRequest], prompts: list[Tokens], rows: _Read, started: float
    ) -> list[Outcome]:
        latency = time.perf_counter() - started
        outcomes: list[Outcome] = []
        for request, prompt, logits, cached in zip(requests, prompts, rows.logits, rows.cached, strict=True):
            try:
                chances = self._label_chances(logits, request.labels)
            except BadReply as error:
                outcomes.append(error)
            else:
                outcomes.append(ChooseReply(chances, Usage(len(prompt), 1, cached, latency)))
        return outcomes

    def _label_chances(self, logits: torch.Tensor, labels: Sequence[str]) -> tuple[float, ...]:
        """Probabilities of the labels, renormalised over them. Raises BadReply where there are none."""
        scores = logits[[self.template.label_token(label) for label in labels]].double()
        chances = torch.softmax(scores, 0).tolist()
        if not np.isfinite(chances).all():
            raise BadReply(f"label probabilities are {chances}; the model gave no finite logits")
        return tuple(chances)

    def _written(
        self, requests: Sequence[ChatRequest], prompts: list[Tokens], rows: _Read, started: float
    ) -> list[ChatReply]:
        texts = self._write(requests, torch.tensor([len(prompt) for prompt in prompts]), rows)
        latency = time.perf_counter() - started
        return [
            ChatReply(
                self.tokenizer.decode(tokens, skip_special_tokens=True).strip(),
                "length" if len(tokens) >= request.max_tokens else "stop",
                Usage(len(prompt), len(tokens), cached, latency),
            )
            for request, prompt, tokens, cached in zip(requests, prompts, texts, rows.cached, strict=True)
        ]

    def _write(self, requests: Sequence[ChatRequest], lengths: torch.Tensor, rows: _Read) -> list[Tokens]:
        """The tokens of each text, sampled until an end token or the request's bound."""
        logits, cache, mask = rows.logits, rows.cache, rows.mask
        written: list[Tokens] = [[] for _ in requests]
        going = np.ones(len(requests), bool)
        dice = [uniform(np.array([r.key], np.uint64), r.max_tokens)[0] for r in requests]
        for step in range(max(request.max_tokens for request in requests)):
            picked = [
                _sample(logits[i], requests[i], dice[i][step]) if going[i] else self._stop[0]
                for i in range(len(requests))
            ]
            for i, token in enumerate(picked):
                if going[i] and token not in self._stop:
                    written[i].append(token)
                going[i] &= token not in self._stop and len(written[i]) < requests[i].max_tokens
            if not going.any():
                break
            mask = torch.cat([mask, torch.ones(len(requests), 1, dtype=mask.dtype)], 1)
            output = self.model(
                input_ids=torch.tensor(picked)[:, None],
                attention_mask=mask,
                position_ids=(lengths + step)[:, None],
                cache=cache,
                use_cache=True,
            )
            logits = output.logits[:, -1].float()
        return written

    def _prefill(self, prompts: list[Tokens]) -> _Read:
        """Read prompts that share a prefix, computing the prefix once."""
        shared = _common_length(prompts)
        prefix, cached = self._prefix(prompts[0][:shared]) if shared >= _MIN_SHARED else (None, 0)
        start = shared if prefix is not None else 0
        tails = [prompt[start:] for prompt in prompts]
        width = max(len(tail) for tail in tails)
        ids, mask = (
            torch.zeros(len(tails), width, dtype=torch.long),
            torch.zeros(len(tails), width, dtype=torch.long),
        )
        for i, tail in enumerate(tails):
            ids[i, width - len(tail) :] = torch.tensor(tail)
            mask[i, width - len(tail) :] = 1
        positions = (start + mask.cumsum(1) - 1).clamp(min=0)
        cache = _repeated(prefix, len(tails)) if prefix is not None else DynamicCache()
        whole = torch.cat([torch.ones(len(tails), start, dtype=torch.long), mask], 1)
        output = self.model(
            input_ids=ids,
            attention_mask=whole,
            position_ids=positions,
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        # The first prompt of the group pays for what the group shares; the others find it computed.
        found = [cached, *([start] * (len(prompts) - 1))]
        return _Read(output.logits[:, -1].float(), output.cache, whole, found)

    def _prefix(self, tokens: Tokens) -> tuple[Any, int]:
        """Key-value cache of a shared prefix, from the longest kept one, and how many tokens that one had."""
        key = tuple(tokens)
        best = max(
            (kept for kept in self._prefixes if len(kept) <= len(key) and key[: len(kept)] == kept),
            key=len,
            default=(),
        )
        cache = _repeated(self._prefixes[best], 1) if best else DynamicCache()
        if len(best) < len(key):
            rest = torch.tensor([tokens[len(best) :]])
            output = self.model(input_ids=rest, cache=cache, use_cache=True, logits_to_keep=1)
            cache = output.cache
            self._prefixes[key] = cache
        self._prefixes.move_to_end(key)
        while len(self._prefixes) > self._kept:
            self._prefixes.popitem(last=False)
        return self._prefixes[key], len(best)


def _loaded(model: ModelConfig, directory: Path) -> tuple[Any, Any]:
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return (
            AutoTokenizer.from_pretrained(directory),
            AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, model.dtype)),
        )
    except (OSError, ValueError) as error:
        raise UserError(f"model {model.name!r} could not be loaded: {str(error).splitlines()[0]}") from error


def _slides(model: Any) -> bool:
    """Whether some layer attends to a window of the last words only."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    return bool(getattr(config, "sliding_window", None)) and "sliding_attention" in kinds


def _stop_tokens(tokenizer: Any, model: Any) -> list[int]:
    configured = model.generation_config.eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    found = [token for token in (*listed, tokenizer.eos_token_id) if token is not None]
    ends = [tokenizer.convert_tokens_to_ids(mark) for mark in ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")]
    known = [token for token in ends if token is not None and token != tokenizer.unk_token_id]
    return list(dict.fromkeys([*found, *known]))


def _common_length(prompts: list[Tokens]) -> int:
    """Length of the prefix all prompts share, short of the shortest prompt's last token."""
    limit = min(len(prompt) for prompt in prompts) - 1
    first = prompts[0]
    length = 0
    while length < limit and all(prompt[length] == first[length] for prompt in prompts):
        length += 1
    return length


def _by_affinity(requests: Sequence[Request]) -> list[list[int]]:
    """Indices of the requests of each affinity, in order of first appearance."""
    groups: dict[str, list[int]] = {}
    for i, request in enumerate(requests):
        groups.setdefault(request.affinity, []).append(i)
    return list(groups.values())


def _joined(read: list[_Read], groups: list[list[int]]) -> _Read:
    """Groups as one batch in the order of the requests, shorter caches padded on the left."""
    if len(read) == 1:
        return read[0]
    width = max(part.mask.shape[1] for part in read)
    order = np.argsort([i for group in groups for i in group]).tolist()
    cache = DynamicCache()
    for layer, parts in enumerate(zip(*(_layers(part.cache) for part in read), strict=True)):
        keys = torch.cat([_padded(part[0], width) for part in parts])
        values = torch.cat([_padded(part[1], width) for part in parts])
        cache.update(keys[order], values[order], layer)
    mask = torch.cat([F.pad(part.mask, (width - part.mask.shape[1], 0)) for part in read])
    cached = [tokens for part in read for tokens in part.cached]
    return _Read(
        torch.cat([part.logits for part in read])[order], cache, mask[order], [cached[i] for i in order]
    )


def _padded(states: torch.Tensor, width: int) -> torch.Tensor:
    return F.pad(states, (0, 0, width - states.shape[2], 0))


def _repeated(cache: Any, rows: int) -> Any:
    """A copy of a one-row cache, repeated for a batch; the kept one is never written to."""
    copy = DynamicCache()
    for layer, (keys, values) in enumerate(_layers(cache)):
        copy.update(keys.repeat(rows, 1, 1, 1), values.repeat(rows, 1, 1, 1), layer)
    return copy


def _layers(cache: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(layer.keys, layer.values) for layer in cache.layers]


def _sample(logits: torch.Tensor, request: ChatRequest, dice: float) -> int:
    """A token by inverse CDF over the nucleus, so that a request's text does not depend on its batch.

    Raises EngineError for logits that are not numbers.
    """
    if bool(torch.isnan(logits).any()):
        raise EngineError("the model's logits are NaN; use model.dtype=float32 or another checkpoint")
    if request.temperature < 0.01:
        return int(logits.argmax())
    chances: Floats = torch.softmax(logits.double() / request.temperature, 0).numpy()
    order = np.argsort(-chances, kind="stable")
    reach = chances[order].cumsum()
    nucleus = int(np.searchsorted(reach, request.top_p)) + 1
    return int(order[np.searchsorted(reach[:nucleus], dice * reach[nucleus - 1])])
