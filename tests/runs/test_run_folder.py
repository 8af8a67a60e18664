import json

import pytest
import torch
from safetensors.torch import load_file

from divconq.analysis import read_run
from divconq.config import Config
from divconq.divide_and_conquer import DivideAndConquer
from divconq.losses import NPairsLoss
from divconq.masks import MASK_ACTIVATIONS, Masks
from divconq.model import make_model
from divconq.runs import checkpoints
from divconq.runs.folder import Run


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", Config.of(backbone="small", pretrained=False, dim=8, image_size=32))


def test_an_existing_folder_is_refused_and_not_changed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("keep")
    with pytest.raises(
        ValueError, match="exists already; choose another --out, or continue it with --resume"
    ):
        Run.create(tmp_path / "run", Config())
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_open_returns_the_config(run):
    assert Run.open(run.folder).config == run.config


def test_a_folder_without_config_is_not_a_run(tmp_path):
    with pytest.raises(ValueError, match=r"is not a run folder: it has no config.yaml"):
        Run.open(tmp_path)


def test_the_log_has_one_object_per_epoch_and_can_be_rewound(run):
    for epoch in (1, 2, 3):
        run.log({"epoch": epoch, "loss": 1 / epoch})
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "lo')  # the power failed here
    assert [record["epoch"] for record in run.metrics()] == [1, 2, 3]
    run.rewind(2, 2, run.config.replace(epochs=9))
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    assert Run.open(run.folder).config.optimisation.epochs == 9


def test_rewind_removes_later_divisions_and_unfinished_files(run):
    for epoch in (1, 2, 3):
        run.save_division(epoch, torch.zeros(4, dtype=torch.int64), Masks(8, 2))
    leftovers = [run.folder / ".last.pt.17.tmp", run.folder / "divisions" / ".epoch_0004.safetensors.17.tmp"]
    for file in leftovers:
        file.write_bytes(b"half")
    run.rewind(2, 3, run.config)
    kept = sorted(path.name for path in (run.folder / "divisions").iterdir())
    assert kept == ["epoch_0001.safetensors", "epoch_0002.safetensors"]
    assert not any(file.exists() for file in leftovers)


def test_a_run_without_a_checkpoint_starts_again_if_at_most_one_epoch_is_lost(run):
    run.log({"epoch": 1})  # killed before its first checkpoint was written
    with pytest.warns(UserWarning, match="holds no checkpoint yet; training starts from the beginning"):
        assert run.resume() is None
    run.log({"epoch": 2})
    with pytest.raises(ValueError, match=r"holds no last.pt"):
        run.resume()


def test_keys_of_an_older_log_are_read_by_their_present_names(run):
    run.log({"epoch": 1, "lonely": 3, "waiting": 4, "loss": 0.5})
    run.log({"epoch": 2, "without_positive": 5, "left_out": 6})
    assert run.metrics() == [
        {"epoch": 1, "without_positive": 3, "left_out": 4, "loss": 0.5},
        {"epoch": 2, "without_positive": 5, "left_out": 6},
    ]


def test_a_division_is_saved_as_clusters_and_masks(run):
    clusters = torch.tensor([0, 1, 1])
    masks = Masks(8, 2)
    masks.split_()
    run.save_division(4, clusters, masks)
    saved = load_file(run.folder / "divisions" / "epoch_0004.safetensors")
    assert saved.keys() == {"clusters", "masks"}
    assert torch.equal(saved["clusters"], clusters)
    assert torch.equal(saved["masks"], masks.active())


@pytest.mark.parametrize("step", [0, 3])
def test_old_and_new_checkpoints_hold_the_same_model_and_algorithm(run, step):
    torch.manual_seed(0)
    model, labels = make_model("small", run.config.model.dim), torch.arange(40) % 4
    dc = DivideAndConquer(
        NPairsLoss(), labels, dim=run.config.model.dim, batch=4, division="random", divide_every=7
    )
    dc.epoch = 7
    dc.divide(None, epoch=7)
    dc.divided_at = 7 if step else None
    torch.nn.init.uniform_(dc.masks.weight, 0.5, 2.0)
    x = torch.rand(2, 3, 32, 32)
    old = {
        "masks": dc.masks.state_dict(),
        "loss": dc.loss.state_dict(),
        "partition": dc.partition.clusters,
        "k": 2,
    }
    expected = model.eval()(x) * dc.masks.conquer()
    for name, layout in ((2, old), (3, {"divide_and_conquer": dc.state_dict()})):
        about = {"format": f"divconq checkpoint {name}", "epoch": 7, "step": step}
        checkpoints.save(run.folder, "last", {"model": model.state_dict(), **layout, **about})
        state = run.load()
        assert state["format"] == about["format"]
        torch.testing.assert_close(run.model()(x), expected)
        assert torch.equal(checkpoints.clusters_state(state), dc.partition.clusters)
        fresh = DivideAndConquer(
            NPairsLoss(), labels, dim=run.config.model.dim, batch=4, division="random", divide_every=7
        )
        fresh.load_state_dict(checkpoints.algorithm_state(state))
        assert torch.equal(fresh.masks.weight, dc.masks.weight)
        assert (fresh.epoch, fresh.divided_at, fresh.partition.k) == (7, 7 if step else None, 2)
        assert fresh.division_due(7) == (step == 0)


