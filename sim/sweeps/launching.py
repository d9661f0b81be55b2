"""From what Hydra composed to a sweep under way: every cell is resolved, checked and written before any runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from sim.config import identity_hash
from sim.errors import UserError
from sim.records.run_dir import FINISHED, read_config
from sim.records.sweep_dir import SWEEP, Outcome, outcomes
from sim.studies.progress import Reporter
from sim.sweeps.plan import Cell, cell_directory, write_sweep

LAUNCHER = "hydra/launcher"


class Sweepable(Protocol):
    """The script that is swept, as launchers see it."""

    script: str
    sweep: Path | None

    def check(self, config: Mapping[str, Any]) -> object:
        """Raise UserError where a cell's configuration is wrong."""
        ...

    def explicit(self, overrides: Sequence[str], config: Mapping[str, Any]) -> dict[str, Any]:
        """What some overrides set, key -> composed value."""
        ...


def plan_sweep(
    loader: Any,
    master: Any,
    task: Sweepable,
    sweep: Path,
    cells_overrides: Sequence[Sequence[str]],
) -> list[Path]:
    """Compose, resolve and check every cell, then write the sweep down; returns the cells' files.

    Raises UserError, with nothing written, where a cell is wrong or chooses a launcher by itself.
    """
    if master.hydra.sweeper.get("max_batch_size"):
        raise UserError(
            "hydra.sweeper.max_batch_size is set; limit jobs with hydra.launcher.n_jobs or array_parallelism"
        )
    cells = []
    shared = set.intersection(*map(set, cells_overrides))
    for number, overrides in enumerate(cells_overrides):
        config = _composed(loader, master, list(overrides))
        if config.get("plan"):
            raise UserError("plan is on, and a plan is not swept; leave out -m, or give the study arms")
        try:
            task.check(config)
            _check_resumed(config)
        except UserError as error:
            own = [override for override in overrides if override not in shared]
            raise UserError(f"cell {number} ({_shown(own)}): {error}") from error
        directory = cell_directory(sweep, number, config, identity_hash(config))
        explicit = task.explicit(overrides, config) if config.get("resume") else {}
        cells.append(Cell(number, tuple(overrides), task.script, config, explicit, str(directory)))
    return write_sweep(sweep, sys.argv, str(master.hydra.runtime.choices[LAUNCHER]), cells)


def forget_refused(sweep: Path) -> None:
    """Take away what Hydra wrote before it asked us: its own note of a sweep that was refused, and empty folders."""
    if (sweep / SWEEP).exists():
        return
    (sweep / "multirun.yaml").unlink(missing_ok=True)
    for folder in (sweep, sweep.parent):
        with suppress(OSError):
            folder.rmdir()


def _composed(loader: Any, master: Any, overrides: list[str]) -> dict[str, Any]:
    """The resolved configuration of one cell."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import open_dict

    from sim.launch import resolved

    composed = loader.load_sweep_config(master, overrides)
    _refuse_own_launcher(composed.hydra.runtime)
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(composed)
    try:
        with open_dict(composed):
            del composed["hydra"]
        return resolved(composed)
    finally:
        HydraConfig.instance().cfg = before


def _refuse_own_launcher(runtime: Any) -> None:
    """Hydra reads the launcher before it reads what is swept, and ignores one that an experiment chooses."""
    experiment = runtime.choices.get("experiment")
    files = [
        Path(source.path) / "experiment" / f"{experiment}.yaml"
        for source in runtime.config_sources
        if source.schema == "file"
    ]
    for file in files:
        if file.is_file() and LAUNCHER in file.read_text(encoding="utf-8"):
            raise UserError(
                f"{file}: chooses a launcher, which a sweep does not see; choose it on the command line with "
                f"{LAUNCHER}=<name>"
            )


def _check_resumed(config: Mapping[str, Any]) -> None:
    """A cell may go on with a run, but makes none where `resume` names none."""
    if config.get("resume") is not None:
        read_config(Path(str(config["resume"])))


def _shown(overrides: Sequence[str]) -> str:
    return " ".join(overrides) or "no override"


def run_on_this_machine(sweep: Path, cells: Sequence[Path], settings: Mapping[str, Any]) -> None:
    """Run cells as processes; `settings`: n_jobs, hide_gpus, progress."""
    from sim.sweeps.local import run_here

    n_jobs = int(settings["n_jobs"])
    if n_jobs == 0:
        raise UserError("hydra.launcher.n_jobs is 0; give at least 1, or -1 for one per core")
    with _progress(sweep, cells) as advance:
        run_here(sweep, cells, n_jobs, bool(settings["hide_gpus"]), advance)


def run_on_slurm(sweep: Path, cells: Sequence[Path], settings: Mapping[str, Any]) -> None:
    """Submit cells to Slurm and, unless told not to, wait; `settings`: resources, hide_gpus, wait."""
    from sim.sweeps.slurm import parse_resources, submit, wait

    plain = _plain(settings)
    waits, hide_gpus = bool(plain.pop("wait")), bool(plain.pop("hide_gpus"))
    resources = parse_resources(plain, "hydra.launcher")
    jobs = submit(sweep, cells, sweep.name, resources, hide_gpus)
    print(f"{sweep}: {len(jobs)} cells submitted: {', '.join(job.job_id for job in jobs)}", file=sys.stderr)
    if waits:
        with _progress(sweep, cells) as advance:
            wait(sweep, jobs, resources, advance)


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    from omegaconf import OmegaConf

    return {
        key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        for key, value in settings.items()
    }


def _progress(sweep: Path, cells: Sequence[Path]) -> Any:
    return Reporter().stage("cells", len(cells))


def summary(sweep: Path) -> tuple[str, bool]:
    """What became of a sweep, a line per cell that is not finished; and whether all are."""
    found = outcomes(sweep)
    bad = [outcome for outcome in found if outcome.state != FINISHED]
    lines = [_line(outcome) for outcome in bad]
    lines.append(f"{len(found) - len(bad)} of {len(found)} cells finished; python scripts/report.py {sweep}")
    return "\n".join(lines), not bad


def _line(outcome: Outcome) -> str:
    reason = f": {outcome.error}" if outcome.error else ""
    return f"cell {outcome.number} ({_shown(outcome.overrides)}) {outcome.state}{reason}"
