"""A captain study on disk: conditions, records, resume, tables, the page, and every committed experiment."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest
import yaml
from rich.console import Console

import sim.launch
from sim.captain import study as module
from sim.captain.command import print_outcome, shower
from sim.captain.config import parse
from sim.captain.replies import (
    Answer,
    Finish,
    Review,
    Roles,
    Say,
    SeekExperts,
    Selection,
    Solve,
    Subtask,
    Verdict,
)
from sim.captain.report import build_captain_report
from sim.captain.sandbox import Sandbox
from sim.captain.study import check, run_captain
from sim.captain.tables import Records, accuracy, paired, read_records, selection, tables
from sim.engines.protocol import ChatRequest, EngineDown, EngineError
from sim.engines.scripted import SCRIPTED, ScriptedEngine
from sim.errors import UserError
from sim.launch import CONF
from sim.records.captain_rows import (
    CaptainCallRow,
    CaptainEpisodeRow,
    CaptainEventRow,
    Identity,
)
from sim.records.run_dir import read_config
from sim.records.store import read_rows

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("captain_*.yaml"))
HOSTILE = "</div><script>window.hacked = true</script><img src=x onerror=alert(1)> & {{ 7 * 7 }}"


composed = partial(sim.launch.composed, config_name="captain")


def by_number(request: ChatRequest) -> str:
    """A script that reads its prompt: right where the task is about rivers, wrong elsewhere."""
    system, text = request.turns[0].content, request.turns[-1].content
    answer = "23" if "river that flows" in text else "7"
    if "You lead the work" in system:
        if "series of tasks" in text:
            return dumped(Roles(("finds facts in documents", "verifies claims against sources")))
        if "Nothing has been done" in text and "seek_experts" in text:
            return dumped(SeekExperts(Subtask("Look it up."), ("finds facts in documents", "an equestrian")))
        if "Nothing has been done" in text:
            return dumped(Solve("I look.", answer))
        return dumped(Finish(answer))
    if "You choose who fills" in system:
        return dumped(Selection("researcher"))
    if "You describe experts" in system:
        return json.dumps({"name": "Rider", "profile": "Rides.", "solving": "s", "interaction": "i"})
    if "You review" in system:
        return dumped(Review(answer, HOSTILE, ("a point",), True))
    if "You check" in system:
        return dumped(Verdict(False, "No.", "23" if answer == "7" else answer))
    if "on your own" in system:
        return dumped(Answer("Thinking.", answer))
    return dumped(Say(HOSTILE, answer, True))


def dumped(reply: Any) -> str:
    """A reply as JSON."""
    return msgspec.json.encode(reply).decode()


SMALL = (
    "problems.scenarios=[information_retrieval]", "problems.count=2", "progress=false", "captain.retriever=bm25",
    "+prices.scripted={prompt: 1.0, completion: 2.0}", "seeds=[0,1]", "reference=single",
)  # fmt: skip


@pytest.fixture
def run(
    tmp_path: Path, playbook: Any, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Runs a study whose model is a script."""

    def go(
        *overrides: str, write: Callable[[ChatRequest], str] = by_number, resume: Path | None = None
    ) -> Path:
        book = playbook({})
        rows = {"single": "single", "captain": "captain", "static_team": "static_team"}
        named = any(override.startswith(("conditions=", "experiment=")) for override in overrides)
        usual = () if named else tuple(f"+conditions.{name}={{method: {one}}}" for name, one in rows.items())
        book.write = write
        monkeypatch.setattr(module, "make_engine", lambda engine, model: book.engine())
        data = composed(*SMALL, f"output={tmp_path}/runs", *usual, *overrides)
        return run_captain(data | {"resume": str(resume) if resume else None}, {})

    return go


def episodes(directory: Path) -> list[CaptainEpisodeRow]:
    """The outcomes of a run."""
    return read_rows(directory, CaptainEpisodeRow)


