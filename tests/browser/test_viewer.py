"""The page in a real browser: open, filter, walk a discussion, compare two runs, at desk and on the phone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser
DISCUSSION = "#/discussion?condition=rules%2Bgate&task=a&seed=0"


def fits(page: Page) -> bool:
    """Whether the page scrolls in one direction only."""
    return bool(
        page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth + 1")
    )


def test_overview_shows_conditions_notice_and_failures(watched: Any, worked_page: Path) -> None:
    page = watched.open(worked_page)
    expect(page.get_by_role("note")).to_have_text("A small model proves the path, not the method.")
    names = page.locator("a.condition .name").all_inner_texts()
    assert names == ["hidden_pre", "hidden_post", "full_info", "rules", "rules+gate"]
    assert page.locator("a.condition .value").all_inner_texts() == ["0.50", "0.00", "1.00", "1.00", "0.50"]
    expect(page.get_by_text("its certificate is missing")).to_be_visible()
    expect(page.get_by_text("engine gave up")).to_be_visible()
    expect(page.get_by_text("committed prompt", exact=True)).to_be_visible()
    assert fits(page)


def test_provenance_says_what_made_the_result(watched: Any, compared_page: Path) -> None:
    page = watched.open(compared_page, "#/?run=1")
    page.get_by_text("What made this result").click()
    expect(page.locator(".facts-list")).to_contain_text("seed")
    assert fits(page)


def test_tables_open_and_hold_their_numbers(watched: Any, worked_page: Path) -> None:
    page = watched.open(worked_page)
    page.get_by_text("All metrics").click()
    row = page.locator("details[open] tr", has_text="rules+gate")
    expect(row).to_contain_text("0.500")
    assert fits(page)


def test_filter_and_sort(watched: Any, worked_page: Path) -> None:
    page = watched.open(worked_page, "#/episodes")
    counter = page.get_by_role("status")
    expect(counter).to_have_text("10 of 10 discussions")
    page.get_by_label("Outcome").select_option("failed")
    expect(counter).to_have_text("1 of 10 discussions")
    page.get_by_label("Outcome").select_option("")
    page.get_by_label("with replaced proposals").check()
    expect(counter).to_have_text("2 of 10 discussions")
    page.get_by_label("with replaced proposals").uncheck()
    page.get_by_label("Search").fill("flat B")
    expect(counter).to_have_text("5 of 10 discussions")
    page.get_by_label("Search").fill("")
    page.get_by_role("button", name="mean regret").click()
    page.get_by_role("button", name="mean regret").click()
    assert "0.100" in page.locator("tbody tr").first.inner_text()
    assert "–" in page.locator("tbody tr").last.inner_text()
    assert fits(page)


def test_a_condition_leads_to_its_discussions(watched: Any, worked_page: Path) -> None:
    page = watched.open(worked_page)
    page.get_by_title("rules: open its discussions").click()
    expect(page.get_by_role("status")).to_have_text("2 of 10 discussions")
    page.get_by_role("link", name="Flat b").click()
    expect(page.get_by_role("heading", name="Flat b")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("status")).to_have_text("2 of 10 discussions")


def test_walk_a_discussion(watched: Any, worked_page: Path) -> None:
    page = watched.open(worked_page, DISCUSSION)
    expect(page.locator(".verdict")).to_contain_text("Elm Street is the right decision")
    first, second = page.locator(".card[data-round='1']"), page.locator(".card[data-round='2']")
    expect(first.locator(".gate")).to_have_text(
        "route was replaced by seek evidence, the branch of lowest objective: regret 0.100 > threshold 0.050."
    )
    expect(second.locator(".gate")).to_have_text("Accepted: regret 0.000 ≤ threshold 0.050.")
    expect(first.locator(".branch.taken")).to_contain_text("J 0.300")
    expect(first.locator(".branch", has_text="proposed")).to_contain_text("regret 0.100")
    expect(first.locator(".branch", has_text="proposed")).to_contain_text("We should talk about route@0.")
    expect(second.locator(".branches-head")).to_contain_text("holds 2 of 2")
    assert page.locator(".belief-history .belief-column").count() == 2 * 3
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(second).to_have_class("card current")
    page.keyboard.press("k")
    expect(first).to_have_class("card current")
    assert fits(page)


def test_model_text_is_shown_and_never_run(watched: Any, worked_page: Path) -> None:
    page = watched.open(worked_page, DISCUSSION)
    message = page.locator(".card[data-round='1'] .message")
    assert message.inner_text().startswith("</script><script>window.hacked = true</script><img src=x")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script").count() == 0


def test_clues_and_branches_can_be_toggled(watched: Any, worked_page: Path) -> None:
    page = watched.open(worked_page, DISCUSSION)
    expect(page.get_by_text("Elm Street floods every spring.")).to_have_count(0)
    page.keyboard.press("c")
    expect(page.get_by_role("heading", name="Private clues")).to_be_visible()
    expect(page.get_by_text("never surfaced").first).to_be_visible()
    page.keyboard.press("b")
    expect(page.locator(".branches")).to_have_count(0)
    page.keyboard.press("b")
    page.keyboard.press("c")
    expect(page.get_by_role("heading", name="Private clues")).to_have_count(0)


def test_the_demo_shows_who_held_what_and_when_it_surfaced(watched: Any, demo_page: Path) -> None:
    page = watched.open(demo_page, "#/discussion?condition=rules&task=demo&seed=3")
    expect(page.get_by_role("heading", name="Three friends choose an apartment")).to_be_visible()
    expect(page.locator(".legend.options")).to_contain_text("Apartment B ✓ answer")
    expect(page.locator(".message").first).to_have_text("spoke under route")
    page.get_by_role("button", name="Private clues").click()
    clues = page.locator(".clue-list li")
    assert clues.count() == 3
    expect(clues.first).to_contain_text("Ana met the neighbours.")
    expect(clues.first).to_contain_text("round 1")
    clues.first.get_by_role("button").click()
    expect(page.locator(".card[data-round='1']")).to_have_class("card current")
    expect(page.locator(".card[data-round='1'] .surfaced")).to_contain_text("Ana met the neighbours.")
    assert fits(page)


def test_neighbours_follow_the_filtered_list(desktop: Any, worked_page: Path) -> None:
    page = desktop.open(worked_page, "#/episodes?condition=hidden_post")
    page.get_by_role("link", name="Flat a").click()
    expect(page.get_by_role("heading", name="Flat a")).to_be_visible()
    page.keyboard.press("n")
    expect(page.get_by_role("heading", name="Flat b")).to_be_visible()
    expect(page.get_by_label("Condition")).to_have_value("hidden_post")
    expect(page.locator(".gate")).to_have_text("Only this branch was evaluated.")
    page.keyboard.press("p")
    expect(page.get_by_role("heading", name="Flat a")).to_be_visible()


def test_keyboard_reaches_every_view(desktop: Any, worked_page: Path) -> None:
    page = desktop.open(worked_page)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next, previous round")
    assert "[object" not in page.get_by_role("dialog").inner_text()
    page.keyboard.press("Escape")
    page.keyboard.press("m")
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.type("full")
    expect(page.get_by_role("status")).to_have_text("2 of 10 discussions")
    page.keyboard.press("Escape")
    page.keyboard.press("o")
    expect(page.get_by_role("heading", name="worked")).to_be_visible()


def test_a_failed_discussion_says_so(desktop: Any, worked_page: Path) -> None:
    page = desktop.open(worked_page, DISCUSSION.replace("task=a", "task=b"))
    expect(page.locator(".verdict")).to_have_text("Failed in round 2: engine gave up")


def test_a_discussion_that_is_not_there_says_so(desktop: Any, worked_page: Path) -> None:
    page = desktop.open(worked_page, "#/discussion?condition=mlp&task=a&seed=0")
    expect(page.get_by_text("There is no such discussion in this run.")).to_be_visible()


def test_compare_two_conditions_of_one_run(watched: Any, worked_page: Path) -> None:
    page = watched.open(worked_page, "#/compare")
    page.get_by_label("A", exact=True).select_option(label="hidden_pre")
    page.get_by_label("B", exact=True).select_option(label="rules")
    expect(page.get_by_role("button", name="only B is right")).to_contain_text("1")
    expect(page.get_by_role("button", name="both are right")).to_contain_text("1")
    expect(page.get_by_role("status")).to_contain_text("1 pair where they differ; 2 pairs in all")
    page.locator("tbody a").last.click()
    expect(page.get_by_role("heading", name="Flat a")).to_be_visible()
    assert fits(page)


def test_compare_two_runs(watched: Any, compared_page: Path) -> None:
    page = watched.open(compared_page, "#/compare")
    expect(page.get_by_text("3 runs, 1 failed.")).to_be_visible()
    expect(page.locator("pre")).to_contain_text("EngineDead: 503")
    assert page.evaluate("window.hacked") is None
    wide = page.locator("section", has=page.get_by_role("heading", name="One column per run"))
    expect(wide.locator("tr", has_text="rules").first).to_contain_text("1.000")
    page.get_by_label("A", exact=True).select_option(label="first: rules")
    page.get_by_label("B", exact=True).select_option(label="second: rules")
    expect(page.get_by_role("button", name="only A is right")).to_contain_text("1")
    page.get_by_label("Run", exact=True).select_option(label="second")
    expect(page.get_by_label("Run", exact=True)).to_have_value("1")
    page.keyboard.press("Escape")
    page.keyboard.press("e")
    page.get_by_label("Condition").select_option("rules")
    expect(page.get_by_role("status")).to_have_text("2 of 10 discussions")
    assert fits(page)


def test_five_thousand_discussions_open_in_two_seconds(desktop: Any, large_page: Path) -> None:
    started = time.perf_counter()
    page = desktop.open(large_page)
    opened = time.perf_counter() - started
    page.keyboard.press("e")
    expect(page.get_by_role("status")).to_have_text("5,000 of 5,000 discussions")
    listed = time.perf_counter() - started
    assert opened < 2, f"the overview took {opened:.2f} s"
    assert listed < 2, f"the list took {listed:.2f} s"
    page.get_by_label("Condition").select_option("rules+gate")
    page.get_by_label("with replaced proposals").check()
    page.locator("tbody a").first.click()
    expect(page.locator(".gate.replaced").first).to_contain_text("was replaced by")
    assert fits(page)


def test_the_list_grows_as_it_is_scrolled(desktop: Any, large_page: Path) -> None:
    page = desktop.open(large_page, "#/episodes")
    before = page.locator("tbody tr").count()
    for _ in range(5):
        page.mouse.wheel(0, 20_000)
        page.wait_for_timeout(100)
    assert page.locator("tbody tr").count() > before