@pytest.mark.parametrize("conquer", ["sum", "plain"])
@pytest.mark.parametrize("layout", [2, 3])
def test_a_mask_that_was_trained_while_k_was_1_becomes_part_of_the_head(tmp_path, conquer, layout):
    """Up to format 3 the mask of K = 1 was trained. The model stays what it was, although the mask now rests."""
    torch.manual_seed(0)
    config = Config.of(backbone="small", pretrained=False, dim=8, image_size=32, conquer=conquer)
    run, model = Run.create(tmp_path / "run", config), make_model("small", 8)
    dc = DivideAndConquer(NPairsLoss(), torch.arange(40) % 4, dim=8, batch=4, conquer=conquer)
    torch.nn.init.normal_(dc.masks.weight)
    x = torch.rand(2, 3, 32, 32)
    was = dc.masks.weight[0].relu().detach() if conquer == "sum" else torch.ones(8)
    expected = model.eval()(x) * was
    parts = {"masks": dc.masks.state_dict(), "loss": dc.loss.state_dict(), "k": 1}
    old = (
        {**parts, "partition": dc.partition.clusters}
        if layout == 2
        else {"divide_and_conquer": dc.state_dict()}
    )
    about = {"format": f"divconq checkpoint {layout}", "epoch": 7, "step": 0}
    checkpoints.save(run.folder, "last", {"model": model.state_dict(), **old, **about})
    torch.testing.assert_close(run.model()(x), expected)
    snapshot = read_run(run.folder).snapshot()
    assert torch.equal(snapshot.masks, torch.ones(1, 8))
    torch.testing.assert_close(snapshot.network(x), expected)
    torch.testing.assert_close(run.resume()["model"], run.load()["model"])
    new = {"divide_and_conquer": dc.state_dict(), "epoch": 7, "step": 0}
    checkpoints.save(run.folder, "last", {"model": model.state_dict(), **new})
    torch.testing.assert_close(run.model()(x), model(x))


@pytest.mark.parametrize("activation", list(MASK_ACTIVATIONS))
def test_the_folder_holds_masks_after_their_activation(tmp_path, activation):
    torch.manual_seed(0)
    config = Config.of(backbone="small", pretrained=False, dim=8, image_size=32, mask_activation=activation)
    run, model = Run.create(tmp_path / "run", config), make_model("small", 8).eval()
    dc = DivideAndConquer(
        NPairsLoss(),
        torch.arange(40) % 4,
        dim=8,
        batch=4,
        division="random",
        mask_activation=config.masks.activation,
    )
    dc.divide(None, epoch=3)
    torch.nn.init.normal_(dc.masks.weight)
    dc.masks.project_()
    x, masks = torch.rand(2, 3, 32, 32), dc.masks.active().detach()
    run.save_division(3, dc.partition.clusters, dc.masks)
    about = {"divide_and_conquer": dc.state_dict(), "epoch": 3, "step": 0}
    checkpoints.save(run.folder, "last", {"model": model.state_dict(), **about})
    record = read_run(run.folder)
    assert torch.equal(record.divisions[0].masks, masks)
    assert torch.equal(record.snapshot().masks, masks)
    torch.testing.assert_close(run.model()(x), model(x) * masks.sum(0))


def test_a_byte_order_mark_hides_no_line_of_the_log(run):
    for epoch in (1, 2):
        run.log({"epoch": epoch})
    file = run.folder / "metrics.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert [record["epoch"] for record in run.metrics()] == [1, 2]


def test_a_damaged_line_within_the_log_is_refused_and_nothing_is_lost(run):
    for epoch in (1, 2, 3):
        run.log({"epoch": epoch})
    file = run.folder / "metrics.jsonl"
    damaged = file.read_text().replace('{"epoch": 2}', '{"epoch": ')
    file.write_text(damaged)
    with pytest.raises(ValueError, match=r"line 2 of .*metrics\.jsonl is damaged; remove it"):
        run.rewind(3, 3, run.config)
    assert file.read_text() == damaged


def test_a_division_is_saved_where_its_folder_was_lost(run):
    (run.folder / "divisions").rmdir()
    run.save_division(4, torch.tensor([0]), Masks(8, 2))
    assert (run.folder / "divisions" / "epoch_0004.safetensors").is_file()