def test_a_study_is_recorded_graded_and_reported(run: Callable[..., Path]) -> None:
    directory = run()
    rows = episodes(directory)
    assert {row.episode.key for row in rows} == {
        (condition, problem, seed)
        for condition in ("single", "captain", "static_team")
        for problem in ("retrieval-river", "retrieval-newspaper")
        for seed in (0, 1)
    }
    assert all(row.correct == (row.episode.problem == "retrieval-river") for row in rows)
    assert json.loads((directory / "status.json").read_text())["state"] == "finished"
    fingerprint = json.loads((directory / "provenance.json").read_text())
    assert fingerprint["retrieval"] == {"bm25": "bm25"}
    assert fingerprint["sandbox"] == "bubblewrap"
    table: Any = pd.read_csv(directory / "tables" / "accuracy.csv").set_index("condition")
    assert table.loc["captain", "accuracy"] == 0.5
    assert table.loc["captain", "tokens"] > table.loc["single", "tokens"]
    assert table.loc["single", "price"] > 0
    for name in ("paired", "reflector", "selection", "agents", "teams", "components", "failures"):
        assert (directory / "tables" / f"{name}.csv").exists(), name


def test_the_ledger_adds_up(run: Callable[..., Path]) -> None:
    directory = run()
    calls = read_rows(directory, CaptainCallRow)
    for row in episodes(directory):
        mine = [call for call in calls if call.episode == row.episode]
        models = [call for call in mine if call.component not in ("retriever", "executor")]
        assert sum(call.prompt_tokens + call.completion_tokens for call in models) == row.tokens
        assert [call.number for call in mine] == list(range(len(mine)))


def test_a_check_that_flips_an_answer_is_counted(run: Callable[..., Path]) -> None:
    """The verifier always says 1867: that mends the newspaper's answer and spoils the river's."""

    def stubborn(request: ChatRequest) -> str:
        checking = "You check" in request.turns[0].content
        return dumped(Verdict(False, "No.", "1867")) if checking else by_number(request)

    directory = run("conditions={captain: {method: captain}}", "reference=captain", write=stubborn)
    flips = {(row.episode.problem, row.right_to_wrong, row.wrong_to_right) for row in episodes(directory)}
    assert flips == {("retrieval-river", 1, 0), ("retrieval-newspaper", 0, 1)}
    table: Any = pd.read_csv(directory / "tables" / "reflector.csv")
    assert table[["right_to_wrong", "wrong_to_right"]].to_numpy().tolist() == [[2, 2]]


def test_generated_agents_are_in_the_runs_library(run: Callable[..., Path]) -> None:
    directory = run()
    stored = json.loads((directory / "agents.json").read_text())
    made = [card for card in stored if card["provenance"]["source"] == "generated"]
    assert {card["name"] for card in made} == {"Rider"}
    assert {"an equestrian"} <= {card["provenance"]["role"] for card in made}
    assert len(stored) > 40


def test_a_plan_that_could_not_be_looked_up_is_made_again(
    run: Callable[..., Path], broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "make_scorer", lambda name: broken)
    own = (
        "conditions={static_team: {method: static_team}}",
        "reference=static_team",
        "seeds=[0]",
        "in_flight=1",
    )
    first, second = episodes(run(*own))
    assert (first.ending, first.error) == ("failed", "bm25: RuntimeError: embedding broke")
    assert (second.ending, second.teams) == ("finished", 1)


def test_a_static_team_is_built_once_per_scenario_and_seed(run: Callable[..., Path]) -> None:
    directory = run()
    built = [row for row in read_rows(directory, CaptainEventRow) if row.kind == "static_team"]
    assert [(row.episode.problem, row.episode.seed) for row in built] == [("", 0), ("", 1)]
    teams = {row.teams for row in episodes(directory) if row.episode.condition == "static_team"}
    assert teams == {1}


def test_a_finished_run_is_not_done_again(run: Callable[..., Path]) -> None:
    directory = run()
    before = (directory / "captain_calls.jsonl").read_bytes()
    run(resume=directory)
    assert (directory / "captain_calls.jsonl").read_bytes() == before


