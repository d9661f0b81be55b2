"""Files that installed packages carry, found without importing the package: data and model weights."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path


def packaged_file(package: str, pattern: str) -> Path | None:
    """The first file of a package whose name is like `pattern`; None where neither it nor the package is there."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.match(pattern)), None)
