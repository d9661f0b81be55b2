"""A vLLM server on this machine's CPU for the language bench, and what it says of its prefix cache."""

from __future__ import annotations

import json
import os
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sim.engines.checkpoints import local_checkpoint
from sim.engines.models import ModelConfig
from sim.engines.placement import CpuServer
from sim.engines.serving import serving

_DEV_MODE = "VLLM_SERVER_DEV_MODE"
"""Switches vLLM's /reset_prefix_cache on."""
BLOCK_SIZE = 32


@dataclass(frozen=True)
class CountedServer:
    """A running server whose prefix cache can be emptied and whose counters can be read."""

    url: str

    def reset_prefix_cache(self) -> None:
        """Forget every prefix. Raises RuntimeError where vLLM does not."""
        request = urllib.request.Request(f"{self._root}/reset_prefix_cache", method="POST")
        with urllib.request.urlopen(request, timeout=30) as reply:
            if not json.load(reply)["success"]:
                raise RuntimeError("vLLM did not reset its prefix cache; were requests still running?")

    def prefix_cache_counts(self) -> tuple[float, float]:
        """Prompt tokens found in the prefix cache, and prompt tokens looked for, since the start."""
        with urllib.request.urlopen(f"{self._root}/metrics", timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        hits, queries = (
            sum(
                float(line.rsplit(" ", 1)[1])
                for line in lines
                if line.startswith(f"vllm:prefix_cache_{name}_total{{")
            )
            for name in ("hits", "queries")
        )
        return hits, queries

    @property
    def _root(self) -> str:
        return self.url.removesuffix("/v1")


@contextmanager
def bench_server(
    model: ModelConfig, python: str, max_num_seqs: int, model_cores: int | None
) -> Iterator[CountedServer]:
    """The server for the time of the block, its log in a temporary folder; graphs are not compiled, which on CPU
    takes a minute and gains nothing."""
    config = CpuServer(
        python=python,
        port=0,
        block_size=BLOCK_SIZE,
        max_num_seqs=max_num_seqs,
        arguments=("--enforce-eager",),
        model_cores=model_cores,
    )
    before = os.environ.get(_DEV_MODE)
    os.environ[_DEV_MODE] = "1"
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            serving(model, local_checkpoint(model), config, Path(folder)) as servers,
        ):
            yield CountedServer(servers[0].url)
    finally:
        if before is None:
            del os.environ[_DEV_MODE]
        else:
            os.environ[_DEV_MODE] = before
