"""Where servers may run: configuration, interpreter, ports, and each replica's own GPUs or cores.

Decides and checks; starts nothing.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from sim.engines.models import ModelConfig
from sim.errors import UserError, shown
from sim.parsing import typed


class _Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="device"):
    """What servers on either device have in common.

    `python` is the interpreter that has vLLM (null: this one). `port` is the first replica's, the next ones
    follow it; 0 takes free ones.
    """

    python: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    replicas: int = 1
    block_size: int | None = None
    max_num_seqs: int = 256
    arguments: tuple[str, ...] = ()
    start_timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        _at_least_one(self, "replicas", "max_num_seqs")
        if not 0 <= self.port <= 65535 - self.replicas:
            raise UserError(f"server.port is {self.port}; it must lie between 0 (free ports) and 65535")
        if self.start_timeout_s <= 0:
            raise UserError(f"server.start_timeout_s is {self.start_timeout_s}; it must be positive")


class CpuServer(_Server, frozen=True, forbid_unknown_fields=True, tag="cpu"):
    """Servers on this machine's cores, which the replicas share; `kv_cache_gib` is memory for each cache.

    `model_cores` of its share compute in each (null: all of it). Threads that compute wait for each other after every
    operation, so leave a core to whatever else runs here.
    """

    kv_cache_gib: int = 2
    model_cores: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one(self, "kv_cache_gib")
        if self.model_cores is not None:
            _at_least_one(self, "model_cores")


class GpuServer(_Server, frozen=True, forbid_unknown_fields=True, tag="gpu"):
    """Servers on GPUs, each on its own; `gpu_memory_utilization` is the share of a GPU that vLLM may take."""

    data_parallel: int = 1
    gpu_memory_utilization: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one(self, "data_parallel")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise UserError(
                f"server.gpu_memory_utilization is {self.gpu_memory_utilization}; it must lie in (0, 1]"
            )


ServerConfig: TypeAlias = CpuServer | GpuServer


def _at_least_one(config: _Server, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise UserError(f"server.{name} is {getattr(config, name)}; it must be at least 1")


def parse_server(data: Mapping[str, Any]) -> ServerConfig:
    """The typed configuration; UserError naming the first wrong key or value."""
    return typed(data, cast("type[ServerConfig]", ServerConfig), "config: server")


def interpreter(config: ServerConfig) -> str:
    """Path of the Python that has vLLM. Raises UserError if there is none."""
    if config.python is None:
        return sys.executable
    found = shutil.which(config.python)
    if found is None:
        raise UserError(
            f"server.python is {shown(config.python)}, which is no program here; make vllm-cpu builds the "
            "one for CPUs, or name an interpreter that has vLLM"
        )
    return str(Path(found).absolute())


def places(model: ModelConfig, config: ServerConfig) -> list[tuple[int, dict[str, str]]]:
    """Port and environment of each replica."""
    common = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    shares = _gpu_shares(model, config) if isinstance(config, GpuServer) else _cpu_shares(config)
    return [(port, {**common, **share}) for port, share in zip(_ports(config), shares, strict=True)]


def _gpu_shares(model: ModelConfig, config: GpuServer) -> list[dict[str, str]]:
    """Each replica's own GPUs. Raises UserError where there are too few."""
    each = model.tensor_parallel * config.data_parallel
    gpus = visible_gpus()
    if len(gpus) < each * config.replicas:
        raise UserError(
            f"server.replicas={config.replicas} × server.data_parallel={config.data_parallel} × "
            f"model.tensor_parallel={model.tensor_parallel} needs {each * config.replicas} GPUs, but "
            f"{len(gpus)} are visible; lower one of them, or use server=vllm_cpu"
        )
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(gpus[replica * each : (replica + 1) * each])}
        for replica in range(config.replicas)
    ]


def visible_gpus() -> list[str]:
    """Names of the GPUs this process may use, by CUDA_VISIBLE_DEVICES or else by nvidia-smi."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name]
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()


def _cpu_shares(config: CpuServer) -> list[dict[str, str]]:
    """Each replica's own cores and memory for its cache."""
    cores = sorted(os.sched_getaffinity(0))
    if config.replicas > len(cores):
        raise UserError(f"server.replicas is {config.replicas}, but {len(cores)} cores are there; lower it")
    each = len(cores) // config.replicas
    computing = each if config.model_cores is None else min(each, config.model_cores)
    return [
        {
            "VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores[index * each : index * each + computing])),
        }
        for index in range(config.replicas)
    ]


def _ports(config: ServerConfig) -> list[int]:
    """A port per replica, free now. Raises UserError for one that is taken."""
    if config.port == 0:
        return free_ports(config.host, config.replicas)
    ports = [config.port + replica for replica in range(config.replicas)]
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((config.host, port))
            except OSError as error:
                raise UserError(
                    f"server.port: {config.host}:{port} cannot be used ({error.strerror}); choose another, or "
                    "0 for a free one"
                ) from error
    return ports


def free_ports(host: str, count: int) -> list[int]:
    """Different ports that are free now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
