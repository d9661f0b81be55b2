"""Studies of several arms: runs of their own that differ in a few values, below one directory, with tables
across them. With `transfer`, what was trained in one arm is evaluated in every other, too.

An arm is an ordinary run: its directory can be resumed, reported and replayed by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sim.config import LEARNED, StudyConfig, identity_hash, parse
from sim.errors import UserError, shown
from sim.records.run_dir import ARMS, CONFIG, claim, make_exclusively, read_config, tracked, write_config
from sim.records.store import RunStore
from sim.studies.opening import check_unchanged

_LEARNING = ("explore", "train")

RunArm = Callable[[Mapping[str, Any], tuple[str, ...]], object]
"""Runs stages of one arm, given its configuration with `resume` set to its directory."""


def has_arms(data: Mapping[str, Any]) -> bool:
    """Whether a configuration, or the run it resumes, is a study of several arms."""
    if data["resume"] is None:
        return bool(data["arms"])
    path = Path(data["resume"])
    return (path / CONFIG).is_file() and bool(read_config(path).get("arms"))


def separate_studies(data: Mapping[str, Any]) -> dict[str, StudyConfig]:
    """The studies of a new configuration by name: the one that it is, or its arms, each by itself."""
    arms = arm_configs({**data, "transfer": False}, Path("arms")) if data["arms"] else {data["name"]: data}
    return {name: parse({**content, "resume": None}) for name, content in arms.items()}


def run_arms(
    data: Mapping[str, Any], overridden: Mapping[str, Any], stages: tuple[str, ...], run: RunArm
) -> Path:
    """Run every arm, in a new directory or the one named by `resume`; returns that directory.

    Every arm's configuration is checked before anything is written.
    """
    if data["resume"] is None:
        for config in arm_configs(data, Path("arms")).values():
            parse(config)
        directory = claim(Path(data["output"]), data["name"], identity_hash(data), data)
    else:
        directory = Path(data["resume"])
        check_unchanged(directory, read_config(directory), overridden)
    stored = {**read_config(directory), "progress": data["progress"]}
    with RunStore(directory), tracked(directory, "+".join(stages)):
        arms = arm_configs(stored, directory / ARMS)
        for arm in arms.values():
            _claim_arm(arm)
        for arm, part in _phases(parse(stored), arms, stages):
            run(arm, part)
    return directory


def _phases(
    config: StudyConfig, arms: Mapping[str, dict[str, Any]], stages: tuple[str, ...]
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Which stages of which arm, in order: where trained controllers move, all arms learn before any plays."""
    phases: list[tuple[str, ...]] = [stages]
    if config.transfer:
        learning = tuple(stage for stage in stages if stage in _LEARNING)
        phases = [learning, tuple(stage for stage in stages if stage not in _LEARNING)]
    for phase in phases:
        for arm in arms.values() if phase else ():
            yield arm, phase


def _claim_arm(arm: Mapping[str, Any]) -> None:
    """The arm's directory with its configuration, which arms that read from it expect to find."""
    directory = Path(arm["resume"])
    if not (directory / CONFIG).exists():
        if not directory.exists():
            make_exclusively(directory)
        write_config(directory, {**arm, "resume": None})


def arm_configs(data: Mapping[str, Any], root: Path) -> dict[str, dict[str, Any]]:
    """The whole configuration of each arm, with its directory below `root` in `resume`.

    Raises UserError naming the arm and the key that the study has not got.
    """
    names = list(data["arms"])
    configs = {name: _arm(data, name, root) for name in names}
    if data["transfer"]:
        for name, config in configs.items():
            for other in names:
                if other != name:
                    _add_guest(config, other, root / other)
    return configs


def _arm(data: Mapping[str, Any], name: str, root: Path) -> dict[str, Any]:
    config = copy.deepcopy({key: value for key, value in data.items() if key not in ("arms", "transfer")})
    changes = data["arms"][name]
    if not isinstance(changes, Mapping):
        raise UserError(f"arms.{name} is {shown(changes)}; give what differs: {{dotted.key: value}}")
    for key, value in changes.items():
        _set(config, key, value, name)
    study = {"name": name, "arms": {}, "transfer": False, "output": str(root), "resume": str(root / name)}
    return config | study


def _set(config: dict[str, Any], key: str, value: Any, arm: str) -> None:
    """Set a dotted key; what stood there is replaced whole."""
    *path, last = key.split(".")
    place = config
    for part in path:
        place = place.get(part, {}) if isinstance(place, dict) else {}
    if not isinstance(place, dict) or last not in place:
        raise UserError(f"arms.{arm}: there is no setting {key!r} in this study; give an existing dotted key")
    place[last] = copy.deepcopy(value)


def _add_guest(config: dict[str, Any], other: str, run: Path) -> None:
    """Another arm's trained controllers as conditions of this one, each with its contrast."""
    for name in [name for name in config["conditions"] if name in LEARNED]:
        guest = f"{name}_from_{other}"
        learner = {"from_run": str(run)}
        config["conditions"] = [*config["conditions"], guest]
        config["variants"] = config["variants"] | {guest: {"controller": name, "learner": learner}}
        config["contrasts"] = config["contrasts"] | {f"{guest}_minus_own": [guest, name]}
