"""Start a model server and print its URL: vLLM on GPUs or on a CPU, until Ctrl-C or as a Slurm job."""

from __future__ import annotations

from sim.launch import launch
from sim.sweeps.server_job import serve_somewhere

if __name__ == "__main__":
    launch(serve_somewhere, config_name="serve")
