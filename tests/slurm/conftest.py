"""A real Slurm of one node for the tests marked `slurm`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

START = Path(__file__).parent / "start_slurm.sh"


@pytest.fixture(scope="session")
def slurm_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a shell on the cluster; the cluster is taken down at the end."""
    folder = tmp_path_factory.mktemp("slurm")
    started = subprocess.run([START, folder], capture_output=True, text=True, timeout=600)
    if started.returncode:
        pytest.fail(started.stderr)
    try:
        yield {**os.environ, "SLURM_CONF": started.stdout.strip()}
    finally:
        subprocess.run([START, folder, "stop"], check=True)
