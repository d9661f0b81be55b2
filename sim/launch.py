"""The command line of every script: Hydra composes the configuration, errors become one line and a status.

Exit status 0: done; 2: the user can mend it (one line says how); 1: a fault of ours, with its traceback;
130: stopped by Ctrl-C, resumable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from sim.errors import UserError

CONF = Path(__file__).resolve().parent.parent / "conf"
_OURS = ("hydra.", "hydra/", "+hydra", "experiment")

Verb = Callable[[Mapping[str, Any], Mapping[str, Any]], object]
"""(resolved configuration, explicit overrides by key) -> anything."""


def launch(verb: Verb, config_name: str = "study") -> None:
    """Run a verb on the configuration that Hydra composes from the command line, and exit."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    import hydra
    from hydra.errors import HydraException
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    def task(composed: DictConfig) -> None:
        data = resolved(composed)
        try:
            verb(data, explicit_overrides(data))
        except UserError as error:
            _leave(str(error), 2)
        except KeyboardInterrupt:
            _leave("stopped; continue with resume=<the run directory>", 130)

    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(task)()
    except (HydraException, OmegaConfBaseException) as error:
        _leave(f"{_first_words(error)}; see --help for what can be set", 2)


def resolved(composed: Any) -> dict[str, Any]:
    """The composed configuration as plain data, every interpolation resolved."""
    from omegaconf import OmegaConf

    return cast("dict[str, Any]", OmegaConf.to_container(composed, resolve=True, throw_on_missing=True))


def explicit_overrides(data: Mapping[str, Any]) -> dict[str, Any]:
    """What the command line set by itself, key -> composed value; Hydra's own keys and `resume` left out."""
    from hydra.core.hydra_config import HydraConfig

    found: dict[str, Any] = {}
    for override in HydraConfig.get().overrides.task:
        key = override.lstrip("+~").split("=")[0].split("@")[0]
        if key.startswith(_OURS) or key in ("resume", "progress", "output"):
            continue
        found[key] = _select(data, key)
    return found


def _select(data: Any, key: str) -> Any:
    for part in key.replace("/", ".").split("."):
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _first_words(error: Exception) -> str:
    cause = error.__cause__ or error
    lines = [line.strip() for line in (str(error) + "\n" + str(cause)).splitlines() if line.strip()]
    return " ".join(dict.fromkeys(lines))


def _leave(message: str, status: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(status)
