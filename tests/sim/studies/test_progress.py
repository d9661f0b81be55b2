"""Progress says how fast it goes, also in stages that are over at once and in those that take minutes an item."""

from __future__ import annotations

import pytest

from sim.studies.progress import Reporter, rate_text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0.0, ""),
        (150_000.4, "150,000/s"),
        (12.34, "12/s"),
        (1.26, "1.3/s"),
        (0.5, "30/min"),
        (0.01, "0.6/min"),
    ],
)
def test_rates_are_readable_at_every_speed(rate: float, text: str) -> None:
    assert rate_text(rate) == text


def test_a_stage_that_is_over_at_once_has_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter().stage("evaluate", 2) as advance:
        advance(2)
    line = capsys.readouterr().err
    assert "2/2" in line
    assert "/s" in line
    assert " 0/s" not in line
