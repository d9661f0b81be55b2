"""The captain's page in a real browser: teams, transcripts, reviews and costs are shown, and nothing in them runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from sim.captain.config import parse
from sim.captain.problems import read_problems
from sim.captain.report import build_captain_report
from sim.launch import composed
from sim.records.captain_rows import CaptainCallRow, CaptainEpisodeRow, CaptainEventRow, Identity
from sim.records.run_dir import write_config
from sim.records.store import RunStore

pytestmark = pytest.mark.browser
HOSTILE = (
    "</div></details><script>window.hacked = true</script><img src=x onerror='window.hacked = true'> & more"
)
MEMBER = {
    "name": "Number_Theorist", "agent": "number-theorist", "roles": [HOSTILE], "tools": ["factor_integer"],
    "source": "generated", "profile": f"Knows primes. {HOSTILE}",
}  # fmt: skip
EVENTS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("decision", "captain", HOSTILE, {"decision": "seek_experts", "answer": ""}),
    ("team", "captain", "team-1 is built", {"team": "team-1", "roles": ["r"], "members": [MEMBER], "recalled": False}),
    ("options", "team-1", "", {"options": [HOSTILE, "none of these"], "beliefs": [[0.5, 0.5]]}),
    ("intervention", "controller", "clarify",
     {"round": 1, "proposal": "challenge", "regret": 0.125, "threshold": 0.1, "certified": True, "replaced": True}),
    ("message", "Number_Theorist", HOSTILE, {"answer": HOSTILE, "done": True, "planted": True, "action": "clarify"}),
    ("execution", "executor", f"It printed:\n{HOSTILE}", {"author": "Number_Theorist", "verdict": "ok"}),
    ("talk", "team-1", "36", {"ending": "done", "messages": 1, "answers": 2}),
    ("review", "reflector", HOSTILE, {"answer": HOSTILE, "double_check": True, "contradictions": [HOSTILE],
     "confidence": 0.4, "additional_information": HOSTILE}),
    ("verification", "verifier", HOSTILE,
     {"because": "the review asks for it", "holds": False, "before": HOSTILE, "after": "36"}),
    ("note", "captain", HOSTILE, {}),
)  # fmt: skip


@pytest.fixture(scope="session")
def captain_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of two problems by two conditions, every kind of event in it, each text hostile."""
    directory = tmp_path_factory.mktemp("captain")
    data = composed("problems.scenarios=[mathematics]", "problems.count=2", config_name="captain")
    write_config(directory, data | {"notice": HOSTILE})
    with RunStore(directory) as store:
        for problem in read_problems(parse(data).problems):
            for condition in ("single", "captain"):
                who = Identity(condition, "mathematics", problem.id, 0, "a")
                if condition == "captain":
                    store.append([CaptainEventRow(who, i, 1, *event) for i, event in enumerate(EVENTS)])
                store.append([_call(who, part) for part in ("captain", "expert", "reflector")])
                store.append([_outcome(who, condition)])
    return build_captain_report(directory)


def _call(who: Identity, component: str) -> CaptainCallRow:
    return CaptainCallRow(
        who, 0, component, "message", "1", "", "model", "", 1200, None, 34, 0.5, 0, "stop", 0.0025
    )


def _outcome(who: Identity, condition: str) -> CaptainEpisodeRow:
    return CaptainEpisodeRow(
        episode=who, method=condition, family=who.problem, level=None, answer=HOSTILE, correct=condition == "captain",
        reason=HOSTILE, ending="finished", steps=1, teams=1, malformed=0, tokens=3702, seconds=1.5, disputes=1,
        detected=1, checked=1, right_to_wrong=0, wrong_to_right=1,
    )  # fmt: skip


def test_teams_transcripts_reviews_and_costs_are_shown_and_nothing_runs(
    watched: Any, captain_page: Path
) -> None:
    page = watched.page
    page.goto(captain_page.as_uri())
    expect(page.get_by_role("note")).to_have_text(HOSTILE)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth + 1")
    accuracy = page.locator("section", has=page.get_by_role("heading", name="Accuracy", exact=True))
    expect(accuracy.locator("tr", has_text="captain")).to_contain_text("0.0075")
    expect(accuracy.locator("tr", has_text="captain")).to_contain_text("3,702")
    costs = page.locator("section", has=page.get_by_role("heading", name="Components"))
    expect(costs.locator("tr", has_text="reflector").first).to_contain_text("2400")
    episode = page.locator("details.episode", has_text="step 1: seek experts").first
    expect(episode.locator(".message").first).to_be_hidden()
    episode.locator("summary").click()
    expect(episode.locator(".members")).to_contain_text(HOSTILE)
    expect(episode.locator(".card .message")).to_have_text(HOSTILE)
    expect(episode.locator(".execution")).to_contain_text(HOSTILE)
    expect(episode.locator(".gate.replaced")).to_contain_text(
        "challenge proposed, clarify executed; regret 0.125"
    )
    expect(episode.get_by_text("Contradictions:")).to_be_visible()
    expect(episode.locator(".review", has_text="Independent check")).to_contain_text("it does not hold")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth + 1")
    assert page.locator("script, img, iframe").count() == 0
    assert page.evaluate("window.hacked") is None
