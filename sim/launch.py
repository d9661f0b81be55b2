"""The command line of every script: Hydra composes the configuration, errors become one line and a status.

Exit status 0: done; 1: a fault of ours, with its traceback, or a sweep with unfinished cells; 2: the user can mend
it (one line says how); 130: stopped by Ctrl-C, resumable.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from sim.errors import UserError
from sim.overrides import arrange, explain, refuse_misplaced, swept

CONF = Path(__file__).resolve().parent.parent / "conf"
_OURS = ("hydra.", "hydra/", "+hydra", "experiment")
_NOT_COMPARED = ("resume", "progress", "output")
_LAUNCHER = "hydra/launcher"
_GLOBAL = "# @package _global_"
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)

Verb = Callable[[Mapping[str, Any], Mapping[str, Any]], object]
"""(resolved configuration, explicit overrides by key) -> anything."""
Check = Callable[[Mapping[str, Any]], object]
"""Raises UserError where a resolved configuration is wrong."""


class Task:
    """A script's work as Hydra and our launchers see it. `sweep` is where a sweep was launched, if one was."""

    def __init__(self, verb: Verb, check: Check | None) -> None:
        self.verb, self._check = verb, check
        self.script = Path(sys.argv[0]).stem
        self.sweep: Path | None = None

    def __call__(self, composed: Any) -> None:
        """Run the verb once; exits on what the user can mend."""
        from hydra.core.hydra_config import HydraConfig

        overrides = HydraConfig.get().overrides
        try:
            data = resolved(composed)
            _refuse_unused_launcher(HydraConfig.get())
            self.verb(data, self.explicit(overrides.task, data))
        except UserError as error:
            _leave(str(error), 2)
        except OSError as error:
            if error.errno not in _DISK:
                raise
            _leave(
                f"{error.filename or 'disk'}: {error.strerror}; mend that, then continue with resume=<the run>",
                2,
            )
        except KeyboardInterrupt:
            _leave("stopped; continue with resume=<the run directory>", 130)

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise UserError where a cell's configuration is wrong."""
        if self._check is not None:
            self._check(config)

    def explicit(self, overrides: Sequence[str], data: Mapping[str, Any]) -> dict[str, Any]:
        """What overrides set by themselves, key -> composed value; Hydra's own keys and `resume` left out."""
        keys = [override.lstrip("+~").split("=")[0].split("@")[0] for override in overrides]
        spread = {override: _keys_of_global(override) for override in overrides}
        keys = [key for override, key in zip(overrides, keys, strict=True) if not spread[override]]
        keys += [key for found in spread.values() for key in found]
        return {
            key: _select(data, key) for key in keys if not key.startswith(_OURS) and key not in _NOT_COMPARED
        }


def launch(verb: Verb, config_name: str = "study", check: Check | None = None) -> None:
    """Run a verb on the configuration that Hydra composes from the command line, and exit.

    With -m, `check` is made on every cell before any runs; a verb without one cannot be swept. `--cell FILE` runs
    one cell of a sweep that was launched before.
    """
    if sys.argv[1:2] == ["--cell"] and len(sys.argv) == 3:
        from sim.sweeps.cell import exit_status_of

        raise SystemExit(exit_status_of(verb, Path(sys.argv[2])))
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    warnings.showwarning = _one_line_warning
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    task = Task(verb, check)
    try:
        refuse_misplaced(sys.argv[1:], config_name)
        sys.argv[1:] = arrange(sys.argv[1:], task.script, sweepable=check is not None)
        _compose_and_run(task, config_name)
    except UserError as error:
        _leave(str(error), 2)
    except KeyboardInterrupt:
        _leave("stopped", 130)
    except BrokenPipeError:
        if not {"-h", "--help"} & set(sys.argv):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (HydraException, OmegaConfBaseException) as error:
        _leave(f"{explain(error, CONF, config_name)}; see --help for what can be set", 2)
    if task.sweep is not None:
        _judge(task.sweep)


def _compose_and_run(task: Task, config_name: str) -> None:
    import hydra
    from omegaconf import OmegaConf

    from sim.records.run_dir import launch_id

    name = launch_id()
    _forget_namesakes()
    OmegaConf.register_new_resolver("launch_id", lambda: name, replace=True)
    OmegaConf.register_new_resolver("purpose", lambda: sys.modules["__main__"].__doc__ or "", replace=True)
    hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(task)()


def _forget_namesakes() -> None:
    """Launcher plugins that happen to be installed register defaults under the names of our files; without this
    Hydra would hold ours to theirs."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    Plugins.instance()
    registered: dict[str, Any] = ConfigStore.instance().repo.get("hydra", {}).get("launcher", {})
    for path in (CONF / "hydra" / "launcher").glob("*.yaml"):
        registered.pop(path.name, None)


def _refuse_unused_launcher(hydra: Any) -> None:
    """Hydra ignores a launcher without -m, and one that an experiment's file chooses."""
    chosen = str(hydra.runtime.choices[_LAUNCHER])
    if swept(sys.argv[1:]):
        raise UserError(f"{_LAUNCHER}={chosen} is not ours; choose serial, joblib or submitit_slurm")
    if chosen not in ("basic", "serial"):
        raise UserError(f"{_LAUNCHER}={chosen} is for sweeps and would not be used; add -m")


def _judge(sweep: Path) -> None:
    from sim.sweeps.launching import summary

    text, finished = summary(sweep)
    print(text, file=sys.stderr)
    if not finished:
        raise SystemExit(1)


def composed(*overrides: str, config_name: str = "study") -> dict[str, Any]:
    """The resolved configuration that a script gets from these words of its command line, for callers in Python,
    scripts of Hydra's own among them."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    held, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return resolved(compose(config_name, list(overrides)))
    finally:
        GlobalHydra.instance().hydra = held


def resolved(composed: Any) -> dict[str, Any]:
    """The composed configuration as plain data, every interpolation resolved; UserError for a value that has no
    default and was not given."""
    from omegaconf import OmegaConf
    from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue

    try:
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise UserError(f"{error.full_key}: it has no default; give {error.full_key}=<value>") from error
    except InterpolationResolutionError as error:
        raise UserError(
            f"{error.full_key}: {str(error).splitlines()[0]}; see --help for what can be set"
        ) from error
    return cast("dict[str, Any]", plain)


def _keys_of_global(override: str) -> list[str]:
    """The dotted keys that GROUP=NAME sets by itself where the file's keys stand at the top of the configuration
    (`experiment`, `controller`, `size`); none for any other override."""
    import yaml

    group, _, name = override.lstrip("+").partition("=")
    path = CONF / group / f"{name}.yaml"
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    if not text.startswith(_GLOBAL):
        return []
    content = yaml.safe_load(text) or {}
    return list(_leaves({key: part for key, part in content.items() if key != "defaults"}))


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _select(data: Any, key: str) -> Any:
    for part in key.replace("/", ".").split("."):
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _one_line_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def _leave(message: str, status: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(status)
