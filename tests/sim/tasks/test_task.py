"""A task that exists is valid; its public part holds nothing private."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from sim.errors import UserError
from sim.tasks import HiddenProfileTask, PublicTask, demo_task

FIELDS: dict[str, Any] = {
    "id": "t1",
    "name": "harbour",
    "description": "Choose a way.",
    "shared_information": ("Clue one.",),
    "hidden_information": ("Clue two.", "Clue three."),
    "possible_answers": ("A", "B"),
    "correct_answer": "B",
    "family": "f1",
    "evidence": ((0.5, -0.5), (0.0, 0.0), (-1.0, 1.0)),
}


def task(**changes: Any) -> HiddenProfileTask:
    return HiddenProfileTask(**{**FIELDS, **changes})


def test_derived_facts() -> None:
    built = task()
    assert (built.n_agents, built.n_options, built.n_shared, built.answer_index) == (2, 2, 1, 1)
    assert built.clues == ("Clue one.", "Clue two.", "Clue three.")
    assert built.evidence_array().dtype == np.float64
    np.testing.assert_array_equal(built.evidence_array(), [[0.5, -0.5], [0, 0], [-1, 1]])


def test_public_part_has_no_private_field_and_no_private_text() -> None:
    built = task()
    public = built.public()
    assert PublicTask.__struct_fields__ == (
        "id",
        "name",
        "description",
        "shared_information",
        "possible_answers",
        "n_agents",
    )
    other = task(hidden_information=("X.", "Y."), correct_answer="A", evidence=None, family="f2")
    assert other.public() == public


def test_is_frozen() -> None:
    with pytest.raises(AttributeError):
        setattr(task(), "correct_answer", "A")  # noqa: B010 - a plain assignment would not type-check


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"id": ""}, "id", "''"),
        ({"id": 3}, "id", "3"),
        ({"name": " \n"}, "name", "is empty"),
        ({"description": ""}, "description", "is empty"),
        ({"family": ""}, "family", "is empty"),
        ({"shared_information": ()}, "shared_information", "at least 1"),
        ({"shared_information": ("One.", "")}, "shared_information", "entry 2"),
        ({"shared_information": ["One."]}, "shared_information", "not a list"),
        ({"hidden_information": ("One.",)}, "hidden_information", "at least 2"),
        ({"hidden_information": ()}, "hidden_information", "at least 2"),
        ({"hidden_information": ("One.", 5)}, "hidden_information", "5"),
        ({"possible_answers": ("B",)}, "possible_answers", "at least 2"),
        ({"possible_answers": ("A", "B", "A")}, "possible_answers", "'A'"),
        ({"possible_answers": ("B", " b")}, "possible_answers", "same option"),
        ({"correct_answer": "C"}, "correct_answer", "['A', 'B']"),
        ({"correct_answer": "b"}, "correct_answer", "'b'"),
        ({"evidence": ((0.5, -0.5), (0.0, 0.0))}, "evidence", "give 3"),
        ({"evidence": ((0.5, -0.5), (0.0,), (0.0, 0.0))}, "evidence", "row 2 has 1"),
        ({"evidence": ((0.5, -0.5), (math.nan, 0.0), (0.0, 0.0))}, "evidence", "nan"),
        ({"evidence": ((0.5, -0.5), (math.inf, -math.inf), (0.0, 0.0))}, "evidence", "inf"),
        ({"evidence": ((0.5, -0.5), (1.0, 0.0), (0.0, 0.0))}, "evidence", "subtract the mean"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(changes: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        task(**changes)
    message = str(caught.value)
    assert f"'{field}'" in message
    assert said in message
    assert message.startswith("task ")
    assert "\n" not in message


def test_evidence_is_asked_for_by_name() -> None:
    with pytest.raises(UserError, match=r"'t1'.*'evidence'.*cognitive agents"):
        task(evidence=None).evidence_array()


def test_demo_is_small_and_favours_a_until_the_clues_are_pooled() -> None:
    demo = demo_task()
    evidence = demo.evidence_array()
    shared = evidence[: demo.n_shared].sum(axis=0)
    assert demo.possible_answers[int(shared.argmax())] == "Apartment A"
    for private in evidence[demo.n_shared :]:
        assert demo.possible_answers[int((shared + private).argmax())] == "Apartment A"
    assert demo.possible_answers[int(evidence.sum(axis=0).argmax())] == demo.correct_answer == "Apartment B"
    assert sum(map(len, demo.clues)) < 1200


def test_replacing_a_field_checks_again() -> None:
    with pytest.raises(UserError, match="correct_answer"):
        msgspec.structs.replace(task(), correct_answer="nowhere")
