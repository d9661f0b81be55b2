"""Start a model server and print its URL: vLLM on GPUs or on a CPU, until Ctrl-C."""

from __future__ import annotations

from sim.engines.serve_command import serve
from sim.launch import launch

if __name__ == "__main__":
    launch(serve, config_name="serve")
