"""Chromium for the page's tests, and the reports they open: a worked example, two runs, 5,000 discussions."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from conformal import OpenGate, ThresholdGate, acceptance_thresholds
from controllers.references import Best, Fixed, Random
from controllers.rules import Rules
from sim.discussion.actions import Menu, free_messages, interventions
from sim.discussion.ending import Stop
from sim.discussion.objective import Objective
from sim.discussion.routing import make_router
from sim.records.rows import BranchRow, EpisodeRow
from sim.records.store import RunStore
from sim.report.build import build_report, compare
from sim.studies.recorder import RowRecorder
from sim.studies.rollout import Policy, rollout
from sim.studies.trace import Trace
from sim.tasks import HiddenProfileTask, demo_task, generate_method, write_tasks
from sim.worlds.cognitive import Cognition, CognitiveWorld
from sim.worlds.protocol import batches

CHROMIUM = "/usr/bin/chromium"
_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-quic", "--no-first-run",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
HOSTILE = "</script><script>window.hacked = true</script><img src=x onerror='window.hacked = true'> & more"


class WatchedPage:
    """A page that remembers everything its console and its network said."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on(
            "console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def check(self) -> None:
        """No console error, no request to anywhere, nothing drawn that should have been an element."""
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith("file:")] == []
        shown = self.page.locator("body").inner_text()
        assert not [wrong for wrong in ("[object", "undefined", "NaN", "null") if wrong in shown]

    def open(self, path: Path, address: str = "") -> Page:
        """Open a report from disk and wait until it is drawn."""
        self.page.goto(path.as_uri() + address)
        self.page.wait_for_selector("html[data-ready]")
        return self.page


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One headless Chromium for all tests."""
    if not Path(CHROMIUM).exists():
        pytest.fail(f"{CHROMIUM} is missing; install Debian's package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(params=[(1280, 900, "light"), (390, 844, "dark")], ids=["desktop-light", "phone-dark"])
def watched(chromium: Browser, request: pytest.FixtureRequest) -> Iterator[WatchedPage]:
    """A fresh page on a desktop and on a phone; no test may leave a console error or a request behind."""
    width, height, scheme = request.param
    context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    found = WatchedPage(context.new_page())
    yield found
    found.check()
    context.close()


@pytest.fixture
def desktop(chromium: Browser) -> Iterator[WatchedPage]:
    """A fresh page on a desktop, watched likewise."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    found = WatchedPage(context.new_page())
    yield found
    found.check()
    context.close()


def _report_tests() -> ModuleType:
    """The row-by-row runs of the report's own tests."""
    path = Path(__file__).parents[1] / "sim" / "report" / "conftest.py"
    spec = importlib.util.spec_from_file_location("report_rows", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["report_rows"] = module
    spec.loader.exec_module(module)
    return module


def _worked(directory: Path, text: str) -> Any:
    """The worked example, one message of which is `text`."""
    rows = _report_tests()
    run = rows.RunWriter(directory)
    rows.write_worked_example(run)
    run.rows = [
        msgspec.structs.replace(row, text=text)
        if isinstance(row, BranchRow) and (row.task, row.path) == ("a", "seek_evidence@1")
        else row
        for row in run.rows
    ]
    return run


@pytest.fixture(scope="session")
def worked_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the worked example, in which Agent 2 says something hostile."""
    run = _worked(tmp_path_factory.mktemp("worked") / "worked", HOSTILE)
    return build_report(run.write(config="notice: A small model proves the path, not the method.\n")).page


@pytest.fixture(scope="session")
def compared_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two good runs and a failed one, in one report."""
    root = tmp_path_factory.mktemp("compared")
    finished = {"state": "finished", "verb": "evaluate"}
    first = _worked(root / "first", "Elm Street floods every spring.").write(
        status=finished, config="seed: 0\n"
    )
    other = _worked(root / "second", "Never mind.")
    other.rows = [
        msgspec.structs.replace(row, decision=1)
        if isinstance(row, EpisodeRow) and row.condition == "rules"
        else row
        for row in other.rows
    ]
    trace = f"Traceback (most recent call last):\n  {HOSTILE}\nEngineDead: 503"
    failed = {"state": "failed", "error": "EngineDead: 503", "traceback": trace}
    bad = _report_tests().RunWriter(root / "third").write(status=failed)
    return compare([first, other.write(status=finished, config="seed: 1\n"), bad], root / "out").page


@pytest.fixture(scope="session")
def demo_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic agents discuss the worked example of the method, with rules and without."""
    directory = tmp_path_factory.mktemp("demo")
    policies = [_policy("rules", Rules(), interventions())]
    _run(_hold(directory, (demo_task(),), policies, [3], measured_text=True))
    return build_report(directory).page


@pytest.fixture(scope="session")
def large_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5,000 real discussions of synthetic agents, every branch recorded."""
    directory = tmp_path_factory.mktemp("large")
    tasks = generate_method(600, 1)
    _run(_hold_five(directory, tasks[:100], tasks[100:]))
    return build_report(directory).page


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end in a thread of its own: Playwright's event loop lives in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


async def _hold_five(
    directory: Path, pilot: tuple[HiddenProfileTask, ...], test: tuple[HiddenProfileTask, ...]
) -> None:
    """Five conditions on the test tasks, one of them behind a gate made from the pilot tasks."""
    everything, free = interventions(), free_messages()
    rules = _policy("rules", Rules(), everything)
    (batch,) = batches(pilot, [0], len(pilot))
    trace = Trace(batch)
    await rollout(CognitiveWorld(Cognition(), 8, measured_text=False), batch, rules, trace)
    found = acceptance_thresholds(trace.scores, trace.reached, "0.1", units=[task.id for task in pilot])
    policies = [
        _policy("hidden_post", Fixed("free"), free, stop=Stop(quorum=None)),
        rules,
        _policy("rules+gate", Rules(), everything, gate=ThresholdGate(found)),
        _policy("random", Random(), everything),
        _policy("greedy", Best("greedy"), everything),
    ]
    await _hold(directory, test, policies, [0, 1], measured_text=False)


async def _hold(
    directory: Path,
    tasks: tuple[HiddenProfileTask, ...],
    policies: list[Policy],
    seeds: list[int],
    measured_text: bool,
) -> None:
    """Hold every condition on every task and seed, and record all of it."""
    world = CognitiveWorld(Cognition(), 8, measured_text=measured_text)
    write_tasks(directory / "tasks.json", tasks)
    with RunStore(directory) as store:
        for policy in policies:
            for batch in batches(tasks, seeds, 2048):
                await rollout(world, batch, policy, RowRecorder(store, "evaluate", policy, batch))


def _policy(name: str, controller: Any, menu: Menu, **changes: Any) -> Policy:
    parts: dict[str, Any] = {"gate": OpenGate(), "stop": Stop()}
    return Policy(
        name=name,
        controller=controller,
        menu=menu,
        router=make_router("action_conditional"),
        objective=Objective(),
        **(parts | changes),
    )
