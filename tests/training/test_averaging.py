import copy
import math

import pytest
import torch
from torch import nn

from divconq.accel.graphs import Captured
from divconq.masks import Masks
from divconq.model import Embedder, SmallNet
from divconq.runs.checkpoints import masks_state, network_state
from divconq.runs.exported import load_model
from divconq.runs.folder import Run, conquered_model
from divconq.train import train
from divconq.training.averaging import WeightAverages
from divconq.training.embedding import embed
from divconq.training.setup import prepare
from divconq.training.step import TrainingStep


def slow_average(history, decay):
    """The average of a list of numbers; the first is the start."""
    average = history[0]
    for t, value in enumerate(history[1:]):
        share = max(1 - decay, 9 / (10 + t))
        average = (1 - share) * average + share * value
    return average


def parts():
    torch.manual_seed(0)
    return {"model": nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), "masks": Masks(4, 2)}


def walk(modules, seed):
    """Move all parameters at random."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in modules.values():
            for parameter in module.parameters():
                parameter += torch.randn(parameter.shape, generator=draw)


def values(modules):
    return {
        f"{m}.{n}": p.detach().clone() for m, module in modules.items() for n, p in module.named_parameters()
    }


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("decay", [0.2, 0.9, 0.999])
def test_averages_equal_those_of_a_loop(decay):
    modules = parts()
    averages, history = WeightAverages(decay, modules), [values(modules)]
    for step in range(40):
        walk(modules, step)
        averages.update()
        history.append(values(modules))
    assert (
        {*averages.averages}
        == {*history[0]}
        == {*("model.0.weight", "model.0.bias", "model.1.weight", "model.1.bias", "masks.weight")}
    )
    for name, average in averages.averages.items():
        expected = slow_average([state[name].double() for state in history], decay)
        assert torch.allclose(average.double(), expected, rtol=0, atol=1e-5), name
        assert (average - history[-1][name]).abs().max() > 1e-2


def test_the_first_weights_are_soon_forgotten():
    """With a constant decay, 99% of the first weights would still be there after ten steps."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    averages = WeightAverages(0.999, {"model": layer})
    nn.init.ones_(layer.weight)
    for _ in range(10):
        averages.update()
    left = float(1 - averages.averages["model.weight"].double())
    assert left == pytest.approx(1 / math.comb(19, 9), rel=1e-2), "the product of (1 + t) / (10 + t)"


def test_the_averages_take_the_place_of_the_weights_and_the_weights_come_back():
    modules = parts()
    averages = WeightAverages(0.9, modules)
    walk(modules, 0)
    averages.update()
    weights, places = values(modules), [p.data_ptr() for m in modules.values() for p in m.parameters()]
    average = {name: value.clone() for name, value in averages.averages.items()}
    with averages.applied():
        assert same(values(modules), average)
        with averages.applied():
            assert same(values(modules), average)
        assert same(values(modules), average)
    assert same(values(modules), weights)

    def fail():
        with averages.applied():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert same(values(modules), weights)
    assert not same(weights, average)
    assert [p.data_ptr() for m in modules.values() for p in m.parameters()] == places


def test_everything_changes_in_place():
    """A captured step and a captured embedding pass read fixed addresses."""
    modules = parts()
    averages = WeightAverages(0.9, modules)
    tensors = [*averages.state_dict().values(), *(p for m in modules.values() for p in m.parameters())]
    before = [tensor.data_ptr() for tensor in tensors]
    averages.update()
    averages.restart()
    averages.restart("masks")
    averages.load_state_dict(copy.deepcopy(averages.state_dict()))
    with averages.applied():
        averages.update()
    after = [*averages.state_dict().values(), *(p for m in modules.values() for p in m.parameters())]
    assert [tensor.data_ptr() for tensor in after] == before


def test_the_masks_restart_alone():
    modules = parts()
    averages = WeightAverages(0.9, modules)
    walk(modules, 0)
    averages.update()
    before = {name: value.clone() for name, value in averages.averages.items()}
    averages.restart("masks")
    changed = {name for name, value in averages.averages.items() if not torch.equal(value, before[name])}
    assert changed == {"masks.weight"}
    assert torch.equal(averages.averages["masks.weight"], modules["masks"].weight)
    assert int(averages.steps) == 1
    averages.restart()
    assert same(averages.averages, values(modules))
    assert int(averages.steps) == 0


