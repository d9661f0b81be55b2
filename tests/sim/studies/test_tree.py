"""Exploration: whole trees whose prefixes are evaluated once, what a replay of them can do without a model, and
what one path per discussion cannot."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from conformal import OpenGate
from controllers.dataset import from_rows
from controllers.references import Random
from sim.discussion.actions import interventions
from sim.discussion.ending import Stop
from sim.discussion.objective import Objective
from sim.discussion.routing import make_router
from sim.engines.protocol import ChatRequest, ChooseRequest
from sim.engines.scripted import ScriptedEngine
from sim.errors import UserError
from sim.launch import composed
from sim.records.rows import BranchRow, DecisionRow, EpisodeRow, VoteRow
from sim.records.store import RunStore, read_rows
from sim.studies.rollout import Policy
from sim.studies.tree import TreeRecorder, expand, leaf_mistakes, with_tree_horizon
from sim.studies.verbs import run_stages
from sim.tasks import demo_task
from sim.worlds.branch_store import BranchStore
from sim.worlds.language import LanguageSettings, LanguageWorld
from sim.worlds.protocol import Episodes, MissingBranch

DEPTH = 3
SMALL = (
    "task.count=16", "split.train=4", "split.pilot=4", "split.calibration=4", "split.test=4",
    "training.epochs=2", "progress=false", "stop.quorum=null", "explore_seeds=[0]",
)  # fmt: skip
TREE = ("exploration=tree", f"exploration.depth={DEPTH}", "exploration.folds=[train,pilot,calibration,test]")
POLICIES = "conditions=[random,noisy_rules,rules,fixed_clarify,greedy,mlp]"

Config = Callable[..., dict[str, Any]]


@pytest.fixture(name="config", scope="module")
def _config() -> Config:
    def make(output: Path, *overrides: str) -> dict[str, Any]:
        return composed(*SMALL, f"output={output}", *overrides)

    return make


@pytest.fixture(name="tree", scope="module")
def _tree(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_stages(config(tmp_path_factory.mktemp("tree"), *TREE), {}, ("explore",))


def plain(directory: Path, kind: Any) -> list[bytes]:
    """Rows as text, in an order of their own."""
    return sorted(msgspec.json.encode(row) for row in read_rows(directory, kind))


def test_a_tree_holds_every_path_once(tree: Path) -> None:
    branches, votes = read_rows(tree, BranchRow), read_rows(tree, VoteRow)
    assert Counter(row.round for row in branches) == {0: 16, 1: 64, 2: 256, 3: 1024}
    assert len({(row.task, row.path) for row in branches}) == len(branches)
    assert len({(row.task, row.path) for row in votes}) == len(votes) == 16 * 4**DEPTH
    assert {row.path.count("/") for row in votes} == {DEPTH - 1}
    assert Counter(row.round for row in read_rows(tree, DecisionRow)) == {1: 16, 2: 64, 3: 256}
    (ending,) = {(row.ending, row.rounds, row.branches_evaluated) for row in read_rows(tree, EpisodeRow)}
    assert ending == ("tree", DEPTH, 4 + 16 + 64)


def test_a_tree_does_not_depend_on_batches_or_horizon(tree: Path, config: Config, tmp_path: Path) -> None:
    other = run_stages(config(tmp_path, *TREE, "world.batch=130", "world.horizon=5"), {}, ("explore",))
    assert plain(other, VoteRow) == plain(tree, VoteRow)
    assert plain(other, BranchRow) == plain(tree, BranchRow)


def test_a_replayed_tree_evaluates_every_controller_as_the_world_would(
    tree: Path, config: Config, tmp_path: Path
) -> None:
    """Training, calibration and evaluation, gates and all: the rows are those of the world itself."""
    study = (POLICIES, "certified=[noisy_rules,mlp,greedy]", f"world.horizon={DEPTH}")
    stages = ("explore", "train", "calibrate", "evaluate")
    live = run_stages(config(tmp_path / "live", *study), {}, stages)
    replayed = run_stages(config(tmp_path / "replayed", *study, f"replay={tree}"), {}, stages)
    for kind in (EpisodeRow, DecisionRow, BranchRow, VoteRow):
        assert plain(replayed, kind) == plain(live, kind), kind.__name__
    weights = "controller/mlp/mlp.safetensors"
    assert (replayed / weights).read_bytes() == (live / weights).read_bytes()


def test_a_replayed_tree_is_scored_anew_under_another_objective(
    tree: Path, config: Config, tmp_path: Path
) -> None:
    weights = ("objective.evidence_gain=0.5", "objective.premature_consensus=0.0")
    study = ("conditions=[greedy]", "certified=[]", f"world.horizon={DEPTH}", *weights)
    live = run_stages(config(tmp_path / "live", *study), {}, ("evaluate",))
    replayed = run_stages(config(tmp_path / "replayed", *study, f"replay={tree}"), {}, ("evaluate",))
    assert plain(replayed, EpisodeRow) == plain(live, EpisodeRow)


@pytest.mark.parametrize(
    ("overrides", "missing"),
    [
        (("routing=random",), "no branch recorded"),
        (("world.horizon=4",), "no branch recorded"),
        (("stop.quorum=0.5", "stop.confidence=0.0", "stop.coverage=0.0"), "no final votes recorded"),
        (("test_seeds=[1]",), "no opening recorded"),
        (("conditions=[hidden_post]",), "no branch recorded"),
        (("conditions=[hidden_pre]",), "no final votes recorded"),
        (("conditions=[full_info]",), "no opening recorded"),
    ],
)
def test_what_a_tree_does_not_hold_is_named(
    overrides: tuple[str, ...], missing: str, tree: Path, config: Config, tmp_path: Path
) -> None:
    study = ("conditions=[random]", "certified=[]", f"world.horizon={DEPTH}", *overrides)
    with pytest.raises(MissingBranch, match=rf"task .*, seed .*, path .*: {missing}"):
        run_stages(config(tmp_path, *study, f"replay={tree}"), {}, ("evaluate",))


def test_one_path_replays_its_behaviour_and_nothing_else(config: Config, tmp_path: Path) -> None:
    behaviour = ("exploration.behaviour=noisy_rules", "exploration.folds=[test]", f"world.horizon={DEPTH}")
    run = run_stages(config(tmp_path / "path", *behaviour), {}, ("explore",))
    study = (f"world.horizon={DEPTH}", f"replay={run}", "certified=[]")
    own = run_stages(config(tmp_path / "own", *study, "conditions=[noisy_rules]"), {}, ("evaluate",))
    assert len(read_rows(own, EpisodeRow)) == 4
    with pytest.raises(MissingBranch, match="explore deeper"):
        run_stages(config(tmp_path / "other", *study, "conditions=[fixed_clarify]"), {}, ("evaluate",))


def test_one_path_is_scored_and_learned_from_anew(config: Config, tmp_path: Path) -> None:
    """Under other weights of the objective, without the world that was explored."""
    depth = f"world.horizon={DEPTH}"
    run = run_stages(config(tmp_path / "path", depth), {}, ("explore",))
    weights = ("objective.evidence_gain=0.5", "objective.premature_consensus=0.0")
    study = ("conditions=[mlp]", "certified=[]", depth, *weights)
    live = run_stages(config(tmp_path / "live", *study), {}, ("explore", "train"))
    again = run_stages(config(tmp_path / "again", *study, f"replay={run}"), {}, ("explore", "train"))
    assert plain(again, DecisionRow) == plain(live, DecisionRow) != plain(run, DecisionRow)
    for name in ("mlp.safetensors", "mlp.json"):
        path = Path("controller") / "mlp" / name
        assert (again / path).read_bytes() == (live / path).read_bytes()


def test_an_intervention_is_dropped_from_a_tree_without_a_world(
    tree: Path, config: Config, tmp_path: Path
) -> None:
    study = ("conditions=[noisy_rules]", "certified=[]", f"world.horizon={DEPTH}", "menu.without=[route]")
    live = run_stages(config(tmp_path / "live", *study), {}, ("evaluate",))
    replayed = run_stages(config(tmp_path / "replayed", *study, f"replay={tree}"), {}, ("evaluate",))
    assert plain(replayed, EpisodeRow) == plain(live, EpisodeRow)


def test_behaviour_decides_the_path(config: Config, tmp_path: Path) -> None:
    executed = {}
    for name in ("random", "fixed_route"):
        run = run_stages(config(tmp_path / name, f"exploration.behaviour={name}"), {}, ("explore",))
        rows = read_rows(run, DecisionRow)
        assert all(len(row.candidates) == 4 for row in rows)
        executed[name] = {row.candidates[row.executed].split("@")[0] for row in rows}
    assert executed["fixed_route"] == {"route"}
    assert len(executed["random"]) == 4


def test_labels_of_a_tree_are_means_over_its_leaves(tree: Path) -> None:
    """Every branch of the first round, against the leaves below it counted by hand."""
    episodes, votes = read_rows(tree, EpisodeRow), read_rows(tree, VoteRow)
    decisions = [row for row in read_rows(tree, DecisionRow) if row.task == episodes[0].task]
    data = from_rows(decisions, {row.task: row.family for row in episodes})
    wrong = leaf_mistakes(votes, {(row.task, row.seed): row.answer for row in episodes})
    final = {
        f"{row.path}/{name}": value
        for row in decisions
        if row.round == DEPTH
        for name, value in zip(row.candidates, row.objectives, strict=True)
    }
    (root,) = [i for i, row in enumerate(decisions) if row.round == 1]
    mistakes = with_tree_horizon(data, decisions, "task_accuracy", votes, episodes).costs("task_accuracy")
    objectives = with_tree_horizon(data, decisions, "rollout", votes, episodes).costs("rollout")
    for column, name in enumerate(decisions[root].candidates):
        below = [path for path in final if path.startswith(name + "/")]
        assert len(below) == 16
        expected = np.mean(np.array([final[path] for path in below], dtype=float))
        assert objectives[root, column] == pytest.approx(expected, abs=1e-6)
        counted = [wrong[decisions[root].task, 0, path] for path in below]
        assert mistakes[root, column] == pytest.approx(np.mean(counted), abs=1e-6)
    assert np.nanmin(mistakes) < np.nanmax(mistakes)


@pytest.mark.parametrize("horizon", ["rollout", "task_accuracy"])
def test_a_tree_teaches_longer_horizons_with_the_default_target(
    horizon: str, config: Config, tmp_path: Path
) -> None:
    study = ("exploration=tree", "exploration.depth=2", f"training.horizon={horizon}", "conditions=[mlp]")
    run = run_stages(config(tmp_path, *study, "certified=[]"), {}, ("explore", "train", "evaluate"))
    assert len([row for row in read_rows(run, EpisodeRow) if row.stage == "evaluate"]) == 4


def test_a_vote_ends_a_branch_of_the_tree(config: Config, tmp_path: Path) -> None:
    study = ("exploration=tree", "exploration.depth=2", "menu.vote=true")
    run = run_stages(config(tmp_path, *study), {}, ("explore",))
    paths = Counter(row.path.count("/") + 1 for row in read_rows(run, VoteRow))
    assert paths == {2: 4 * 4 * 5}
    assert {row.round for row in read_rows(run, BranchRow) if row.action == "vote"} == {2}


def test_a_killed_tree_exploration_resumes_to_the_same_rows(
    tree: Path, config: Config, tmp_path: Path
) -> None:
    run = run_stages(config(tmp_path, *TREE, "world.batch=64"), {}, ("explore",))
    episodes = run / "episodes.jsonl"
    episodes.write_bytes(b"".join(episodes.read_bytes().splitlines(keepends=True)[:5]))
    run_stages({**config(tmp_path), "resume": str(run)}, {}, ("explore",))
    assert plain(run, EpisodeRow) == plain(tree, EpisodeRow)
    assert len(read_rows(run, BranchRow)) == len(read_rows(tree, BranchRow))


def test_a_language_model_is_asked_for_every_prefix_once(tmp_path: Path) -> None:
    task = demo_task()
    written: list[BranchRow | VoteRow] = []

    def write(request: ChatRequest) -> str:
        return f"Point {request.key % 97}: the rent is high near station {request.key % 13}."

    def weigh(request: ChooseRequest) -> tuple[float, ...]:
        return (0.9, *([0.1 / (len(request.labels) - 1)] * (len(request.labels) - 1)))

    engine = ScriptedEngine(write, weigh)
    with RunStore(tmp_path) as store:
        known = BranchStore(on_new=written.append)
        world = LanguageWorld(engine, LanguageSettings(), known, 8)
        episodes = Episodes((task,), np.zeros(1, np.int64))
        policy = Policy(
            "explore", Random(), interventions(), make_router("action_conditional"), Objective(), OpenGate(),
            Stop(quorum=None),
        )  # fmt: skip
        recorder = TreeRecorder(store, "explore", policy, episodes, branches=False)
        asyncio.run(expand(world, episodes, policy, 2, recorder))
    messages = [request for request in engine.requests if isinstance(request, ChatRequest)]
    assert len(messages) == 4 + 16
    beliefs_and_votes = len(engine.requests) - len(messages)
    assert beliefs_and_votes == task.n_agents * (1 + 20 + 16)
    assert len(written) == 1 + 20 + 16
    assert len(read_rows(tmp_path, DecisionRow)) == 5


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("exploration.depth=0", r"exploration\.depth is 0"),
        ("exploration.depth=2", "mode one_step explores whole discussions"),
        ("exploration.behaviour=nobody", r"exploration\.behaviour is 'nobody'"),
        ("exploration.behaviour=best_of_4_free", "chooses among free messages"),
        ("exploration.behaviour=mlp", r"give from_run="),
        ("exploration.folds=[holdout]", r"exploration\.folds"),
    ],
)
def test_wrong_explorations_are_refused(override: str, words: str, config: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        run_stages(config(tmp_path / "runs", override), {}, ("explore",))
    assert not (tmp_path / "runs").exists()
