"""Which message brought which private clue into the open, for the viewer only.

With words, a clue has surfaced once a message holds at least half of what is distinctive in it (by inverse
frequency, METHOD 1); without, a new piece of evidence is taken to be the speaker's own. Nothing here enters a
state, a feature or a table.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.discussion.public import NOVEL
from sim.discussion.text import content_words, vocabulary
from sim.records.rows import BranchRow
from sim.tasks.task import HiddenProfileTask

SURFACED_FROM = 0.5


def mention_finder(task: HiddenProfileTask) -> Callable[[BranchRow], list[int]]:
    """A function from a branch to the agents whose private clue its message states, in order."""
    known = vocabulary((task.description, *task.shared_information, *task.possible_answers))
    distinctive = [
        {word: idf for word, idf in content_words(clue).items() if word not in known}
        for clue in task.hidden_information
    ]

    def find(branch: BranchRow) -> list[int]:
        if not branch.text:
            return [branch.speaker] if branch.speaker >= 0 and branch.novelty > NOVEL else []
        said = content_words(branch.text)
        return [agent for agent, clue in enumerate(distinctive) if stated_share(clue, said) >= SURFACED_FROM]

    return find


def stated_share(clue: dict[str, float], said: dict[str, float]) -> float:
    """Share of a clue's distinctive idf mass found among the words said; 0 where nothing is distinctive."""
    mass = sum(clue.values())
    return sum(idf for word, idf in clue.items() if word in said) / mass if mass else 0.0
