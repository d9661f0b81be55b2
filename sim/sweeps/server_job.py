"""A model server as a Slurm job: submitted like a cell, requeued like one, found by its clients through a file.

The job reads its resolved configuration from disk and runs the code of its launch. It publishes its URLs once it is
healthy and withdraws them when it ends; a job that starts again, on whatever node, publishes the new ones.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.engines.models import parse_model
from sim.engines.placement import parse_server
from sim.engines.serve_command import URLS, serve, serve_in
from sim.engines.url_file import PREFIX
from sim.records.run_dir import launch_id, tracked
from sim.sweeps.plan import Cell, write_sweep
from sim.sweeps.slurm import parse_resources, submit

_HERE = "here"


def serve_somewhere(data: Mapping[str, Any], overridden: Mapping[str, Any]) -> None:
    """Serve on this machine, or submit a job that serves; `resume` is set inside of that job."""
    if data["where"]["kind"] != _HERE:
        submit_server(data, overridden)
    elif data.get("resume"):
        _serve_as_job(Path(data["resume"]), data)
    else:
        serve(data, overridden)


def submit_server(data: Mapping[str, Any], overridden: Mapping[str, Any]) -> None:
    """Submit the job and say where its URLs will be. Raises UserError with Slurm's own words where it refuses."""
    model, _ = parse_model(data["model"]), parse_server(data["server"])
    place = dict(data["where"])
    kind, host = place.pop("kind"), place.pop("host")
    resources = parse_resources(place, "where")
    folder = Path(data["output"]).absolute() / f"{model.name}-{launch_id()}"
    server = {**data["server"], "port": overridden.get("server.port", 0)}
    config = {**data, "where": {"kind": _HERE, "host": host}, "server": server}
    cell = Cell(0, (f"model={model.name}",), "serve", config, {}, str(folder / "server"))
    (job,) = submit(
        folder, write_sweep(folder, sys.argv, kind, [cell]), folder.name, resources, hide_gpus=False
    )
    number = job.job_id.split("_")[0]
    urls = f"'engine.urls=[{PREFIX}{folder / 'server' / URLS}]'"
    print(f"job {number} serves {model.name} once it is healthy; end it with: scancel {number}")
    print(f"  its log: {folder / 'logs'}")
    print(f"  its clients: world=language engine=openai_server model={model.name} {urls}")


def _serve_as_job(directory: Path, data: Mapping[str, Any]) -> None:
    """Serve inside the job, at the address of its node. A signal leaves the run interrupted, so that a requeued
    job starts again."""
    host = data["where"]["host"] or socket.gethostname()
    server = parse_server({**data["server"], "host": host})
    with tracked(directory, "serve"):
        serve_in(directory, parse_model(data["model"]), server)
