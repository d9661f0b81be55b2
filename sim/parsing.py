"""Plain data as typed objects, with messages a user can act on: the path, the value and what may stand there.

What the types themselves refuse keeps its own words. Nothing here knows what any configuration means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
import msgspec.inspect

from sim.errors import UserError, shown

T = TypeVar("T")
_AT = re.compile(r"(?s)(.*) - at `(?:key in )?\$\.?(.*)`")
_STEP = re.compile(r"\[\.\.\.\]|\[(\d+)\]|([^.\[\]]+)")
_ANY = "[...]"
"""What msgspec writes for a key of a mapping or an entry of a set."""
SEEDS = range(2**63)


def typed(data: object, kind: type[T], where: str = "", strict: bool = True) -> T:
    """`data` as a `kind`. UserError with `where` it stands, the path of the first wrong key or value, what it is and
    what it may be."""
    try:
        return msgspec.convert(data, kind, strict=strict)
    except msgspec.ValidationError as error:
        text = _readable(str(error), data, kind)
        raise UserError(f"{where}: {text}" if where else text) from error


def check_seed(name: str, seed: int) -> None:
    """Raise UserError where a number cannot seed our draws."""
    if seed not in SEEDS:
        raise UserError(f"{name} is {seed}; a seed is a whole number from 0, below 2^63")


def _readable(message: str, data: object, kind: type) -> str:
    """msgspec's message with the path first: `conformal.mode: Invalid enum value 'x'; choose from ...`."""
    found = _AT.fullmatch(message)
    if found is None:
        return message
    text, path = found[1], found[2]
    steps = [step[0] for step in _STEP.finditer(path)]
    if text.startswith("Invalid "):
        text += _choices(kind, steps)
    elif text.startswith("Expected "):
        text = text.replace("object", _form(kind, steps)) + _value(data, steps)
    return f"{path}: {text}" if path else text


def _choices(kind: type, steps: list[str]) -> str:
    """What may stand at a path, where it is one of a few."""
    values: list[Any] = []
    for place in _types_at(kind, steps):
        values += place.values if isinstance(place, msgspec.inspect.LiteralType) else ()
    for parent in _types_at(kind, steps[:-1]) if steps else ():
        if isinstance(parent, msgspec.inspect.StructType) and parent.tag_field == steps[-1]:
            values.append(parent.tag)
    return f"; choose from {', '.join(dict.fromkeys(map(str, values)))}" if values else ""


def _form(kind: type, steps: list[str]) -> str:
    """The keys of the object that may stand at a path: `{each: ...}`."""
    for place in _types_at(kind, steps):
        if isinstance(place, msgspec.inspect.StructType):
            return "{" + ", ".join(f"{field.encode_name}: ..." for field in place.fields) + "}"
    return "object"


def _value(data: Any, steps: list[str]) -> str:
    """The value at a path, where the path says which it is and it is short enough to be read."""
    for step in steps:
        if isinstance(data, dict) and step in data:
            data = data[step]
        elif isinstance(data, list | tuple) and re.fullmatch(r"\[\d+\]", step):
            data = data[int(step[1:-1])]
        else:
            return ""
    return "" if isinstance(data, dict | list | tuple) else f" {shown(data)}"


def _types_at(kind: type, steps: list[str]) -> list[Any]:
    """The types that may stand at a path, unions spread out."""
    places = list(_spread(msgspec.inspect.type_info(kind)))
    for step in steps:
        places = [inner for place in places for found in _below(place, step) for inner in _spread(found)]
    return places


def _spread(place: Any) -> Iterator[Any]:
    if isinstance(place, msgspec.inspect.UnionType):
        for part in place.types:
            yield from _spread(part)
    else:
        yield place


def _below(place: Any, step: str) -> Iterator[Any]:
    if isinstance(place, msgspec.inspect.StructType):
        yield from (field.type for field in place.fields if field.encode_name == step)
    elif isinstance(place, msgspec.inspect.DictType):
        yield place.value_type
    elif isinstance(place, msgspec.inspect.TupleType):
        if step != _ANY and int(step[1:-1]) < len(place.item_types):
            yield place.item_types[int(step[1:-1])]
    elif hasattr(place, "item_type"):
        yield place.item_type