def test_a_run_whose_server_died_is_resumed_and_pays_for_both(
    run: Callable[..., Path], tmp_path: Path
) -> None:
    asked = 0

    def dying(request: ChatRequest) -> str:
        nonlocal asked
        asked += 1
        if asked > 12:
            raise EngineDown("connection refused")
        return by_number(request)

    with pytest.raises(UserError, match=r"connection refused; start the server again.*resume="):
        run("in_flight=1", write=dying)
    (directory,) = (tmp_path / "runs").iterdir()
    assert json.loads((directory / "status.json").read_text())["state"] == "failed"
    done = [row.episode for row in episodes(directory)]
    assert 0 < len(done) < 12
    run(resume=directory)
    rows = episodes(directory)
    assert len(rows) == len({row.episode.key for row in rows}) == 12
    assert [row.episode for row in rows][: len(done)] == done
    finished = {row.episode for row in rows}
    cut_short = [call for call in read_rows(directory, CaptainCallRow) if call.episode not in finished]
    assert [call for call in cut_short if call.episode.problem], (
        "what the crash cut short stays in the ledger"
    )


def test_a_failed_episode_is_wrong_and_stays_in_the_denominator(run: Callable[..., Path]) -> None:
    def failing(request: ChatRequest) -> str:
        if "newspaper" in request.turns[-1].content:
            raise EngineError("gave up")
        return by_number(request)

    directory = run(write=failing)
    failed = [row for row in episodes(directory) if row.ending == "failed"]
    assert {row.episode.problem for row in failed} == {"retrieval-newspaper"}
    assert {row.error for row in failed} == {"gave up"}
    table: Any = pd.read_csv(directory / "tables" / "accuracy.csv").set_index("condition")
    assert table.loc["single", ["accuracy", "failed", "n_episodes"]].tolist() == [0.5, 2, 4]
    assert len(pd.read_csv(directory / "tables" / "failures.csv")) == len(failed)


