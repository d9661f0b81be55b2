"""The worked example (METHOD 12): three friends choose an apartment; shared facts favour A, pooled clues B.

Small enough to print. Its evidence is 0.5 x points like that of generated tasks, and keeps their rules.
"""

from __future__ import annotations

from sim.tasks.task import HiddenProfileTask

_OPTIONS = ("Apartment A", "Apartment B", "Apartment C")

_SHARED = (
    (
        "Apartment A has a great advantage: the rent is the lowest of the three. "
        "Apartment C has a small advantage: a cellar comes with it.",
        (2, 0, 1),
    ),
    (
        "Apartment A would be ideal for parties: it has a large kitchen. "
        "Apartment B has a small drawback: the kitchen is narrow.",
        (2, -1, 0),
    ),
    (
        "Apartment A is close to a park, which is nice. Apartment B has a balcony, which is pleasant. "
        "Apartment C faces the road, which is a bit loud.",
        (1, 1, -1),
    ),
)
_PRIVATE = (
    (
        "Ana met the neighbours. In Apartment A the bar below plays music until three, a serious problem. "
        "Apartment B has thick walls, which is nice.",
        (-2, 1, 0),
    ),
    (
        "Ben read the small print. The rent of Apartment A rises by a third in spring, a serious drawback. "
        "Apartment C is let for one year at most, a serious drawback too. "
        "Apartment B may be sublet in summer, which is handy.",
        (-2, 1, -2),
    ),
    (
        "Chloe tried the way to work. From Apartment A the bus is slightly unreliable. "
        "Apartment B is next to a direct tram line, which is ideal for all three.",
        (-1, 2, 0),
    ),
)


def demo_task() -> HiddenProfileTask:
    """The apartment choice: three agents, three options, three shared clues; Apartment B is the answer."""
    clues = _SHARED + _PRIVATE
    return HiddenProfileTask(
        id="demo",
        name="Three friends choose an apartment",
        description=(
            "Ana, Ben and Chloe want to rent an apartment together. All of them have read the "
            "advertisements, and each has found out one thing more. A serious problem weighs as much as two "
            "small drawbacks, a great advantage makes up for a serious problem, and a small advantage for a "
            "small drawback. The right apartment is the one that comes out best when everything is added up."
        ),
        shared_information=tuple(text for text, _ in _SHARED),
        hidden_information=tuple(text for text, _ in _PRIVATE),
        possible_answers=_OPTIONS,
        correct_answer="Apartment B",
        family="demo",
        evidence=tuple(_log_odds(points) for _, points in clues),
    )


def _log_odds(points: tuple[int, ...]) -> tuple[float, ...]:
    """0.5 x points, centred over the options."""
    mean = sum(points) / len(points)
    return tuple(0.5 * (own - mean) for own in points)
