"""Asking for a typed reply: as JSON bound by its schema where the engine can, else field by field as a form.

A reply is read or it is not: JSON may stand in prose, but prose decides nothing. What cannot be read after one
repetition raises `Unreadable`, and the caller has a fixed rule for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import UnionType
from typing import Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from sim.captain.desk import Call, Desk
from sim.captain.prompts import render
from sim.captain.replies import Reply
from sim.engines.protocol import BadReply, ChooseRequest, Turn
from sim.randomness import uniform

T = TypeVar("T", bound=Reply)
Choices: TypeAlias = Mapping[str, Sequence[str | None]]
"""Field name -> the values it may take."""

_THINKING = re.compile(r"(?s)<think>.*?(</think>|$)")
_LABELS = "ABCDEFGHIJ"
_LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
_MOST_LINES = 4


class Unreadable(Exception):
    """Neither the reply nor its repetition was of the type asked for; `text` is the last one."""

    def __init__(self, text: str) -> None:
        super().__init__(f"unreadable reply: {text[:80]!r}")
        self.text = text


async def ask(
    desk: Desk, call: Call, turns: tuple[Turn, ...], kinds: Sequence[type[T]], choices: Choices | None = None
) -> T:
    """A reply of one of `kinds`. Raises Unreadable, or EngineError (BudgetSpent among them)."""
    if desk.engine(call.component).capabilities.structured:
        return await _as_json(desk, call, turns, kinds, choices or {})
    return await _as_form(desk, call, turns, kinds, choices or {})


async def _as_json(
    desk: Desk, call: Call, turns: tuple[Turn, ...], kinds: Sequence[type[T]], choices: Choices
) -> T:
    schema = schema_of(kinds, choices)
    asked, text = _extended(turns, render("json", kinds=_described(kinds, choices))), ""
    for place in (call, replace(call, place=f"{call.place}/again")):
        text = (await desk.write(place, asked, desk.settings.reply_tokens, schema)).text
        try:
            return read(text, kinds)
        except ValueError as error:
            asked = _extended(asked, render("again", error=error))
    raise Unreadable(text)


def read(text: str, kinds: Sequence[type[T]]) -> T:
    """The first JSON object in a text that is a reply of one of `kinds`; ValueError saying what is wrong."""
    plain = _THINKING.sub("", text)
    wanted = kinds[0] if len(kinds) == 1 else Union[tuple(kinds)]  # noqa: UP007 - made at run time
    trouble = "it holds no JSON object"
    for start in (match.start() for match in re.finditer(r"\{", plain)):
        try:
            found, _ = json.JSONDecoder(strict=False).raw_decode(plain, start)
            content = json.dumps(found, ensure_ascii=False).encode(errors="replace")
            return cast("T", msgspec.json.decode(content, type=wanted, strict=True))
        except (json.JSONDecodeError, RecursionError):
            continue
        except msgspec.DecodeError as error:
            trouble = str(error)
    raise ValueError(trouble)


def schema_of(kinds: Sequence[type[T]], choices: Choices) -> dict[str, object]:
    """The JSON schema of a reply, the values of some fields narrowed to `choices`."""
    wanted = kinds[0] if len(kinds) == 1 else Union[tuple(kinds)]  # noqa: UP007 - made at run time
    schema: dict[str, Any] = msgspec.json.schema(wanted)
    schema.pop("discriminator", None)
    for part in schema["$defs"].values():
        for name in part["properties"].keys() & choices.keys():
            part["properties"][name] = {"enum": list(choices[name])}
    return schema


async def _as_form(
    desk: Desk, call: Call, turns: tuple[Turn, ...], kinds: Sequence[type[T]], choices: Choices
) -> T:
    kind = kinds[0]
    if len(kinds) > 1:
        names = {_tag(one): one for one in kinds}
        summaries = [f"{tag}: {(one.__doc__ or '').splitlines()[0]}" for tag, one in names.items()]
        kind = list(names.values())[await pick(desk, call, "decision", turns, summaries)]
    return msgspec.convert(await _filled(desk, call, turns, kind, choices), kind, strict=True)


async def _filled(
    desk: Desk,
    call: Call,
    turns: tuple[Turn, ...],
    kind: type[Reply],
    choices: Choices,
    needed_only: bool = False,
) -> dict[str, Any]:
    """The fields of a reply, asked for one after the other; each sees those before it."""
    values: dict[str, Any] = {"decision": tag} if (tag := _tag(kind)) else {}
    hints = get_type_hints(kind, include_extras=True)
    optional = len(kind.__struct_defaults__) if needed_only else 0
    for name in kind.__struct_fields__[: len(kind.__struct_fields__) - optional]:
        asked = _extended(turns, render("filled", values=values)) if values else turns
        values[name] = await _field(
            desk, replace(call, place=f"{call.place}/{name}"), asked, name, hints[name], choices
        )
    return values


async def _field(
    desk: Desk, call: Call, turns: tuple[Turn, ...], name: str, hint: Any, choices: Choices
) -> Any:
    kind, about = _unwrapped(hint)
    if name in choices:
        options = choices[name]
        return options[await pick(desk, call, about, turns, [str(option) for option in options])]
    if kind is bool:
        return await pick(desk, call, about, turns, ["yes", "no"]) == 0
    if kind is float:
        return _LEVELS[await pick(desk, call, about, turns, [f"{level:.0%}" for level in _LEVELS])]
    if isinstance(kind, type) and issubclass(kind, Reply):
        return await _filled(desk, call, turns, kind, choices, needed_only=True)
    several = get_origin(kind) is tuple
    asked = _extended(turns, render("field", about=about, several=several))
    text = (await desk.write(call, asked, desk.settings.field_tokens)).text
    lines = [line.strip(" -*•\t") for line in text.splitlines()]
    return [line for line in lines if line][:_MOST_LINES] if several else text


async def pick(desk: Desk, call: Call, about: str, turns: tuple[Turn, ...], options: Sequence[str]) -> int:
    """The likeliest of several options, by the probability of its letter; shown in an order drawn by key, so that
    no place is favoured. Raises Unreadable where the engine gives no probabilities."""
    dice = uniform(np.array([desk.key(f"{call.place}/order")], np.uint64), len(options))[0]
    order = [int(i) for i in np.argsort(dice)]
    labels = tuple(_LABELS[: len(options)])
    shown = [(label, options[i]) for label, i in zip(labels, order, strict=True)]
    question = render("pick", about=about, options=shown)
    request = ChooseRequest(_extended(turns, question), labels, f"{desk.identity.problem}/{call.component}")
    try:
        reply = await desk.choose(call, request)
    except BadReply as error:
        raise Unreadable(str(error)) from error
    return order[max(range(len(labels)), key=lambda i: reply.probabilities[i])]


def _unwrapped(hint: Any) -> tuple[Any, str]:
    """A field's type without its annotation and its null, and what it is about."""
    about = next(
        (meta.description or "" for meta in getattr(hint, "__metadata__", ()) if meta.description), ""
    )
    kind = get_args(hint)[0] if about else hint
    if get_origin(kind) in (Union, UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    return kind, about


def _described(kinds: Sequence[type[Reply]], choices: Choices) -> list[tuple[str, list[tuple[str, str]]]]:
    """Per kind: its tag, and its fields with what they are about, as a prompt shows them."""
    described = []
    for kind in kinds:
        fields = []
        for name, hint in get_type_hints(kind, include_extras=True).items():
            inner, about = _unwrapped(hint)
            if isinstance(inner, type) and issubclass(inner, Reply):
                inside = get_type_hints(inner, include_extras=True)
                about = "an object with " + "; ".join(
                    f'"{key}": {_unwrapped(h)[1]}' for key, h in inside.items()
                )
            elif name in choices:
                about = f"{about}: one of {json.dumps(list(choices[name]))}"
            elif get_origin(inner) is tuple:
                about = f"a list: {about}"
            fields.append((name, about))
        described.append((_tag(kind), fields))
    return described


def _tag(kind: type[Reply]) -> str:
    return str(kind.__struct_config__.tag or "")


def _extended(turns: tuple[Turn, ...], more: str) -> tuple[Turn, ...]:
    """More text in the last turn: a turn of its own would break alternation."""
    return (*turns[:-1], Turn(turns[-1].role, f"{turns[-1].content}\n\n{more}"))
