"""Training recovers a known function, is deterministic, and what is saved is what was trained."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.card import ModelCard, Training, parse_training
from controllers.dataset import BranchDataset
from controllers.mlp import CARD_FILE, MLP, WEIGHTS_FILE, load, save
from controllers.network import Network
from controllers.registry import NAMES, make_controller
from controllers.training import deterministic, losses, train
from sim.arrays import Floats, Ints, take
from sim.discussion.actions import ACTION_NAMES, ACTIONS, VOTE, Menu, interventions
from sim.discussion.inputs import STATE_GROUPS, STATE_NAMES
from sim.discussion.public import PublicView, opening
from sim.discussion.routing import action_conditional, candidates
from sim.discussion.state import observe
from sim.errors import UserError
from sim.randomness import keys
from sim.tasks.task import PublicTask

TASKS, ROWS = 12, 2400
QUICK = Training(hidden=16, epochs=12, patience=12, learning_rate=1e-2, batch_size=64)


def known_costs(x: Floats) -> Floats:
    """A function no constant can follow: which of four is best depends on two inputs (R, 4)."""
    a, b = x[:, 0], x[:, 12]
    return 0.4 + 0.3 * np.stack([a * b, a * (1 - b), (1 - a) * b, (1 - a) * (1 - b)], 1)


def synthetic(vote: bool = False, noise: float = 0.02) -> BranchDataset:
    rng = np.random.default_rng(5)
    x = rng.random((ROWS, len(STATE_NAMES)))
    x[:, 3] = 0.5
    costs = known_costs(x) + noise * rng.standard_normal((ROWS, 4))
    costs = np.concatenate([costs, np.full((ROWS, 1), 0.41)], 1)
    mask = np.ones((ROWS, 5), bool)
    mask[:, VOTE] = vote
    mask[: ROWS // 4, VOTE] = False
    return BranchDataset(
        actions=ACTIONS,
        tasks=tuple(f"t{i}" for i in range(TASKS)),
        families=tuple(f"f{i}" for i in range(TASKS)),
        x=x.astype(np.float32),
        mask=mask,
        objective=rng.random(ROWS).astype(np.float32),
        objectives=np.where(mask, costs, np.nan).astype(np.float32),
        task=(np.arange(ROWS) % TASKS).astype(np.int32),
        seed=np.zeros(ROWS, np.int64),
        round=np.ones(ROWS, np.int16),
        executed=rng.integers(4, size=ROWS).astype(np.int8),
    )


def share_of_constant_regret(model: MLP, sign: int = 1) -> float:
    """Expected regret of the network's choice on fresh inputs, over that of the best constant choice."""
    x = np.random.default_rng(9).random((4000, len(STATE_NAMES)))
    truth = sign * known_costs(x)
    regret = truth - truth.min(1, keepdims=True)
    achieved = regret[np.arange(4000), model.network(x).argmin(1)].mean()
    return float(achieved / regret.mean(0).min())


def view_of(beliefs: Floats, rounds: int = 2) -> PublicView:
    size, n_agents, _ = beliefs.shape
    task = PublicTask("t", "name", "description", (), ("a", "b", "c"), n_agents)
    rng = np.random.default_rng(7)
    novelty, overlap, shift = rng.random((3, size))
    last = rng.integers(n_agents, size=(1, size))
    view = opening(keys("test", np.arange(size)), beliefs, horizon=8, max_words=1.0, tasks=(task,) * size)
    return replace(
        view,
        rounds=np.full(size, rounds),
        words=rng.random((size, n_agents)),
        evidence=rng.random((size, n_agents)),
        novelty=novelty,
        overlap=overlap,
        shift=shift,
        last_speaker=last[0],
    )


def some_beliefs(size: int, n_agents: int = 4) -> Floats:
    return np.random.default_rng(6).dirichlet(np.ones(3), (size, n_agents))


def ask(model: MLP, view: PublicView, menu: Menu | None = None) -> Ints:
    options = candidates(view, menu or interventions(), action_conditional)
    return asyncio.run(model.propose(view, observe(view), options))


@pytest.fixture(scope="module")
def trained() -> MLP:
    return train(synthetic(), QUICK)


@pytest.fixture(scope="module")
def trained_vote() -> MLP:
    return train(synthetic(vote=True), QUICK, "mlp_vote")


@pytest.mark.parametrize(
    "target", ["delta_centred", "delta", "objective", "soft_labels", "hard_argmin", "expected_regret"]
)
def test_every_target_recovers_a_known_function(target: str) -> None:
    model = train(synthetic(), parse_training({**msgspec.to_builtins(QUICK), "target": target}))
    assert share_of_constant_regret(model) < 0.2
    found = model.card.validation
    assert found.regret is not None
    assert found.constant_regret is not None
    assert found.regret < 0.35 * found.constant_regret