class Elements(HTMLParser):
    """Tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_shows_teams_transcripts_and_reviews_and_runs_nothing(run: Callable[..., Path]) -> None:
    text = (run() / "report.html").read_text()
    page = Elements(text)
    assert not [tag for tag, _ in page.tags if tag in ("script", "img", "iframe", "link")]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "&lt;script&gt;window.hacked" in text
    assert "{{ 7 * 7 }}" in text, "a model's text is no template"
    for words in ("Researcher", "Rider", "Contradictions: a point", "Independent check", "prompt tokens"):
        assert words in text, words
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv")) or ""
    assert policy.startswith("default-src 'none'; style-src 'sha256-")


def test_equal_records_give_equal_reports(run: Callable[..., Path]) -> None:
    directory = run()
    before = (directory / "report.html").read_bytes()
    build_captain_report(directory)
    assert (directory / "report.html").read_bytes() == before


def test_one_problem_shows_the_team_at_work(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = run("seeds=[0]", "problem='How long is the [bold]river that flows[/] through Karsby?'")
    shown = capsys.readouterr().out
    for words in ("step 1: seek_experts", "Researcher (library", "Rider (generated", "</script>", "report:"):
        assert words in shown, words
    (row,) = episodes(directory)
    assert (row.episode.condition, row.answer, row.reason) == ("captain", "23", "nobody knows the answer")


def test_a_terminal_never_reads_a_models_text_as_markup() -> None:
    out = Console(record=True, width=100, file=io.StringIO())
    config = parse(composed("problem=x"))
    who = Identity("captain", "mathematics", "asked", 0, "a")
    shower(config, out)(
        CaptainEventRow(who, 0, 1, "message", "[red]X[/]", "[link=x]y[/link]", {"answer": "[b]"})
    )
    text = out.export_text()
    assert "[link=x]y[/link]" in text
    assert "[red]X[/]" in text


def test_tables_of_a_study_are_printed(run: Callable[..., Path]) -> None:
    directory = run()
    out = Console(record=True, width=160, file=io.StringIO())
    print_outcome(directory, parse(composed()), out)
    text = out.export_text()
    assert "static_team" in text
    assert "e+0" not in text, "numbers are written in full"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_and_is_valid(name: str) -> None:
    config = check(composed(f"experiment={name}"))
    written = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text())
    assert config.name == name
    assert config.conditions.keys() == written["conditions"].keys()
    assert config.reference in config.conditions


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_one_command_with_paired_intervals(name: str, run: Callable[..., Path]) -> None:
    config = check(composed(f"experiment={name}"))
    directory = run(f"experiment={name}", "seeds=[0]", f"reference={config.reference}")
    rows = episodes(directory)
    assert {row.episode.condition for row in rows} == config.conditions.keys()
    assert [row.error for row in rows if row.error] == []
    assert all(row.tokens <= config.settings_of(row.episode.condition).budget for row in rows)
    others = config.conditions.keys() - {config.reference}
    content = (directory / "tables" / "paired.csv").read_text()
    assert bool(content.strip()) == bool(others)
    if others:
        table: Any = pd.read_csv(io.StringIO(content))
        assert set(table["condition"]) == others
        assert set(table["n_pairs"]) == {2}
        assert (table["difference_low"] <= table["difference"]).all()
        assert (table["difference"] <= table["difference_high"]).all()


def test_the_experiments_of_the_specification_are_there() -> None:
    wanted = {"scenarios", "methods", "adaptive", "libraries", "reflector", "speakers", "backbone", "costs"}
    assert wanted <= {name.removeprefix("captain_") for name in EXPERIMENTS}
    assert len(check(composed("experiment=captain_methods")).conditions) == 7
    policies = check(composed("experiment=captain_speakers"))
    speakers = {policies.settings_of(name).speaker for name in policies.conditions}
    assert speakers == {"rules", "llm", "round_robin", "random", "controlled"}


@pytest.mark.parametrize("source", ["humaneval", "math", "dabench", "scibench", "gaia"])
def test_every_problem_set_composes(source: str) -> None:
    paths = [] if source == "humaneval" else ["problems.path=/nowhere"]
    corpus = ["problems.corpus=/nowhere"] if source == "gaia" else []
    assert check(composed(f"captain/problems={source}", *paths, *corpus)).problems.source == source


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["captain.rounds=0"], "captain.rounds: Expected `int` >= 1"),
        (["captain.team_size=9"], "captain.team_size: Expected `int` <= 8"),
        (["captain.speaker=loud"], "loud"),
        (["in_flight=0"], "in_flight: Expected `int` >= 1"),
        (["captain.control.max_words=0"], "captain.control.max_words: Expected `int` >= 1"),
        (["problem=''"], "problem is empty"),
        (["problem='  '"], "problem is empty"),
        (["captain.rechecks=-1"], "captain.rechecks: Expected `int` >= 0"),
        (["+conditions.x={method: magic}"], "must be one of single"),
        (["+conditions.x={method: captain, settings: {colour: 1}}"], "conditions.x.settings"),
        (["+conditions.x={method: captain, settings: {backbone: big}}"], "'big' is not among backbones"),
        (["reference=nobody"], "reference is 'nobody'"),
        (["seeds=[0,0]"], "every seed"),
        (["~captain.similarity.bm25"], "exactly two thresholds"),
    ],
)
def test_what_is_wrong_is_one_line(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as error:
        check(composed(*overrides))
    assert "\n" not in str(error.value)


def test_a_missing_package_is_named_before_anything_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "pint" else object())
    with pytest.raises(
        UserError, match=r"package pint is not installed; pip install 'consilience\[captain\]'"
    ):
        check(composed())


def test_a_model_that_cannot_decide_by_type_is_refused(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    mute = msgspec.structs.replace(SCRIPTED, structured=False, label_logprobs=False)
    monkeypatch.setattr(ScriptedEngine, "capabilities", mute)
    with pytest.raises(UserError, match="backbone default: scripted keeps to no schema"):
        run()


def test_one_model_is_enough(run: Callable[..., Path]) -> None:
    """A configuration with a single model: none is asked for a second, for experts or for anything else."""
    directory = run("conditions={captain: {method: captain}}", "reference=captain")
    assert parse(read_config(directory)).backbones == {}
    assert {call.model for call in read_rows(directory, CaptainCallRow)} == {"scripted", "bm25"}


def test_settings_of_a_condition_replace_only_what_they_name() -> None:
    config = parse(
        composed(
            "+conditions.captain={method: captain}",
            "+conditions.x={method: captain, settings: {control: {rounds: 9}, budget: 5}}",
        )
    )
    found = config.settings_of("x")
    assert (found.control.rounds, found.budget) == (9, 5)
    assert found.control.max_words == config.captain.control.max_words
    assert config.settings_of("captain") == config.captain


def test_a_resume_under_other_settings_is_refused(run: Callable[..., Path]) -> None:
    directory = run()
    data = composed(*SMALL) | {"resume": str(directory)}
    with pytest.raises(UserError, match=r"was run with captain\.rounds=5, not 3"):
        run_captain(data, {"captain.rounds": 3})


def test_calibration_of_a_run_without_controlled_talks_is_refused(run: Callable[..., Path]) -> None:
    directory = run()
    with pytest.raises(UserError, match="no finished controlled talk"):
        run_captain(composed(f"calibrate={directory}"), {})


def test_controlled_talks_are_calibrated_and_gate_other_problems(
    run: Callable[..., Path], tmp_path: Path
) -> None:
    def two_minds(request: ChatRequest) -> str:
        text = by_number(request)
        if (
            "You lead the work" in request.turns[0].content
            and "Nothing has been done" in request.turns[-1].content
        ):
            return dumped(SeekExperts(Subtask("Look."), ("finds facts in documents", "counts prime numbers")))
        if "You choose" in request.turns[0].content:
            return dumped(
                Selection(
                    "researcher"
                    if "finds facts" in request.turns[-1].content.split("role to fill")[1][:40]
                    else None
                )
            )
        if request.max_tokens == 120:
            return f"A message about {request.key % 7} bridges."
        return text

    talk = ("captain.speaker=controlled", "conditions={captain: {method: captain}}", "reference=captain",
            "captain.control.rounds=2", "captain.control.stop.quorum=null", "seeds=[0]")  # fmt: skip
    base = run(*talk, "captain.control.exhaustive=true", "problems.count=4", write=two_minds)
    assert [row for row in read_rows(base, CaptainEventRow) if row.kind == "intervention"]
    run_captain(composed(f"calibrate={base}", "conformal.alpha=0.25"), {})
    path = base / "captain_talk_thresholds.json"
    found = json.loads(path.read_text())
    assert found["mode"] == "trajectory"
    assert len(found["folds"]["calibration"]) == 4
    assert all(found["certified"])
    with pytest.raises(UserError, match="test units were in fold"):
        run(*talk, f"captain.control.thresholds={path}", write=two_minds)
    gated = run(*talk, f"captain.control.thresholds={path}", "problems.levels=[3]", write=two_minds)
    rounds = [row.details for row in read_rows(gated, CaptainEventRow) if row.kind == "intervention"]
    assert rounds
    assert all(one["certified"] for one in rounds)


def row(condition: str, problem: str, correct: bool, **changes: Any) -> CaptainEpisodeRow:
    """An outcome."""
    base: dict[str, Any] = {
        "episode": Identity(condition, "mathematics", problem, 0, "a"), "method": condition, "family": problem,
        "level": None, "answer": "", "correct": correct, "reason": "", "ending": "finished", "steps": 1, "teams": 0,
        "malformed": 0, "tokens": 500, "seconds": 1.0, "disputes": 0, "detected": 0, "checked": 0,
        "right_to_wrong": 0, "wrong_to_right": 0,
    }  # fmt: skip
    return CaptainEpisodeRow(**base | changes)


def test_differences_are_paired_and_clustered_by_problem() -> None:
    names = [f"p{i}" for i in range(12)]
    rows = [row("single", name, i % 2 == 0) for i, name in enumerate(names)]
    rows += [row("captain", name, i % 3 != 0) for i, name in enumerate(names)]
    found = paired(Records(tuple(rows), (), ()), "single")
    (line,) = found.to_dict("records")
    assert line["difference"] == pytest.approx(8 / 12 - 6 / 12)
    assert line["difference_low"] < line["difference"] < line["difference_high"]
    assert line["n_pairs"] == 12
    assert line["p_holm"] == pytest.approx(line["p_value"])


def test_problems_of_one_family_count_once() -> None:
    rows = [row("single", f"p{i}", i == 0, family="a" if i else "b") for i in range(4)]
    table = accuracy(Records(tuple(rows), (), ()))
    assert table["accuracy"][0] == pytest.approx(0.5)
    assert table["n_problems"][0] == 2


def test_a_price_that_is_not_known_is_missing_not_zero() -> None:
    one = row("single", "p", True)
    call = CaptainCallRow(
        one.episode, 0, "captain", "answer", "0", "", "m", "", 10, None, 5, 0.1, 0, "stop", None
    )
    table = accuracy(Records((one,), (), (call,)))
    assert pd.isna(table["price"][0])
    known = accuracy(Records((one,), (), (msgspec.structs.replace(call, price=0.25),)))
    assert known["price"][0] == 0.25
    assert accuracy(Records((one,), (), ()))["price"][0] == 0.0, "an episode that made no call cost nothing"


def test_selector_precision_is_against_labelled_roles() -> None:
    def team(problem: str, *chosen: tuple[str, list[str]]) -> CaptainEventRow:
        picks = [{"role": "r", "candidates": [], "outcome": o, "chosen": "x", "tags": t} for o, t in chosen]
        details: Mapping[str, Any] = {
            "team": "t",
            "roles": [],
            "members": [],
            "selections": picks,
            "recalled": False,
        }
        return CaptainEventRow(
            Identity("captain", "mathematics", problem, 0, "a"), 0, 1, "team", "", "", dict(details)
        )

    events = (
        team("p", ("selected", ["algebra"]), ("selected", ["poet"]), ("abstained", [])),
        team("q", ("selected", ["algebra", "x"])),
    )
    labels = {"p": ("algebra",), "q": ("algebra",)}
    (line,) = selection(Records((row("captain", "p", True),), events, ()), labels).to_dict("records")
    assert (line["roles"], line["selected"], line["abstained"]) == (4, 3, 1)
    assert line["precision"] == pytest.approx((0.5 + 1.0) / 2)


def test_tables_of_nothing_much() -> None:
    found = tables(Records((row("single", "p", True),), (), ()), {}, "single")
    assert len(found["accuracy"]) == 1
    assert len(found["paired"]) == len(found["agents"]) == len(found["failures"]) == 0


def test_records_of_unfinished_episodes_are_left_out(run: Callable[..., Path]) -> None:
    directory = run()
    kept = len(read_records(directory).events)
    stray = CaptainEventRow(Identity("captain", "s", "p", 9, "zz"), 0, 0, "note", "", "", {})
    with (directory / "captain_events.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(stray) + b"\n")
    assert len(read_records(directory).events) == kept


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`scripts/captain.py` as a user runs it."""
    command = [sys.executable, str(CONF.parent / "scripts" / "captain.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def test_the_script_explains_itself_and_its_errors() -> None:
    assert "captain/problems: builtin, dabench" in script("--help").stdout
    wrong = script("captain.executer=auto")
    assert wrong.returncode == 2
    assert "did you mean captain.executor" in wrong.stderr
    empty = script("problem=''")
    assert empty.returncode == 2
    assert "problem is empty; give the problem as text" in empty.stderr
    assert len(empty.stderr.strip().splitlines()) == 1
    missing = script("captain/problems=math")
    assert missing.returncode == 2
    assert "Traceback" not in missing.stderr


@pytest.mark.slow
def test_a_real_small_model_ends_within_its_budget_with_typed_decisions(tmp_path: Path) -> None:
    """SmolLM2 in this process: however weak its answers, every decision has a type and the budget holds."""
    pytest.importorskip("transformers")
    from sim.engines.smollm2 import gguf_file

    try:
        gguf_file()
    except UserError as error:
        pytest.skip(str(error))
    done = script("experiment=captain_first_run", f"output={tmp_path}", "progress=false", "in_flight=10")
    assert done.returncode == 0, done.stderr
    (directory,) = tmp_path.iterdir()
    rows = episodes(directory)
    assert len(rows) == 10
    assert {one.episode.scenario for one in rows} == {
        "mathematics", "programming", "data_analysis", "science", "information_retrieval",
    }  # fmt: skip
    assert all(one.tokens <= 12000 and not one.error for one in rows)
    decisions = [r.details["decision"] for r in read_rows(directory, CaptainEventRow) if r.kind == "decision"]
    assert set(decisions) <= {"solve", "seek_experts", "reuse_team", "finish"}
    assert decisions
