"""The wording of group-travel tasks: points into English, and English back into points.

Phrases are data (`travel_*.json`); a sentence that counts names one place and carries sign and strength. The
reader knows the words that mark a strength and none of the sentences: it shows that the text alone tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import islice
from typing import TypeAlias

import msgspec

from sim.errors import UserError, shown
from sim.tasks.travel_points import Level

STRENGTHS: dict[str, int] = {
    "impossible": -4,
    "serious": -2,
    "inconvenient": -1,
    "small_advantage": 1,
    "great_advantage": 2,
}
_STRENGTH_OF = {points: strength for strength, points in STRENGTHS.items()}
_PHRASES_BEFORE_ECHO = 2

Phrases: TypeAlias = dict[str, tuple[str, ...]]


class Theme(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one clue can be about: causes for a verdict, and indirect sentences, by strength.

    Private themes also have openings, and name the shared themes with which they could contradict each other.
    """

    causes: Phrases
    indirect: Phrases
    openings: tuple[str, ...] = ()
    clashes: tuple[str, ...] = ()


class Wording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all themes have in common: people, cities, descriptions, verdicts, asides and cue words."""

    she: tuple[str, ...]
    he: tuple[str, ...]
    cities: tuple[str, ...]
    occasions: tuple[str, ...]
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    situations: tuple[str, ...]
    rules: tuple[str, ...]
    private_verdicts: Phrases
    shared_verdicts: Phrases
    echoes: dict[str, str]
    private_asides: tuple[str, ...]
    shared_asides: tuple[str, ...]
    animals: tuple[str, ...]
    cues: Phrases


class TaskText(msgspec.Struct, frozen=True):
    """All text of one generated task."""

    name: str
    description: str
    shared: tuple[str, ...]
    private: tuple[str, ...]
    options: tuple[str, ...]


class Draws:
    """One task's uniform numbers, used up in order."""

    __slots__ = ("_numbers",)

    def __init__(self, numbers: Sequence[float]) -> None:
        self._numbers = iter(numbers)

    def below(self, high: int) -> int:
        """A whole number from 0 to high - 1."""
        return int(next(self._numbers) * high)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return next(self._numbers) < probability

    def pick(self, items: Sequence[str]) -> str:
        """One of the items."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[str], n: int) -> list[str]:
        """n different items in random order."""
        pool = list(items)
        for place in range(n):
            other = place + self.below(len(pool) - place)
            pool[place], pool[other] = pool[other], pool[place]
        return pool[:n]


@cache
def wording() -> Wording:
    """The common phrases, read once."""
    return msgspec.json.decode(_data("travel_common.json"), type=Wording)


@cache
def private_themes() -> dict[str, Theme]:
    """Themes of private clues by name, read once."""
    return msgspec.json.decode(_data("travel_private.json"), type=dict[str, Theme])


@cache
def shared_themes() -> dict[str, Theme]:
    """Themes of shared clues by name, read once."""
    return msgspec.json.decode(_data("travel_shared.json"), type=dict[str, Theme])


def draws_needed(n_agents: int, n_options: int, n_shared: int) -> int:
    """An upper bound on the uniform numbers one task's text uses."""
    return 16 + 4 * n_agents + n_options + n_shared + (n_agents + n_shared) * (12 + 4 * n_options)


def write_task(points: Sequence[Sequence[int]], n_shared: int, level: Level, draws: Draws) -> TaskText:
    """The text of one task from its points, clue by option, shared clues first."""
    words, n_agents = wording(), len(points) - n_shared
    people = draws.sample(words.she + words.he, n_agents)
    options = tuple(draws.sample(words.cities, len(points[0])))
    together = _listed(people)
    opening = draws.pick(words.descriptions).format(names=together, occasion=draws.pick(words.occasions))
    themes = draws.sample(list(shared_themes()), n_shared)
    return TaskText(
        name=draws.pick(words.names).format(names=together),
        description=f"{opening} {draws.pick(words.situations)} {draws.pick(words.rules)}",
        shared=_shared_clues(themes, points[:n_shared], options, level, draws),
        private=_private_clues(themes, people, points[n_shared:], options, level, draws),
        options=options,
    )


def read_points(text: str, options: Sequence[str]) -> tuple[int, ...]:
    """Points of each option in a text, by the words that mark a strength in the sentences naming the option.

    Sentences that name no option, or mark no strength, count nothing. Raises UserError for a sentence that
    names several options or marks several strengths.
    """
    place = {option: i for i, option in enumerate(options)}
    masked = _option_pattern(tuple(options)).sub(lambda found: f"\0{place[found[0]]}\0", text)
    points = [0] * len(place)
    for sentence in re.split(r"(?<=[.!?])\s+", masked):
        found = set(re.findall(r"\0(\d+)\0", sentence))
        strengths = [strength for strength, cue in _cue_patterns().items() if cue.search(sentence)]
        if not found or not strengths:
            continue
        if len(found) > 1 or len(strengths) > 1:
            names = [options[int(number)] for number in sorted(found)]
            raise UserError(
                f"text {shown(text)}: one sentence names {names} with strengths {strengths}; "
                "give one option and one strength in a sentence"
            )
        points[int(found.pop())] += STRENGTHS[strengths[0]]
    return tuple(points)


