"""Experiment tracking with wandb, from the records of a finished run and after the fact.

A job never waits for a server or fails with one: what is sent is read from the run directory by a process of its
own, once the run is over. One run there per run here, under an id that its directory decides.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from sim.config import LoggerConfig
from sim.errors import UserError
from sim.records.run_dir import ARMS, CONFIG, FINISHED, PROVENANCE, read_config, read_status, write_json

TRACKED = "tracking.json"
_SECRET = re.compile(
    r"(^|_)(api_?key|secret|password|passwd|token|credentials?|authorization)$", re.IGNORECASE
)
_USER_IN_URL = re.compile(r"://[^/@\s]+@")
_ENVIRONMENT = re.compile(
    r"(WANDB_|PYTHON|XDG_)\w*|PATH|LD_LIBRARY_PATH|HOME|NETRC|TMPDIR|LANG|LC_\w+|SSL_CERT_\w+|\w+_proxy",
    re.IGNORECASE,
)
_NOT_SENT = ("output", "resume", "progress", "logger")
"""Of the configuration: where and how the run was written."""
_BY_ROUND = {
    "coverage": ("coverage",),
    "regret_by_round": ("mean_regret", "mean_normalised_regret", "mean_executed_regret"),
}


def after_run(directory: Path, settings: LoggerConfig) -> None:
    """Track a run that has just finished, if asked; whatever goes wrong is a warning."""
    if settings.kind == "none":
        return
    command = [sys.executable, "-m", __name__, str(directory), msgspec.json.encode(settings).decode()]
    try:
        done = subprocess.run(
            command,
            env={name: value for name, value in os.environ.items() if _ENVIRONMENT.fullmatch(name)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=settings.timeout_s,
        )
    except OSError as error:
        _warn(directory, str(error))
    except subprocess.TimeoutExpired:
        _warn(directory, f"it took longer than logger.timeout_s = {settings.timeout_s:g} seconds")
    else:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        if done.returncode:
            _warn(directory, said[-1])


def _warn(directory: Path, reason: str) -> None:
    text = f"{directory}: not tracked with wandb: {reason}; try again with scripts/track.py {directory}"
    warnings.warn(text, stacklevel=3)


def track(directory: Path, settings: LoggerConfig) -> str:
    """Send a finished run to wandb, or write it for `wandb sync` if offline; its id there.

    What was sent already is not sent again; a run that changed takes its own place (online wandb keeps the history
    by round of the first time, and takes the rest). Tables are made where the run has none. Raises UserError where it is
    not finished.
    """
    if read_status(directory)["state"] != FINISHED:
        raise UserError(f"{directory}: is not finished; only finished runs are tracked")
    if not (directory / "tables").is_dir():
        from sim.report.build import build_report

        build_report(directory)
    name, digest = run_id(directory), _digest(directory, settings)
    path = directory / TRACKED
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if before.get("digest") != digest:
        for stale in (directory / "wandb").glob(f"offline-run-*-{name}"):
            shutil.rmtree(stale)
        _send(directory, name, settings)
        write_json(path, {"id": name, "digest": digest, "mode": settings.mode, "project": settings.project})
    return name


def run_id(directory: Path) -> str:
    """The id of a run: the same for the same directory's name and sweep."""
    return hashlib.blake2b(f"{_group(directory)}/{directory.name}".encode(), digest_size=8).hexdigest()


def described(directory: Path) -> dict[str, Any]:
    """The configuration and the provenance of a run, as they are sent: without what names places of the machine."""
    config = {key: value for key, value in read_config(directory).items() if key not in _NOT_SENT}
    made_by = {key: value for key, value in _object(directory / PROVENANCE).items() if key != "command"}
    sent: dict[str, Any] = public({**config, "provenance": made_by})
    return sent


def public(value: Any) -> Any:
    """A configuration or provenance without what could be a secret: values under telling keys, users in URLs."""
    if isinstance(value, Mapping):
        return {
            key: public(item)
            for key, item in value.items()
            if not (isinstance(item, str) and _SECRET.search(str(key)))
        }
    if isinstance(value, list | tuple):
        return [public(item) for item in value]
    return _USER_IN_URL.sub("://", value) if isinstance(value, str) else value


def by_round(directory: Path) -> dict[int, dict[str, float]]:
    """Metrics of every round, 1-based: `<condition>/<metric>` -> value; of coverage, that of the thresholds."""
    import pandas as pd

    found: dict[int, dict[str, float]] = {}
    for table, metrics in _BY_ROUND.items():
        frame = _table(directory / "tables" / f"{table}.csv")
        for row in frame.to_dict("records"):
            if row.get("bound", "threshold") != "threshold":
                continue
            for metric in metrics:
                if pd.notna(row[metric]):
                    found.setdefault(int(row["round"]), {})[f"{row['condition']}/{metric}"] = float(
                        row[metric]
                    )
    return found


def summary(directory: Path) -> dict[str, float]:
    """The accuracy table flattened: `<condition>/<metric>` -> value."""
    frame = _table(directory / "tables" / "accuracy.csv")
    numbers = frame.select_dtypes("number").columns
    return {
        f"{row['condition']}/{metric}": float(row[metric])
        for row in frame.to_dict("records")
        for metric in numbers
        if row[metric] == row[metric]
    }


def _send(directory: Path, name: str, settings: LoggerConfig) -> None:
    import wandb

    run = wandb.init(
        project=settings.project,
        entity=settings.entity,
        id=name,
        name=directory.name,
        group=_group(directory) or None,
        dir=str(directory),
        resume="allow" if settings.mode == "online" else None,
        config=described(directory),
        settings=_settings(wandb, settings),
    )
    try:
        for number, metrics in sorted(by_round(directory).items()):
            run.log({"round": number, **metrics}, step=number)
        run.log({f"tables/{path.stem}": wandb.Table(dataframe=_table(path)) for path in _tables(directory)})
        run.log({f"figures/{path.stem}": wandb.Image(str(path)) for path in _figures(directory)})
        run.summary.update(summary(directory))
    finally:
        run.finish()
        wandb.teardown()  # finish() may return before the last records are on disk


def _settings(wandb: Any, settings: LoggerConfig) -> Any:
    """Nothing of the machine, its user, its environment, the code or the terminal is collected."""
    return wandb.Settings(
        mode=settings.mode,
        silent=True,
        console="off",
        save_code=False,
        disable_code=True,
        disable_git=True,
        host="-",
        username="-",
        init_timeout=settings.timeout_s,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )


def _group(directory: Path) -> str:
    """The sweep or the study of arms that a run is part of."""
    parent = directory.absolute().parent
    if parent.name == ARMS:
        return parent.parent.name
    return parent.name if (parent / "sweep.json").is_file() else ""


def _digest(directory: Path, settings: LoggerConfig) -> str:
    """Hash of all that would be sent, and where to."""
    digest = hashlib.blake2b(msgspec.json.encode(settings), digest_size=16)
    for path in [directory / CONFIG, *_tables(directory), *_figures(directory)]:
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _tables(directory: Path) -> Iterator[Path]:
    """Tables that are not empty."""
    return (path for path in sorted((directory / "tables").glob("*.csv")) if path.stat().st_size > 1)


def _figures(directory: Path) -> Iterator[Path]:
    return iter(sorted((directory / "figures").glob("*.png")))


def _table(path: Path) -> Any:
    import pandas as pd

    return pd.read_csv(path) if path.is_file() and path.stat().st_size > 1 else pd.DataFrame()


def _object(path: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


if __name__ == "__main__":
    track(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2].encode(), type=LoggerConfig))
