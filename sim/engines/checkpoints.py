"""Where a model's weights lie: a hub's snapshot, a directory, or the small model of a registry package.

Gives a local directory and what identifies its content. Knows nothing of who loads it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import tempfile
from pathlib import Path

import msgspec

from sim.engines.models import ModelConfig
from sim.engines.smollm2 import PACKAGE, gguf_file
from sim.errors import UserError, shown

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "models"
PACKAGED = "smollm2_135m"
_WANTED = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
_DUPLICATES = ("consolidated*", "original/*")


class Checkpoint(msgspec.Struct, frozen=True):
    """A local directory in the hub's form, and its revision: a commit, a package's version, or a hash."""

    directory: Path
    revision: str


def local_checkpoint(model: ModelConfig) -> Checkpoint:
    """The weights of a model on this machine, downloaded or converted if they are not here yet.

    Raises UserError where they cannot be had.
    """
    if model.endpoint is not None:
        raise UserError(f"model {model.name} is served by its vendor; use engine=openai_server, no server")
    if model.id == PACKAGED:
        return _packaged(model.dtype)
    directory = Path(model.id)
    if directory.is_dir():
        return Checkpoint(directory.resolve(), model.revision or _content_hash(directory))
    return _snapshot(model)


def _snapshot(model: ModelConfig) -> Checkpoint:
    """The hub's files; its folder is named by the commit."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            model.id, revision=model.revision, allow_patterns=list(_WANTED), ignore_patterns=list(_DUPLICATES)
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"model.id is {shown(model.id)}, no directory here, and the hub did not give it: {reason[:300]}; "
            "give a directory, check the id and HF_TOKEN, or download it where the hub can be reached"
        ) from error
    return Checkpoint(Path(folder), Path(folder).name)


def _packaged(dtype: str) -> Checkpoint:
    """The packaged model as a normal checkpoint directory, converted once and put in place in one step."""
    source = gguf_file()
    version = importlib.metadata.version(PACKAGE)
    target = CACHE / f"{PACKAGED}-{version}-{dtype}"
    if not target.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=CACHE))
        try:
            _convert(source, work, dtype)
            _put_in_place(work, target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return Checkpoint(target, f"{PACKAGE}=={version}")


def _convert(source: Path, target: Path, dtype: str) -> None:
    """Write a quantised file's weights, dequantised, and its tokenizer as safetensors and JSON."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    folder, inside = str(source.parent), source.name
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=inside,
        dtype=getattr(torch, dtype),
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=inside).save_pretrained(target)


def _put_in_place(work: Path, target: Path) -> None:
    """Rename into place; another process that was first keeps its own."""
    try:
        work.chmod(0o755)
        work.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _content_hash(directory: Path) -> str:
    """Hash of the JSON files' content and of every file's name and size: weights are too large to read."""
    state = hashlib.blake2b(digest_size=8)
    for path in sorted(directory.iterdir()):
        if path.is_file():
            state.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            state.update(path.read_bytes() if path.suffix == ".json" else b"")
    return f"files-{state.hexdigest()}"