def test_regression_predicts_the_values_themselves() -> None:
    x = np.random.default_rng(9).random((4000, len(STATE_NAMES)))
    truth = known_costs(x)
    raw = train(synthetic(), msgspec.structs.replace(QUICK, target="objective")).network(x)
    assert np.sqrt(np.square(raw - truth).mean()) < 0.02
    centred = train(synthetic(), QUICK).network(x)
    gap = (centred - centred.mean(1, keepdims=True)) - (truth - truth.mean(1, keepdims=True))
    assert np.sqrt(np.square(gap).mean()) < 0.02


def test_groups_hide_the_other_columns() -> None:
    model = train(synthetic(), msgspec.structs.replace(QUICK, groups=("belief",), epochs=2))
    x = np.random.default_rng(1).random((10, len(STATE_NAMES)))
    other = x.copy()
    hidden = [i for i, name in enumerate(STATE_NAMES) if STATE_GROUPS[name] != "belief"]
    other[:, hidden] += 5
    np.testing.assert_array_equal(model.network(x), model.network(other))
    assert len(model.network.columns) == len(STATE_NAMES) - len(hidden)


def test_training_is_bit_deterministic_and_seeded() -> None:
    quick = msgspec.structs.replace(QUICK, epochs=3)
    threads = torch.get_num_threads()
    first = train(synthetic(), quick)
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    again = train(synthetic(), quick)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert msgspec.json.encode(first.card) == msgspec.json.encode(again.card)
    assert first.network.digest() == again.network.digest()
    assert (
        train(synthetic(), msgspec.structs.replace(quick, seed=1)).network.digest() != first.network.digest()
    )


def test_training_runs_on_one_thread_and_restores_what_it_set() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with deterministic(0):
        assert torch.get_num_threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == 2
    assert not torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)


def test_constant_columns_and_early_stopping() -> None:
    model = train(synthetic(noise=0.3), msgspec.structs.replace(QUICK, epochs=60, patience=3))
    assert np.isfinite(model.network(np.full((1, len(STATE_NAMES)), 0.7))).all()
    assert model.network.scale[3] == 1.0
    curve, best = model.card.curve, model.card.validation.best_epoch
    assert len(curve) == best + 3 < 60
    assert curve[best - 1].validation_loss == min(point.validation_loss for point in curve)
    assert [point.epoch for point in curve] == list(range(1, len(curve) + 1))


def test_validation_tasks_are_never_trained_on() -> None:
    """The mutant: with costs of the validation families spoiled, weights after equal epochs stay the same."""
    quick = msgspec.structs.replace(QUICK, epochs=2, patience=9)
    data = synthetic()
    model = train(data, quick)
    held = [data.tasks.index(name) for name in model.card.validation_tasks]
    assert held
    assert not set(model.card.train_tasks) & set(model.card.validation_tasks)
    rows = np.isin(data.task, held)
    spoiled = replace(data, x=np.where(rows[:, None], data.x + 3, data.x).astype(np.float32))
    other = train(spoiled, quick)
    assert other.network.mean.tolist() == model.network.mean.tolist()
    assert [p.train_loss for p in other.card.curve] == [p.train_loss for p in model.card.curve]
    assert [p.validation_loss for p in other.card.curve] != [p.validation_loss for p in model.card.curve]


def test_vote_is_learned_by_the_vote_variant_only(trained: MLP, trained_vote: MLP) -> None:
    assert trained.card.actions == ACTIONS[:VOTE]
    assert (
        train(synthetic(vote=True), msgspec.structs.replace(QUICK, epochs=1)).card.actions == ACTIONS[:VOTE]
    )
    assert trained_vote.card.actions == ACTIONS
    with pytest.raises(UserError, match="no vote was explored"):
        train(synthetic(), QUICK, "mlp_vote")
    view = view_of(some_beliefs(50))
    menu = interventions(vote=True)
    assert (ask(trained, view, menu) != VOTE).all()
    first = view_of(some_beliefs(50), rounds=0)
    assert (ask(trained_vote, first, menu) != VOTE).all()


def test_horizon_labels() -> None:
    data = synthetic()
    labelled = data.with_label("rollout", 1 - data.objectives)
    reversed_costs = train(labelled, msgspec.structs.replace(QUICK, horizon="rollout"))
    assert share_of_constant_regret(reversed_costs, sign=-1) < 0.2
    single = np.full_like(data.objectives, np.nan)
    rows = np.arange(ROWS)
    single[rows, data.executed] = data.objectives[rows, data.executed]
    one = data.with_label("rollout", single)
    with pytest.raises(UserError, match="needs 2 labelled branches"):
        train(one, msgspec.structs.replace(QUICK, horizon="rollout"))
    raw = train(one, msgspec.structs.replace(QUICK, horizon="rollout", target="objective"))
    assert raw.card.validation.regret is None
    assert share_of_constant_regret(raw) < 0.2


