"""Thresholds with everything that must be known to use them rightly: mode, fold units, policy, guarantee.

A file is JSON without surprises (+inf is the string "inf") and is refused under another policy or on tasks it
was calibrated on (METHOD 10). Nothing here knows how thresholds are computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from conformal.ranks import exact_level
from conformal.scores import BoolArray, FloatArray, IntArray

_ARRAYS = {
    "values": np.float64,
    "acceptance": np.float64,
    "n": np.int64,
    "k": np.int64,
    "certified": np.bool_,
}
_KINDS: Mapping[str, type] = {
    "mode": str,
    "alpha": float,
    "values": list,
    "acceptance": list,
    "n": list,
    "k": list,
    "certified": list,
    "guarantee": str,
    "assumptions": str,
    "folds": dict,
    "unit": str,
    "policy_hash": str,
    "policy": dict,
    "deployment_hash": str,
    "seal": str,
}
_SEALS = ("deployment_hash", "seal")
_POLICY_INCLUDES_ACCEPTANCE = frozenset({"pilot", "sequential", "lockstep", "risk"})


class PolicyMismatch(ValueError):
    """Thresholds were asked to serve a policy or tasks for which they promise nothing."""


def policy_hash(components: Mapping[str, object]) -> str:
    """Hash of a policy described by named parts (controller weights, objective, router, stop rule,
    prompts...).
    """
    text = json.dumps(components, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, eq=False)
class Thresholds:
    """One threshold per round and what it is worth.

    values (T,): the calibrated threshold of round t at index t-1, +inf where n is too small.
    acceptance (T,): what the gate accepts at; differs from values in mode `pilot` only.
    n, k (T,): scores and rank behind each threshold. certified (T,): whether the reported bound is finite.
    guarantee, assumptions: in words. folds: units by fold name. policy_hash: the policy without its gate.
    policy: optional readable parts of that hash, so that a refusal can name the part that differs.
    """

    mode: str
    alpha: float
    values: FloatArray
    acceptance: FloatArray
    n: IntArray
    k: IntArray
    certified: BoolArray
    guarantee: str
    assumptions: str
    folds: Mapping[str, tuple[str, ...]]
    unit: str = "task family"
    policy_hash: str = ""
    policy: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        exact_level(self.alpha)
        for name, dtype in _ARRAYS.items():
            object.__setattr__(self, name, _frozen(getattr(self, name), dtype))
        folds = {name: tuple(units) for name, units in self.folds.items()}
        object.__setattr__(self, "folds", MappingProxyType(folds))
        object.__setattr__(self, "policy", MappingProxyType(dict(self.policy)))
        for name in _ARRAYS:
            if getattr(self, name).shape != self.values.shape or self.values.ndim != 1:
                raise ValueError(
                    f"thresholds: {name} has shape {getattr(self, name).shape}; expected one entry per "
                    f"round, as values of shape {self.values.shape}"
                )
        for name in ("values", "acceptance"):
            if np.isnan(getattr(self, name)).any() or (getattr(self, name) < 0).any():
                raise ValueError(f"thresholds: {name} holds NaN or a negative number; expected >= 0 or +inf")

    @property
    def rounds(self) -> int:
        """T, the number of rounds with a threshold."""
        return len(self.values)

    @property
    def reported(self) -> FloatArray:
        """The bound stated for a proposal (T,): max(acceptance, values) in mode `pilot`, values otherwise."""
        return np.maximum(self.acceptance, self.values) if self.mode == "pilot" else self.values

    @property
    def deployment_hash(self) -> str:
        """Hash of the policy, with its gate where the guarantee depends on the gate (METHOD 3)."""
        gate = spell(self.acceptance) if self.mode in _POLICY_INCLUDES_ACCEPTANCE else None
        return policy_hash({"policy": self.policy_hash, "acceptance": gate})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thresholds) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready content, +inf spelled "inf", with a hash of it all: an edited file is refused."""
        content: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        content.update({name: spell(content[name]) for name in _ARRAYS})
        content["folds"] = {name: list(units) for name, units in self.folds.items()}
        content["policy"] = dict(self.policy)
        content["deployment_hash"] = self.deployment_hash
        return content | {"seal": policy_hash(content)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "thresholds") -> Thresholds:
        """Inverse of `to_dict`; ValueError naming the source and field if missing, unknown or altered."""
        check_fields(content, _KINDS, source)
        body = {name: content[name] for name in _KINDS if name not in _SEALS}
        body.update({name: parse_numbers(body[name], source, name) for name in ("values", "acceptance")})
        body.update({name: parse_counts(body[name], source, name) for name in ("n", "k")})
        try:
            thresholds = cls(**body)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from error
        if thresholds.deployment_hash != content["deployment_hash"]:
            raise PolicyMismatch(
                f"{source}: acceptance or policy_hash was altered after calibration; calibrate again"
            )
        if thresholds.to_dict()["seal"] != content["seal"]:
            raise PolicyMismatch(
                f"{source}: is not as calibration wrote it; restore the file, or calibrate again"
            )
        return thresholds

    def save(self, path: Path | str) -> None:
        """Write JSON, atomically."""
        write_json(path, self.to_dict())

    @classmethod
    def read(cls, path: Path | str) -> Thresholds:
        """Read for inspection only; `load` is for use on test tasks."""
        return cls.from_dict(read_json(path), str(path))

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        policy_hash: str,
        test_units: Iterable[str],
        policy: Mapping[str, str] | None = None,
    ) -> Thresholds:
        """Read for use; PolicyMismatch if calibrated under another policy or on one of the test units.

        `policy`, the readable parts behind `policy_hash`, lets the refusal name the part that differs.
        """
        thresholds = cls.read(path)
        check_use(thresholds, str(path), policy_hash, test_units, policy or {})
        return thresholds