class _Voice(msgspec.Struct, frozen=True):
    """What all shared clues of a task, or all private ones, have in common; asides are used up in order."""

    verdicts: Phrases
    asides: Iterator[str]
    options: tuple[str, ...]
    level: Level


def _shared_clues(
    themes: Sequence[str],
    points: Sequence[Sequence[int]],
    options: tuple[str, ...],
    level: Level,
    draws: Draws,
) -> tuple[str, ...]:
    words = wording()
    asides = draws.sample(words.shared_asides, level.asides[1] * len(points))
    voice = _Voice(words.shared_verdicts, iter(asides), options, level)
    return tuple(
        _clue(shared_themes()[theme], voice, row, {}, draws)
        for theme, row in zip(themes, points, strict=True)
    )


def _private_clues(
    shared: Sequence[str],
    people: Sequence[str],
    points: Sequence[Sequence[int]],
    options: tuple[str, ...],
    level: Level,
    draws: Draws,
) -> tuple[str, ...]:
    """One clue per person, on different themes that contradict none of the shared ones."""
    words = wording()
    free = [name for name, theme in private_themes().items() if not set(theme.clashes) & set(shared)]
    themes = draws.sample(free, len(people))
    asides = draws.sample(words.private_asides, level.asides[1] * len(points))
    voice = _Voice(words.private_verdicts, iter(asides), options, level)
    return tuple(
        _clue(private_themes()[theme], voice, row, _person(name, draws), draws)
        for theme, name, row in zip(themes, people, points, strict=True)
    )


def _clue(theme: Theme, voice: _Voice, row: Sequence[int], slots: Mapping[str, str], draws: Draws) -> str:
    """One clue: opening where the theme has one, a sentence per option with points, irrelevant facts."""
    sentences = [draws.pick(theme.openings).format_map(slots)] if theme.openings else []
    strengths = [_STRENGTH_OF.get(points, "") for points in row]
    for strength in draws.sample(list(STRENGTHS), len(STRENGTHS)):
        places = [option for option, own in zip(voice.options, strengths, strict=True) if own == strength]
        if places:
            sentences += _sentences(theme, voice, strength, places, slots, draws)
    fewest, most = voice.level.asides
    for aside in islice(voice.asides, fewest + draws.below(most - fewest + 1)):
        sentences.append(aside.format_map({**slots, "option": draws.pick(voice.options)}))
    return " ".join(sentences)


def _sentences(
    theme: Theme,
    voice: _Voice,
    strength: str,
    places: Sequence[str],
    slots: Mapping[str, str],
    draws: Draws,
) -> list[str]:
    """One sentence per place, all of one strength; after two phrases the others only echo them."""
    verdicts, causes, indirect = voice.verdicts[strength], theme.causes[strength], theme.indirect[strength]
    verdict, cause = draws.below(len(verdicts)), draws.below(len(causes))
    circumstances = draws.chance(voice.level.indirect)
    sentences = []
    for turn, place in enumerate(draws.sample(places, len(places))):
        if turn >= _PHRASES_BEFORE_ECHO:
            template = wording().echoes[strength]
        elif circumstances:
            template = _turned(indirect, cause + turn)
        else:
            template = _turned(verdicts, verdict + turn).replace("{cause}", _turned(causes, cause + turn))
        sentences.append(template.format_map({**slots, "option": place}))
    return sentences


def _person(name: str, draws: Draws) -> dict[str, str]:
    """What the slots of a private clue stand for."""
    words = wording()
    subject, other, possessive = ("she", "her", "her") if name in words.she else ("he", "him", "his")
    child = draws.pick(("daughter", "son"))
    return {
        "name": name,
        "sub": subject,
        "obj": other,
        "pos": possessive,
        "ref": f"{other}self",
        "animal": draws.pick(words.animals),
        "child": child,
        "childobj": "her" if child == "daughter" else "him",
    }


def _turned(phrases: Sequence[str], turn: int) -> str:
    return phrases[turn % len(phrases)]


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _data(name: str) -> bytes:
    return files("sim.tasks").joinpath(name).read_bytes()


@lru_cache(maxsize=1024)
def _option_pattern(options: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(options, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)")


@cache
def _cue_patterns() -> dict[str, re.Pattern[str]]:
    return {
        strength: re.compile(rf"\b(?:{'|'.join(map(re.escape, cues))})\b", re.IGNORECASE)
        for strength, cues in wording().cues.items()
    }