def test_unlabelled_decisions_are_counted() -> None:
    data = synthetic()
    some = data.objectives.copy()
    some[:100] = np.nan
    model = train(
        data.with_label("rollout", some), msgspec.structs.replace(QUICK, horizon="rollout", epochs=1)
    )
    assert model.card.validation.unlabelled_decisions == 100


def test_saved_is_what_was_trained(trained: MLP, tmp_path: Path) -> None:
    save(trained, tmp_path / "mlp")
    loaded = load(tmp_path / "mlp")
    assert loaded.card == trained.card
    assert loaded.describe() == trained.describe()
    view = view_of(some_beliefs(200))
    options = candidates(view, interventions(), action_conditional)
    np.testing.assert_array_equal(
        loaded.predict(view, observe(view), options), trained.predict(view, observe(view), options)
    )
    np.testing.assert_array_equal(ask(loaded, view), ask(trained, view))
    save(loaded, tmp_path / "mlp")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlp"]


def test_numpy_and_torch_agree(trained: MLP) -> None:
    x = np.random.default_rng(2).random((100, len(STATE_NAMES)))
    network = trained.network
    layer = torch.from_numpy((x[:, network.columns] - network.mean) / network.scale)
    for depth, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        layer = layer @ torch.from_numpy(weight).double() + torch.from_numpy(bias).double()
        layer = layer if depth == len(network.weights) - 1 else torch.relu(layer)
    np.testing.assert_allclose(network(x), layer.numpy(), atol=1e-12)


def edit_card(folder: Path, **changes: object) -> None:
    card = msgspec.json.decode((folder / CARD_FILE).read_bytes())
    (folder / CARD_FILE).write_bytes(msgspec.json.encode({**card, **changes}))


def test_loading_refuses_what_does_not_fit(trained: MLP, tmp_path: Path) -> None:
    folder = tmp_path / "mlp"
    with pytest.raises(UserError, match=r"mlp\.json: no model card: .*train a controller first"):
        load(folder)
    for changes, message in (
        ({"layout": 0}, "layout is 0; this version reads 1"),
        ({"state_names": ["mood", *STATE_NAMES[1:]]}, r"differ .* \['mood', 'uncertainty'\]"),
        ({"state_names": STATE_NAMES[::-1]}, "the order of the columns"),
        ({"mean": [0.0] * len(STATE_NAMES)}, "weights are not those of mlp.json"),
        ({"surprise": 1}, "not a model card: .*surprise"),
    ):
        save(trained, folder)
        edit_card(folder, **changes)
        with pytest.raises(UserError, match=message):
            load(folder)
    save(trained, folder)
    (folder / WEIGHTS_FILE).write_bytes(b"\x08not safetensors")
    with pytest.raises(UserError, match="not a safetensors file"):
        load(folder)


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(4)))
def test_names_of_agents_do_not_matter(order: list[int]) -> None:
    """Agents renamed: inputs, predictions and proposals stay, bit for bit up to the order of sums."""
    model = _random_model()
    view = view_of(some_beliefs(64))
    place = np.array(order)
    renamed = replace(
        view,
        beliefs=view.beliefs[:, place],
        previous=view.previous[:, place],
        stale=view.stale[:, place],
        words=view.words[:, place],
        evidence=view.evidence[:, place],
        last_speaker=np.argsort(place)[view.last_speaker],
    )
    options = candidates(view, interventions(), action_conditional)
    turned = candidates(renamed, interventions(), action_conditional)
    np.testing.assert_allclose(
        model.predict(renamed, observe(renamed), turned),
        model.predict(view, observe(view), options),
        atol=1e-12,
    )
    np.testing.assert_array_equal(ask(model, renamed), ask(model, view))


def _random_model() -> MLP:
    """Random weights large enough that proposals differ between discussions."""
    rng = np.random.default_rng(3)
    width = len(STATE_NAMES)
    network = Network(
        columns=np.arange(width),
        mean=np.zeros(width),
        scale=np.ones(width),
        weights=(
            rng.standard_normal((width, 32)).astype(np.float32),
            rng.standard_normal((32, 4)).astype(np.float32),
        ),
        biases=(np.zeros(32, np.float32), np.zeros(4, np.float32)),
    )
    return MLP(network, _card())


def _card() -> ModelCard:
    return train(synthetic(), msgspec.structs.replace(QUICK, epochs=1, depth=1, hidden=2)).card


@pytest.mark.parametrize("n_agents", [3, 5, 8])
def test_one_network_serves_any_number_of_agents(trained: MLP, n_agents: int) -> None:
    assert set(ask(trained, view_of(some_beliefs(20, n_agents))).tolist()) <= set(range(4))


