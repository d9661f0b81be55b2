"""Hydra's door to sweeps: launchers that write every cell down before any runs (Hydra looks for them here).

A cell's configuration is composed once, at launch. Jobs read it from the sweep's directory, and how they ended is
read from status.json, so neither Hydra's nor submitit's word for it counts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from sim.errors import UserError


class _CellLauncher(Launcher):
    """What the launchers share: from Hydra's overrides to cells on disk. `settings`: the launcher's config."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra once; the task is `sim.launch.Task`."""
        self.loader, self.config = hydra_context.config_loader, config
        self.task: Any = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Write the cells down and run them; judging them is left to status.json."""
        from sim.sweeps.launching import forget_refused, plan_sweep

        sweep = Path(str(self.config.hydra.sweep.dir))
        try:
            cells = plan_sweep(self.loader, self.config, self.task, sweep, job_overrides)
        except UserError:
            forget_refused(sweep)
            raise
        self.task.sweep = sweep
        self.run(sweep, cells)
        return [_accepted(overrides) for overrides in job_overrides]

    @abstractmethod
    def run(self, sweep: Path, cells: list[Path]) -> None:
        """Run the cells of a sweep to their ends."""


class LocalLauncher(_CellLauncher):
    """Processes of this machine: `n_jobs` at a time."""

    def run(self, sweep: Path, cells: list[Path]) -> None:
        """Run the cells of a sweep to their ends."""
        from sim.sweeps.launching import run_on_this_machine

        run_on_this_machine(sweep, cells, self.settings)


class SlurmLauncher(_CellLauncher):
    """Slurm jobs, one array task per cell."""

    def run(self, sweep: Path, cells: list[Path]) -> None:
        """Submit the cells of a sweep, and wait for them if asked."""
        from sim.sweeps.launching import run_on_slurm

        run_on_slurm(sweep, cells, self.settings)


def _accepted(overrides: Sequence[str]) -> JobReturn:
    done = JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED)
    done.return_value = None
    return done