def test_a_state_continues_exactly():
    modules, others = parts(), parts()
    averages, other = WeightAverages(0.9, modules), WeightAverages(0.9, others)
    for step in range(3):
        walk(modules, step)
        averages.update()
    for name, module in modules.items():
        others[name].load_state_dict(module.state_dict())
    other.load_state_dict(copy.deepcopy(averages.state_dict()))
    for some, of in ((modules, averages), (others, other)):
        walk(some, 9)
        of.update()
    assert same(averages.state_dict(), other.state_dict())


def test_a_state_of_other_parameters_is_refused():
    averages = WeightAverages(0.9, parts())
    state = averages.state_dict()
    without = {name: value for name, value in state.items() if name != "masks.weight"}
    for wrong in (without, {**state, "masks.weight": torch.ones(3)}, {**state, "steps": torch.tensor(1.0)}):
        with pytest.raises(ValueError, match=r"the average of (masks.weight|steps) must be torch.* of shape"):
            averages.load_state_dict(wrong)


def test_without_a_decay_nothing_is_averaged():
    modules = parts()
    averages, before = WeightAverages(None, modules), values(modules)
    averages.update()
    averages.restart()
    averages.load_state_dict({"masks.weight": torch.zeros(2, 4)})
    with averages.applied():
        assert same(values(modules), before)
    assert averages.state_dict() == {}


# In a run


@pytest.fixture
def averaged(tiny):
    return tiny.replace(ema=0.8, epochs=3, lr=1e-3)


def test_averages_of_a_run_equal_those_of_a_loop(averaged, tmp_path, monkeypatch):
    """The masks split before the second epoch and are kept at the division before the third."""
    history, real = {}, TrainingStep.__call__

    def weights_of(step):
        model, masks = step.model, step.objective.masks
        return {"model": model.state_dict(), "masks": masks.state_dict()}

    def noted(step, *batch):
        if not history:
            history["steps"] = [copy.deepcopy(weights_of(step))]
        history.setdefault("before", []).append(copy.deepcopy(weights_of(step)))
        outcome = real(step, *batch)
        history["steps"].append(copy.deepcopy(weights_of(step)))
        return outcome

    monkeypatch.setattr(TrainingStep, "__call__", noted)
    train(averaged, tmp_path / "run")
    state = Run.open(tmp_path / "run").load()
    averages = state["averages"]
    steps = len(history["steps"]) - 1
    assert int(averages["steps"]) == steps == 12
    for name in Embedder(SmallNet(), SmallNet.num_features, 16).state_dict():
        if name not in ("mean", "std"):
            expected = slow_average([one["model"][name] for one in history["steps"]], 0.8)
            assert torch.allclose(averages[f"model.{name}"], expected, rtol=0, atol=1e-6), name
    average, last_division = history["before"][8]["masks"]["weight"], 8
    for t in range(last_division, steps):
        share = max(0.2, 9 / (10 + t))
        average = (1 - share) * average + share * history["steps"][t + 1]["masks"]["weight"]
    assert torch.allclose(averages["masks.weight"], average, rtol=0, atol=1e-6)
    assert not torch.allclose(averages["masks.weight"], state["divide_and_conquer"]["objective.masks.weight"])


def test_training_does_not_depend_on_the_average(averaged, tmp_path):
    config = averaged.replace(division="random", k_max=4, singletons="keep")
    on, off = train(config, tmp_path / "on"), train(config.replace(ema=None), tmp_path / "off")
    training = ("epoch", "k", "loss", "overlap", "without_positive", "left_out")
    assert [[record[name] for name in training] for record in on] == [
        [record[name] for name in training] for record in off
    ]
    assert [record["map@r"] for record in on] != [record["map@r"] for record in off]
    a, b = (Run.open(tmp_path / name).load() for name in ("on", "off"))
    assert same(a["model"], b["model"])
    weight = "objective.masks.weight"
    assert torch.equal(a["divide_and_conquer"][weight], b["divide_and_conquer"][weight])
    assert b["averages"] == {}


def test_the_average_is_scored_divided_saved_and_exported(averaged, tmp_path):
    records = train(averaged.replace(k_max=1), tmp_path / "run")
    run = Run.open(tmp_path / "run")
    state = run.load()
    assert not torch.equal(state["averages"]["model.head.bias"], state["model"]["head.bias"])

    job = prepare(averaged.replace(k_max=1, ema=None))  # a model with the averages as its weights
    job.model.load_state_dict(
        {**state["model"], **{n[6:]: v for n, v in state["averages"].items() if n.startswith("model.")}}
    )
    with torch.no_grad():
        job.dc.masks.weight.copy_(state["averages"]["masks.weight"])
    scores = job.scores()
    assert {name: records[-1][name] for name in scores} == scores
    x = torch.rand(4, 3, 16, 16)
    with torch.no_grad():
        expected = job.model.eval()(x) * job.dc.masks.conquer()
        for final in (load_model(tmp_path / "run"), conquered_model(run.config, state)):
            assert torch.allclose(final(x), expected, atol=1e-6)
        raw = conquered_model(run.config, {**state, "averages": {}})
        assert not torch.allclose(raw(x), expected, atol=1e-4)
        best = run.load("best")
        assert torch.equal(run.model("best")(x), conquered_model(run.config, best)(x))
        assert {*best["averages"]} == {*state["averages"]}


