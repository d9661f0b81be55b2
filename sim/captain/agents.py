"""The agent library: who can be asked. A JSON file, checked against its schema; generated agents are stored in
it with where they come from. It knows nothing of teams or of problems.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sim.captain.replies import NewAgent
from sim.errors import UserError, shown
from sim.records.run_dir import write_text

BUILT_IN = Path(__file__).parent / "library" / "agents.json"
_NAME_LENGTH = 40


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where an agent comes from: `project`, or `generated` for a role by a model in an episode."""

    source: str
    role: str = ""
    model: str = ""
    condition: str = ""
    problem: str = ""
    seed: int = 0


class AgentCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One agent. `tags` name the roles it fits; `tools` are ids of the tool library."""

    id: str
    name: str
    profile: str
    solving: str
    interaction: str
    tools: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    provenance: Provenance = Provenance("project")

    @property
    def described(self) -> str:
        """What retrieval compares a role with."""
        return f"{self.name}. {self.profile}"


def display_name(text: str) -> str:
    """A name as it stands in a conversation: letters, digits and '_', starting with a letter."""
    words = re.findall(r"[A-Za-z0-9]+", text)
    while words and not words[0][0].isalpha():
        words = words[1:]
    return "_".join(words)[:_NAME_LENGTH].strip("_") or "Expert"


def unique_names(names: Iterable[str]) -> list[str]:
    """Display names of a team, the second of a kind numbered: no two are alike."""
    given: list[str] = []
    for name in map(display_name, names):
        number, free = 2, name
        while free.casefold() in {other.casefold() for other in given}:
            free, number = f"{name}_{number}", number + 1
        given.append(free)
    return given


def plain(text: str) -> str:
    """A name or id as it is compared: case, spaces, '_' and '-' do not matter."""
    return re.sub(r"[\s_-]+", " ", text).strip().casefold()


@dataclass
class AgentLibrary:
    """Agents by id, in the order of the file. `path` is where generated ones are stored, if anywhere."""

    agents: tuple[AgentCard, ...]
    path: Path | None = None
    _generated: list[AgentCard] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, answer: str, among: Sequence[AgentCard]) -> AgentCard | None:
        """The agent that a selector named, by id or by name, spaces standing for underscores."""
        wanted = plain(answer)
        return next((card for card in among if wanted in (plain(card.id), plain(card.name))), None)

    def store(self, card: AgentCard) -> None:
        """Keep a generated agent, on disk too. One that is stored already is not stored twice."""
        with self._lock:
            known = {other.id for other in (*self.agents, *self._generated)}
            if card.id in known:
                return
            self._generated.append(card)
            if self.path is not None:
                write_library(self.path, (*self.agents, *self._generated))


def generated(reply: NewAgent, tools: Sequence[str], provenance: Provenance) -> AgentCard:
    """A new agent's card. Its id follows from its content: the same agent has the same id."""
    name = display_name(reply.name)
    content = msgspec.json.encode([reply, provenance.role])
    digest = hashlib.blake2b(content, digest_size=4).hexdigest()
    return AgentCard(
        id=f"{name.lower()}-{digest}",
        name=name,
        profile=reply.profile,
        solving=reply.solving,
        interaction=reply.interaction,
        tools=tuple(dict.fromkeys(tools)),
        provenance=provenance,
    )


def read_library(path: Path, store: Path | None = None) -> AgentLibrary:
    """The library of a file (`[]` is one without agents); generated agents are stored in `store`.

    Raises UserError naming file, agent and field where the file is missing, empty or not of the schema.
    """
    source = store if store is not None and store.is_file() else path
    if not source.is_file():
        raise UserError(f"library: {source} is missing; give a JSON list of agents, or [] for none")
    content = source.read_bytes()
    if not content.strip():
        raise UserError(f"library: {source} is empty; a library without agents is written []")
    try:
        agents = msgspec.json.decode(content, type=tuple[AgentCard, ...])
    except msgspec.DecodeError as error:
        raise UserError(f"library: {source}: {error}") from error
    _check(source, agents)
    return AgentLibrary(agents, store)


def _check(path: Path, agents: Sequence[AgentCard]) -> None:
    seen: set[str] = set()
    for place, card in enumerate(agents):
        for name in ("id", "name", "profile", "solving"):
            if not getattr(card, name).strip():
                raise UserError(f"library: {path}: agent {place}: {name} is empty; give a text")
        if card.id in seen:
            raise UserError(
                f"library: {path}: agent {place}: id {shown(card.id)} stands there twice; ids are unique"
            )
        seen.add(card.id)


def write_library(path: Path, agents: Sequence[AgentCard]) -> None:
    """Write a library whole or not at all."""
    write_text(path, msgspec.json.format(msgspec.json.encode(agents), indent=1).decode() + "\n")