class Calibrated(Protocol):
    """What anything calibrated must carry to be refused where it does not belong."""

    @property
    def policy_hash(self) -> str:
        """Hash of the policy it was calibrated under."""
        ...

    @property
    def policy(self) -> Mapping[str, str]:
        """Readable parts of that hash, possibly none."""
        ...

    @property
    def folds(self) -> Mapping[str, tuple[str, ...]]:
        """Units by fold name."""
        ...

    @property
    def unit(self) -> str:
        """What a unit is."""
        ...


def check_use(
    thresholds: Calibrated,
    source: str,
    policy_hash: str,
    test_units: Iterable[str],
    policy: Mapping[str, str],
) -> None:
    """Raise PolicyMismatch unless the thresholds were calibrated under this policy and off these units."""
    if thresholds.policy_hash != policy_hash:
        parts = sorted(set(policy) & set(thresholds.policy))
        differ = [
            f"{p} is {policy[p]}, was {thresholds.policy[p]}"
            for p in parts
            if policy[p] != thresholds.policy[p]
        ]
        detail = f" ({'; '.join(differ)})" if differ else ""
        raise PolicyMismatch(
            f"{source}: calibrated under policy {thresholds.policy_hash!r}, asked to serve "
            f"{policy_hash!r}{detail}; calibrate under the policy to be deployed"
        )
    test = set(test_units)
    for fold, units in thresholds.folds.items():
        shared = [unit for unit in units if unit in test]
        if shared:
            raise PolicyMismatch(
                f"{source}: {len(shared)} test units were in fold {fold!r}, {shared[0]!r} among them; "
                f"expected test units ({thresholds.unit}) disjoint from every fold"
            )


def write_json(path: Path | str, content: Mapping[str, Any]) -> None:
    """Write JSON beside its destination, then move it there."""
    target = Path(path)
    draft = target.with_name(target.name + ".partial")
    draft.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    draft.replace(target)


def read_json(path: Path | str) -> dict[str, Any]:
    """A JSON object; ValueError naming the file otherwise."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error}); expected a file written by save()") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds a {type(content).__name__}; expected an object written by save()")
    return content


def _frozen(array: npt.ArrayLike, dtype: type[np.generic]) -> npt.NDArray[Any]:
    copy = np.array(array, dtype=dtype)
    copy.flags.writeable = False
    return copy


def check_fields(content: Mapping[str, Any], kinds: Mapping[str, type], source: str) -> None:
    """Raise ValueError naming the source and the first field that is missing, unknown or of another kind."""
    for name in sorted(set(kinds) ^ set(content)):
        raise ValueError(f"{source}: field {name!r} is {'unknown' if name in content else 'missing'}")
    for name, kind in kinds.items():
        if not isinstance(content[name], kind):
            raise ValueError(f"{source}: field {name!r} is {content[name]!r}; expected a {kind.__name__}")


def spell(array: npt.NDArray[Any]) -> list[Any]:
    """An array as JSON items; +inf is spelled "inf"."""
    return ["inf" if value == np.inf else value for value in array.tolist()]


def parse_numbers(items: list[Any], source: str, name: str) -> list[float]:
    """Inverse of `spell`; ValueError naming source, field and item."""
    for item in items:
        if item != "inf" and (isinstance(item, bool) or not isinstance(item, int | float)):
            raise ValueError(f'{source}: {name} holds {item!r}; expected numbers or "inf"')
    return [float(item) for item in items]


def parse_counts(items: list[Any], source: str, name: str) -> list[int]:
    """Whole numbers of a JSON list; ValueError naming source, field and item."""
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int):
            raise ValueError(f"{source}: {name} holds {item!r}; expected whole numbers")
    return [int(item) for item in items]
