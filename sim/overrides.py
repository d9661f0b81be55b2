"""The words of a command line before and after Hydra reads them: flags in any place, mistakes told in one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.errors import UserError

_SWEEP = ("-m", "--multirun")
_FLAGS = (*_SWEEP, "-h", "--help", "--hydra-help", "--version", "--resolve", "-r", "--run")
_WITH_VALUE = (
    "-c", "--cfg", "-p", "--package", "-i", "--info", "-sc", "--shell-completion", "-cp", "--config-path", "-cn",
    "--config-name", "-cd", "--config-dir", "--experimental-rerun",
)  # fmt: skip


def swept(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for a sweep."""
    return any(word in _SWEEP for word in arguments)


def arrange(arguments: Sequence[str], script: str, sweepable: bool) -> list[str]:
    """The command line with its flags in front, where Hydra wants them, and the script's name for its help.

    Raises UserError for a flag that does not exist, for a word that is no key=value, and for -m where the script
    cannot be swept.
    """
    if swept(arguments) and not sweepable:
        raise UserError(f"{script}.py cannot be swept; run it without -m, once per configuration")
    flags: list[str] = []
    values: list[str] = []
    words = iter(arguments)
    for word in words:
        if word.split("=")[0] in _WITH_VALUE:
            flags += [word] if "=" in word else [word, next(words, "")]
        elif word in _FLAGS:
            flags.append(word)
        elif word.startswith("-"):
            raise UserError(f"{word} is no flag; values are set as key=value: see --help")
        elif word.startswith("=") or ("=" not in word and not word.startswith("~")):
            raise UserError(f"{word!r} sets nothing; give key=value: see --help")
        else:
            values.append(word)
    return [*flags, *values, f"hydra.job.name={script}"]


def refuse_misplaced(arguments: Sequence[str], config_name: str) -> None:
    """Raise UserError for an experiment of another script: a captain's in a discussion's, or the other way."""
    for word in arguments:
        key, _, name = word.partition("=")
        ours = name.startswith("captain_") == (config_name == "captain")
        if key == "experiment" and name not in ("", "null") and not ours:
            script = "pipeline.py" if config_name == "captain" else "captain.py"
            raise UserError(f"{word} is an experiment of scripts/{script}; run it there")


def explain(error: Exception, conf: Path, config_name: str) -> str:
    """What Hydra or OmegaConf found wrong, in one line; with the nearest key where one is misspelt."""
    text = _one_line(error)
    unknown = re.search(r"Could not override '([^']+)'", text) or re.search(
        r"In '.*?': Could not override '([^']+)'", text
    )
    if unknown:
        return _no_such_key(unknown[1], conf, config_name)
    missing = re.search(
        r"Could not find '([^']+)/([^'/]+)'.* Available options in '[^']+': (.*?) Config search", text
    )
    if missing:
        group, name, options = missing.groups()
        return f"{group}={name}: there is no such choice; choose from {', '.join(options.split())}"
    return text.split(" Config search path:")[0]


def _no_such_key(key: str, conf: Path, config_name: str) -> str:
    near = difflib.get_close_matches(key, list(_known_keys(conf, config_name)), n=1)
    if near == [key]:
        return f"{key}: has no such entry yet; add it with ++{key}={{…}}, or begin anew with ~{key} ++{key}={{…}}"
    owners = list(_owners(key, conf))
    if owners:
        return f"{key}: is a setting of {' and '.join(owners)} only; where that is chosen, add an entry with ++{key}={{…}}"
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{key}: there is no such setting{hint}"


def _known_keys(conf: Path, config_name: str) -> Iterator[str]:
    """Every key of the default configuration, and every group."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf), version_base="1.3"):
        composed = compose(config_name)
    yield from _flat(OmegaConf.to_container(composed, resolve=False))
    yield from (path.name for path in conf.iterdir() if path.is_dir())


def _owners(key: str, conf: Path) -> Iterator[str]:
    """The choices of a group, GROUP=FILE, whose files have a key."""
    import yaml

    group, _, rest = key.partition(".")
    for path in sorted((conf / group).glob("*.yaml")):
        if rest in _flat(yaml.safe_load(path.read_text(encoding="utf-8"))):
            yield f"{group}={path.stem}"


def _flat(data: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield f"{prefix}{key}"
            yield from _flat(value, f"{prefix}{key}.")


def _one_line(error: Exception) -> str:
    cause = error.__cause__ or error
    lines = [line.strip() for line in (str(error) + "\n" + str(cause)).splitlines() if line.strip()]
    return " ".join(dict.fromkeys(lines))
