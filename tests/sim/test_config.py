"""The configuration: what `conf/` holds parses, what is wrong is named by its path, what identifies a study."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim.config import CognitiveWorldConfig, LanguageWorldConfig, StudyConfig, identity_hash, parse
from sim.errors import UserError
from sim.launch import CONF, composed
from sim.records.run_dir import read_config, write_config

GROUPS = ("task", "split", "world", "seats", "objective", "routing", "training", "conformal", "controller")
REQUIRED = {
    ("task", "file"): ["task.path=tasks.json"],
    ("task", "hiddenbench"): ["task.revision=abc"],
}
FREE_FORM = ("engine", "model", "members", "variants", "arms", "contrasts")
NOT_IDENTITY = ("output", "resume", "progress", "plan", "throughput", "logger")


@pytest.fixture(name="default", scope="module")
def _default() -> dict[str, Any]:
    return composed()


@pytest.mark.parametrize(
    ("group", "name"),
    [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))],
)
def test_every_file_of_every_group_parses(group: str, name: str) -> None:
    parsed = parse(composed(f"{group}={name}", *REQUIRED.get((group, name), [])))
    assert isinstance(parsed, StudyConfig)
    assert isinstance(parsed.world, CognitiveWorldConfig | LanguageWorldConfig)


def test_the_defaults_in_conf_are_the_defaults_of_the_types(default: dict[str, Any]) -> None:
    """METHOD's numbers stand in two places; they must not drift apart."""
    parsed = parse(default)
    assert parsed.objective == type(parsed.objective)()
    assert parsed.stop == type(parsed.stop)()
    assert isinstance(parsed.world, CognitiveWorldConfig)
    assert parsed.world.cognition == type(parsed.world.cognition)()
    weights = msgspec.structs.asdict(parsed.objective)
    assert weights == {
        "uncertainty": 0.2, "disagreement": 0.1, "redundancy": 0.15, "evidence_gain": 0.25,
        "premature_consensus": 0.25, "cost": 0.05,
    }  # fmt: skip
    assert (parsed.conformal.mode, parsed.conformal.alpha) == ("pilot", 0.1)
    assert (parsed.stop.quorum, parsed.stop.confidence, parsed.stop.coverage) == (1.0, 0.8, 0.6)


def paths(data: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every mapping in a configuration, by its path; free-form ones left out."""
    if isinstance(data, dict) and set(prefix).isdisjoint(FREE_FORM):
        yield prefix
        for key, value in data.items():
            yield from paths(value, (*prefix, key))


def at(data: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The mapping at a path."""
    for key in path:
        data = data[key]
    return data


def test_an_unknown_key_is_refused_at_every_level_by_its_path(default: dict[str, Any]) -> None:
    found = list(paths(default))
    assert len(found) > 8
    for path in found:
        data = copy.deepcopy(default)
        at(data, path)["surprise"] = 1
        with pytest.raises(UserError, match="unknown field `surprise`") as caught:
            parse(data)
        assert str(caught.value).startswith(f"config: {'.'.join(path)}")


def test_a_missing_key_is_named(default: dict[str, Any]) -> None:
    for key in ("task", "seed", "objective", "conditions", "conformal"):
        with pytest.raises(UserError, match=f"missing required field `{key}`"):
            parse({name: value for name, value in default.items() if name != key})


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("seed",), "0", "config: seed: Expected `int`, got `str`"),
        (
            ("world", "horizon"),
            2.5,
            "config: world.horizon: Expected `int | {each: ...} | null`, got `float` 2.5",
        ),
        (("conditions",), "rules", "config: conditions: Expected `array`, got `str`"),
        (("conditions",), [1], "config: conditions[0]: Expected `str`, got `int`"),
        (("objective", "cost"), None, "config: objective.cost: Expected `float`, got `null`"),
        (("world", "kind"), "dream", "config: world"),
        (("menu", "vote"), 1, "config: menu.vote: Expected `bool`, got `int`"),
        (("conformal", "mode"), "PILOT", "config: conformal.mode: Invalid enum value 'PILOT'"),
        (
            ("world", "cognition", "comply"),
            [0.5],
            "config: world.cognition.comply: Expected `array` of length 4",
        ),
        (("task", "source"), "web", "config: task.source: Invalid enum value 'web'"),
        (("exhaustive",), "yes", "config: exhaustive: Expected `bool`, got `str`"),
    ],
)
def test_a_value_of_another_type_is_named_by_path_and_types(
    path: tuple[str, ...], value: object, words: str, default: dict[str, Any]
) -> None:
    data = copy.deepcopy(default)
    at(data, path[:-1])[path[-1]] = value
    with pytest.raises(UserError) as caught:
        parse(data)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_a_variant_is_what_differs_and_nothing_else(default: dict[str, Any]) -> None:
    data = {**default, "variants": {"mine": {"controller": "rules", "routing": "random"}}}
    parsed = parse({**data, "conditions": ["mine", "rules"], "certified": []})
    assert parsed.variant("mine").routing == "random"
    assert parsed.variant("rules").routing is None
    assert parsed.learned == ()
    with pytest.raises(UserError, match=r"config: variants\[\.\.\.\]: Object contains unknown field `mood`"):
        parse({**data, "variants": {"mine": {"controller": "rules", "mood": "good"}}})


def test_a_study_is_identified_by_everything_but_where_and_how_it_is_written(default: dict[str, Any]) -> None:
    known = identity_hash(default)
    assert identity_hash(dict(reversed(default.items()))) == known
    changed = 0
    for path in paths(default):
        for key in at(default, path):
            data = copy.deepcopy(default)
            at(data, path)[key] = "another value"
            assert (identity_hash(data) == known) == ((*path, key)[0] in NOT_IDENTITY), (*path, key)
            changed += 1
    assert changed > 60


def test_parsing_what_was_written_gives_the_same_study(default: dict[str, Any], tmp_path: Path) -> None:
    write_config(tmp_path, default)
    again = read_config(tmp_path)
    assert parse(again) == parse(default)
    assert identity_hash(again) == identity_hash(default)


def test_a_configuration_cannot_be_changed(default: dict[str, Any]) -> None:
    parsed = parse(default)
    with pytest.raises(AttributeError):
        parsed.seed = 1  # type: ignore[misc]
    assert msgspec.structs.replace(parsed, seed=1) != parsed
