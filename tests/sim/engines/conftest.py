"""Small tokenizers and random-weight checkpoints of every architecture, made without any hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.engines.models import ModelConfig
from sim.engines.protocol import Turn

TEMPLATES = Path(__file__).parent / "templates"
SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|pad|>")


def byte_tokenizer(template: str | None) -> Any:
    """One token per byte, and one per mark of the templates."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens(list(SPECIAL))
    made: Any = PreTrainedTokenizerFast
    tokenizer = made(tokenizer_object=plain, eos_token="<|end|>", pad_token="<|pad|>")
    if template is not None:
        tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_with() -> Callable[[str | None], Any]:
    """Gives a tokenizer with one of the templates, or without any."""
    return byte_tokenizer


@pytest.fixture
def shown() -> tuple[Turn, ...]:
    """What a participant of a discussion is shown: a system turn and a user turn."""
    return Turn("system", "Rules of the group."), Turn("user", "Ann: I saw A.\n\nChoose A, B or C.")


def _shrunk(architecture: str, tokenizer: Any) -> Any:
    """The configuration of an architecture with few, narrow layers."""
    import transformers

    common = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 4096,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    special: dict[str, dict[str, Any]] = {
        "Qwen3MoeConfig": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        "Gemma3TextConfig": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    }
    if architecture != "Gemma3Config":
        return getattr(transformers, architecture)(**common, **special.get(architecture, {}))
    text = _shrunk("Gemma3TextConfig", tokenizer)
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    return transformers.Gemma3Config(text_config=text.to_dict(), vision_config=vision, mm_tokens_per_image=4)


@pytest.fixture
def random_model(tmp_path: Path) -> Callable[[str, str], ModelConfig]:
    """Makes a random-weight checkpoint: (configuration class of an architecture, template) -> its model."""

    def make(architecture: str, template: str) -> ModelConfig:
        import torch
        from transformers import AutoModelForCausalLM

        torch.manual_seed(0)
        tokenizer = byte_tokenizer(template)
        auto: Any = AutoModelForCausalLM
        model = auto.from_config(_shrunk(architecture, tokenizer))
        directory = tmp_path / architecture
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        return ModelConfig(name=architecture, id=str(directory), context=4096, dtype="float32")

    return make