def test_everything_that_embeds_uses_the_average(averaged):
    job = prepare(averaged)
    with torch.no_grad():
        for value in job.averages.averages.values():
            value += 0.1 * torch.rand(value.shape, generator=torch.Generator().manual_seed(1))
    before = values({"model": job.model, "masks": job.dc.masks})
    model, mask = copy.deepcopy(job.model), None  # the mask rests while K = 1
    model.load_state_dict(
        {n[6:]: v for n, v in job.averages.averages.items() if n.startswith("model.")}, strict=False
    )
    sizes = {"size": 16, "resize": 20}
    assert torch.equal(job.embed(job.train), embed(model, job.train, mask, **sizes))
    assert torch.equal(job.embed_to_divide(), embed(model, job.train, mask, **sizes))
    features = embed(model, job.train, layer="features", **sizes)
    assert torch.equal(job.embed(job.train, features=True), features)
    assert not torch.equal(features, embed(job.model, job.train, layer="features", **sizes))
    assert same(values({"model": job.model, "masks": job.dc.masks}), before)


def test_a_checkpoint_without_averages_starts_them_from_its_weights(averaged, tmp_path):
    train(averaged.replace(epochs=2, ema=None), tmp_path / "run")
    state = Run.open(tmp_path / "run").load()
    assert torch.equal(network_state(state)["head.bias"], state["model"]["head.bias"])
    records = train(averaged, tmp_path / "run", resume=True)
    assert len(records) == 3
    assert int(Run.open(tmp_path / "run").load()["averages"]["steps"]) == 4, "those of the last epoch"


def test_the_state_that_embeds_has_averages_and_buffers():
    weight, count = torch.ones(2, 4), torch.tensor(2)
    state = {
        "model": {"weight": torch.zeros(1), "running_mean": torch.full((1,), 5.0)},
        "divide_and_conquer": {"objective.masks.weight": weight, "objective.masks.count": count},
        "averages": {"model.weight": torch.ones(1), "masks.weight": 3 * weight, "steps": torch.tensor(1)},
    }
    assert {name: float(value) for name, value in network_state(state).items()} == {
        "weight": 1.0,
        "running_mean": 5.0,
    }
    assert torch.equal(masks_state(state)["weight"], 3 * weight)
    assert int(masks_state(state)["count"]) == 2


# On a GPU


@pytest.mark.gpu
def test_a_captured_update_and_a_captured_pass_see_the_averages():
    """Two graphs share the averages; the number of steps advances in every replay."""
    device = torch.device("cuda")
    modules, twins = ({name: m.to(device) for name, m in parts().items()} for _ in range(2))
    averages, twin = WeightAverages(0.9, modules), WeightAverages(0.9, twins)

    def step(of, average):
        def one(x):
            with torch.no_grad():
                for module in of.values():
                    for parameter in module.parameters():
                        parameter += x
            average.update()
            return (x + 1,)

        return one

    captured = [Captured(step(modules, averages), device) for _ in range(2)]
    for i in range(12):
        x = torch.full((), 0.5 + i, device=device)
        captured[i % 2](x)
        step(twins, twin)(x)
    assert all(one.graph is not None for one in captured)
    assert int(averages.steps) == 12
    for name, value in twin.averages.items():
        assert torch.allclose(averages.averages[name], value, rtol=1e-5)
    see = Captured(lambda x: (modules["model"][0](x),), device)
    x = torch.rand(4, 3, device=device)
    for _ in range(4):
        (raw,) = (y.clone() for y in see(x))
        with averages.applied():
            (average,) = (y.clone() for y in see(x))
    expected = nn.functional.linear(x, averages.averages["model.0.weight"], averages.averages["model.0.bias"])
    assert torch.allclose(average, expected, rtol=1e-4)
    assert torch.allclose(raw, modules["model"][0](x), rtol=1e-4)
    assert not torch.allclose(raw, average, rtol=1e-2)
