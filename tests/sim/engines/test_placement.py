"""Where servers run: which GPUs, cores and ports each replica gets, and what is refused."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import pytest

from sim.engines.models import ModelConfig
from sim.engines.placement import (
    CpuServer,
    GpuServer,
    free_ports,
    interpreter,
    parse_server,
    places,
    visible_gpus,
)
from sim.errors import UserError

MODEL = ModelConfig("m", "m", 100, tensor_parallel=2)


def test_each_replica_owns_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,5,7,8,9")
    config = GpuServer(replicas=2, data_parallel=2, port=0)
    shares = [environment["CUDA_VISIBLE_DEVICES"] for _, environment in places(MODEL, config)]
    assert shares == ["0,1,2,3", "5,7,8,9"]


def test_too_few_gpus_are_counted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(UserError, match="needs 4 GPUs, but 3 are visible"):
        places(MODEL, GpuServer(replicas=2, port=0))


def test_no_gpu_is_seen_where_none_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []


def test_replicas_share_the_cores_without_overlap() -> None:
    cores = os.sched_getaffinity(0)
    found = places(MODEL, CpuServer(replicas=len(cores), port=0, kv_cache_gib=3))
    bound = [environment["VLLM_CPU_OMP_THREADS_BIND"] for _, environment in found]
    assert sorted(int(core) for share in bound for core in share.split(",")) == sorted(cores)
    assert {environment["VLLM_CPU_KVCACHE_SPACE"] for _, environment in found} == {"3"}
    ((_, one),) = places(MODEL, CpuServer(port=0, model_cores=1))
    assert one["VLLM_CPU_OMP_THREADS_BIND"] == str(min(cores))
    ((_, all_of_them),) = places(MODEL, CpuServer(port=0, model_cores=len(cores) + 5))
    assert len(all_of_them["VLLM_CPU_OMP_THREADS_BIND"].split(",")) == len(cores)
    with pytest.raises(UserError, match=r"server\.model_cores is 0; it must be at least 1"):
        CpuServer(model_cores=0)
    with pytest.raises(UserError, match="cores are there"):
        places(MODEL, CpuServer(replicas=len(cores) + 1, port=0))


def test_no_replica_reports_usage_or_asks_a_hub() -> None:
    ((_, environment),) = places(MODEL, CpuServer(port=0))
    assert environment["VLLM_NO_USAGE_STATS"] == environment["DO_NOT_TRACK"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_ports_follow_the_first_and_a_taken_one_is_named() -> None:
    (port,) = free_ports("127.0.0.1", 1)
    assert [place[0] for place in places(MODEL, CpuServer(port=port))] == [port]
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(UserError, match=f"127.0.0.1:{port} cannot be used"):
            places(MODEL, CpuServer(port=port))


def test_free_ports_differ() -> None:
    assert len(set(free_ports("127.0.0.1", 8))) == 8


def test_the_interpreter_is_this_one_or_an_existing_program() -> None:
    assert interpreter(CpuServer()) == sys.executable
    assert interpreter(CpuServer(python=sys.executable)) == sys.executable
    with pytest.raises(UserError, match=r"no-such-python.*make vllm-cpu"):
        interpreter(CpuServer(python="no-such-python"))


def test_each_device_has_its_own_options() -> None:
    assert parse_server({"device": "cpu", "kv_cache_gib": 4}) == CpuServer(kv_cache_gib=4)
    assert parse_server({"device": "gpu", "data_parallel": 4}) == GpuServer(data_parallel=4)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"device": "tpu"}, "tpu"),
        ({"device": "cpu", "data_parallel": 2}, "data_parallel"),
        ({"device": "cpu", "replicas": 0}, "server.replicas is 0"),
        ({"device": "cpu", "kv_cache_gib": 0}, "server.kv_cache_gib is 0"),
        ({"device": "cpu", "port": 70000}, "server.port is 70000"),
        ({"device": "cpu", "start_timeout_s": 0.0}, "server.start_timeout_s is 0"),
        ({"device": "gpu", "max_num_seqs": 0}, "server.max_num_seqs is 0"),
        ({"device": "gpu", "gpu_memory_utilization": 1.5}, "server.gpu_memory_utilization is 1.5"),
    ],
)
def test_a_wrong_value_is_named(data: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_server(data)
