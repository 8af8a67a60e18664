import pytest
import torch
from safetensors.torch import save_file

from divconq.analysis import read_run, subspace
from divconq.config import Config
from divconq.masks import Masks
from divconq.model import make_model
from divconq.runs import checkpoints
from divconq.runs.folder import Run
from divconq.train import train

SETTINGS = Config.of(backbone="small", pretrained=False, dim=8, epochs=4, k_max=4, divide_every=2)


def make_run(tmp_path, **changes):
    return Run.create(tmp_path / "run", SETTINGS.replace(**changes))


def masks_of(k, **settings):
    masks = Masks(8, 4, **settings)
    while masks.k < k:
        masks.split_()
    return masks


def test_a_whole_run_is_read(tmp_path, tiny):
    train(tiny, tmp_path / "run")
    record = read_run(tmp_path / "run")
    assert record.config == tiny
    assert [row["epoch"] for row in record.metrics] == list(range(1, tiny.optimisation.epochs + 1))
    assert record.curve("loss") == (
        list(range(1, tiny.optimisation.epochs + 1)),
        [row["loss"] for row in record.metrics],
    )
    assert record.curve("unheard of") == ([], [])
    assert [division.k for division in record.divisions][-1] == tiny.division.k_max
    assert not [line for line in record.missing if "stopped" in line or ".pt" in line or "model" in line]

    snapshot = record.snapshot()
    model, masks = snapshot.network, snapshot.masks
    assert len(masks) == tiny.division.k_max
    final, x = (
        Run.open(tmp_path / "run").model(),
        torch.randn(3, 3, tiny.data.image_size, tiny.data.image_size),
    )
    with torch.no_grad():
        expected = torch.nn.functional.normalize(final(x))
        torch.testing.assert_close(subspace(model(x), masks.sum(0)), expected)


def test_divisions_are_sorted_and_keep_empty_clusters(tmp_path):
    run = make_run(tmp_path)
    for epoch, k in ((10_002, 4), (2, 2), (998, 4)):
        run.save_division(epoch, torch.zeros(5, dtype=torch.int64), masks_of(k))
    divisions = read_run(run.folder).divisions
    assert [(division.epoch, division.k) for division in divisions] == [(2, 2), (998, 4), (10_002, 4)]
    assert divisions[0].clusters.tolist() == [0] * 5
    assert torch.equal(divisions[1].masks, torch.ones(4, 8))


def test_a_run_that_stopped_at_once(tmp_path):
    record = read_run(make_run(tmp_path).folder)
    assert record.metrics == ()
    assert record.divisions == ()
    with pytest.raises(ValueError, match=r"holds no last.pt: it stopped before its first checkpoint"):
        record.snapshot()
    assert record.missing == (
        "The log is empty: the run stopped during its first epoch.",
        "There are no divisions: the run has 0 epochs and divides every 2.",
        "There is no last.pt: the network cannot be analysed.",
        "There is no best.pt: the best epoch cannot be analysed.",
        "There is no model.safetensors: there is no final model.",
    )


def test_a_run_that_stopped_early(tmp_path):
    run = make_run(tmp_path)
    for epoch in (1, 2):
        run.log({"epoch": epoch, "loss": 1.0})
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "lo')
    run.save_division(2, torch.tensor([0, 1]), masks_of(2))
    missing = read_run(run.folder).missing
    assert missing[:3] == (
        "The run stopped early, after 2 of 4 epochs.",
        "The log has no recall@1: no epoch was evaluated.",
        "K reached 2 of k_max = 4.",
    )


def test_a_baseline_has_no_divisions_and_no_subspaces(tmp_path):
    run = make_run(tmp_path, k_max=1, masks="none")
    run.log({"epoch": 4, "loss": 1.0, "recall@1": 0.5})
    missing = read_run(run.folder).missing
    assert missing[:3] == (
        "The log has no train_recall@1, so training and test scores cannot be compared.",
        "There are no divisions: k_max is 1, so all images are in one cluster.",
        "There are no subspaces: the run was trained with masks none.",
    )


def test_a_folder_without_divisions_is_read(tmp_path):
    run = make_run(tmp_path)
    (run.folder / "divisions").rmdir()
    assert read_run(run.folder).divisions == ()


def test_damaged_divisions_are_listed_and_left_out(tmp_path):
    run = make_run(tmp_path)
    run.save_division(2, torch.tensor([0, 1]), masks_of(2))
    run.save_division(4, torch.tensor([0, 1, 1]), masks_of(4))
    folder = run.folder / "divisions"
    (folder / "epoch_0006.safetensors").write_bytes(b"half")
    save_file({"labels": torch.tensor([7]), "masks": torch.ones(2, 8)}, folder / "epoch_0008.safetensors")
    save_file({"labels": torch.tensor([0.5]), "masks": torch.ones(2, 8)}, folder / "epoch_0010.safetensors")
    save_file({"labels": torch.tensor([0])}, folder / "epoch_0012.safetensors")
    (folder / ".epoch_0014.safetensors.17.tmp").write_bytes(b"half")
    record = read_run(run.folder)
    assert [division.epoch for division in record.divisions] == [2, 4]
    damaged = [line for line in record.missing if "is left out" in line]
    assert [line.split()[0] for line in damaged] == [
        f"divisions/epoch_{e:04d}.safetensors" for e in (6, 8, 10, 12)
    ]
    assert "clusters must be from 0 to 1" in damaged[1]
    sentence = "The divisions have different numbers of images, so they cannot be compared with each other."
    assert sentence in record.missing


@pytest.mark.parametrize("key", ["clusters", "labels"])
def test_divisions_of_this_and_of_older_versions_are_read(tmp_path, key):
    run = make_run(tmp_path)
    file = run.folder / "divisions" / "epoch_0002.safetensors"
    save_file({key: torch.tensor([1, 0, 1]), "masks": torch.ones(2, 8)}, file)
    (division,) = read_run(run.folder).divisions
    assert (division.epoch, division.k, division.clusters.tolist()) == (2, 2, [1, 0, 1])


@pytest.mark.parametrize("kind", ["learned", "fixed", "none"])
def test_snapshot_has_the_network_and_masks_of_a_checkpoint(tmp_path, kind):
    run, model, masks = make_run(tmp_path, masks=kind), make_model("small", 8), masks_of(2, kind=kind)
    if kind == "learned":
        masks.weight.data[1] = -1
    whole = {"epoch": 3, "partition": torch.zeros(4, dtype=torch.int64)}
    checkpoints.save(run.folder, "last", {**whole, "model": model.state_dict(), "masks": masks.state_dict()})
    read = read_run(run.folder)
    found, rows = read.snapshot().network, read.snapshot().masks
    assert torch.equal(rows, masks.active().detach())
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), model.parameters(), strict=True))
    assert not found.training
    with pytest.raises(ValueError, match=r"holds no best.pt"):
        read.snapshot("best")


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    run = make_run(tmp_path)
    state = {"model": make_model("small", 16).state_dict(), "masks": masks_of(2).state_dict()}
    whole = {"epoch": 3, "partition": torch.zeros(4, dtype=torch.int64)}
    checkpoints.save(run.folder, "last", {**whole, **state})
    with pytest.raises(ValueError, match=r"last.pt does not fit config.yaml \(Error"):
        read_run(run.folder).snapshot()


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is not a run folder: it has no config.yaml"):
        read_run(tmp_path)