@given(st.integers(1, 200))
def test_a_discussion_gets_one_proposal_whatever_the_batch(size: int) -> None:
    network = _NETWORK
    x = np.random.default_rng(4).random((200, len(STATE_NAMES)))
    np.testing.assert_array_equal(network(x[:size]), network(x)[:size])
    np.testing.assert_array_equal(network(x[::-1][:size]), network(x)[::-1][:size])


_NETWORK = Network(
    columns=np.arange(len(STATE_NAMES)),
    mean=np.full(len(STATE_NAMES), 0.1),
    scale=np.full(len(STATE_NAMES), 0.3),
    weights=tuple(
        np.random.default_rng(i).standard_normal(shape).astype(np.float32)
        for i, shape in enumerate([(len(STATE_NAMES), 50), (50, 50), (50, 5)])
    ),
    biases=tuple(np.ones(width, np.float32) for width in (50, 50, 5)),
)


def test_proposals_are_the_best_predicted_admissible_ones(trained_vote: MLP) -> None:
    view = view_of(some_beliefs(300))
    menu = interventions(vote=True, without=("route",))
    options = candidates(view, menu, action_conditional)
    predicted = trained_vote.predict(view, observe(view), options)
    chosen = ask(trained_vote, view, menu)
    assert (chosen != ACTION_NAMES.index("route")).all()
    column = (options.actions == chosen[:, None]).argmax(1)
    np.testing.assert_array_equal(predicted[np.arange(300), column], predicted.min(1))
    np.testing.assert_allclose(predicted.mean(1), 0.0, atol=1e-12)
    np.testing.assert_array_equal(ask(trained_vote, take(view, np.array([7])), menu), chosen[[7]])
    only_free = Menu((ACTION_NAMES.index("free"),), (0,))
    with pytest.raises(UserError, match="none of these is admissible"):
        ask(trained_vote, view, only_free)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"hiden": 3}, "unknown field `hiden`"),
        ({"hidden": 0}, r"^training\.hidden is 0; it must be at least 1"),
        ({"tau": 0.0}, r"^training\.tau is 0\.0; it must be positive"),
        ({"validation": 1.0}, "strictly between 0 and 1"),
        ({"groups": []}, "at least one"),
        ({"target": "gain"}, "training: target: Invalid enum value 'gain'; choose from delta"),
        ({"target": "delta", "horizon": "task_accuracy"}, "means nothing"),
    ],
)
def test_settings_are_checked(data: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_training(data)


def test_masked_branches_carry_no_loss() -> None:
    """Costs and outputs of unknown branches change no loss and get no gradient."""
    known = torch.tensor([[True, True, False, True], [True, False, False, True]])
    costs = torch.rand(2, 4) * known
    for loss in losses(Training()).values():
        outputs = torch.rand(2, 4, requires_grad=True)
        value = loss(outputs, costs, known)
        torch.autograd.backward(value.sum())
        assert outputs.grad is not None
        assert torch.isfinite(outputs.grad).all()
        assert (outputs.grad[~known] == 0).all()
        moved = outputs.detach() + 7 * ~known
        torch.testing.assert_close(loss(moved, costs, known), value.detach())


def test_registry(trained: MLP, tmp_path: Path) -> None:
    for name in set(NAMES) - {"mlp", "mlp_vote", "llm", "llm_vote"}:
        assert make_controller(name).name == name
        assert make_controller(name).describe()["name"] == name
    assert make_controller("noisy_rules", eps=0.1).describe() == {"name": "noisy_rules", "eps": 0.1}
    with pytest.raises(UserError, match="'bossy' is unknown; it must be one of rules, rules_vote, random"):
        make_controller("bossy")
    with pytest.raises(UserError, match="run the train stage first"):
        make_controller("mlp")
    with pytest.raises(UserError, match="needs a language model"):
        make_controller("llm")
    save(trained, tmp_path / "mlp")
    assert make_controller("mlp", path=tmp_path / "mlp", training=QUICK).name == "mlp"
    with pytest.raises(UserError, match="other settings"):
        make_controller("mlp", path=tmp_path / "mlp", training=Training())
    with pytest.raises(UserError, match="holds 'mlp', not 'mlp_vote'"):
        make_controller("mlp_vote", path=tmp_path / "mlp")


def test_proposing_needs_no_torch(trained: MLP, tmp_path: Path) -> None:
    save(trained, tmp_path / "mlp")
    code = (
        "import sys, controllers\nfrom controllers.registry import make_controller\n"
        "from pathlib import Path\nimport numpy as np\n"
        f"model = make_controller('mlp', path=Path({str(tmp_path / 'mlp')!r}))\n"
        f"model.network(np.zeros((2, {len(STATE_NAMES)})))\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
