"""Names, arguments and files are checked before the data is opened, and weights before images are decoded."""

import json

import pytest
import torch
from safetensors.torch import save_file

from divconq.experiments.runner import check_losses, plan
from divconq.experiments.table import parse_table
from divconq.losses import LOSSES, check_loss
from divconq.model import make_model
from divconq.runs.folder import Run
from divconq.train import train
from divconq.training import setup
from divconq.training.setup import prepare


class OpenedError(Exception):
    """The data is opened."""


@pytest.fixture
def no_data(monkeypatch):
    def opened(*some, **more):
        raise OpenedError

    monkeypatch.setattr(setup, "open_data", opened)


EARLY = [
    ({"loss": "foo"}, "there is no loss 'foo'"),
    ({"loss_args": {"foo": 3}}, "margin has no argument 'foo'"),
    ({"loss_args": {"alpha": [1, 2]}}, r"alpha of the loss margin must be a number, got \[1, 2\]"),
    (
        {"loss": "triplet", "loss_args": {"alpha": 1e300}},
        "triplet fails on a small batch with alpha=1e[+]300",
    ),
    (
        {"beta": 0.2},
        "beta - alpha must be above 0, got beta=0.2, alpha=0.2: no positive can be close enough; raise",
    ),
    (
        {"beta": 1.9, "alpha": 0.1},
        "beta [+] alpha must be below 2, got beta=1.9, alpha=0.1: two unit vectors are",
    ),
    (
        {"loss": "triplet", "beta": 0.9},
        "the loss triplet has no argument 'beta', it accepts alpha, squared, all_pairs; leave out --beta",
    ),
    (
        {"loss": "CircleLoss", "alpha": 0.9},
        "the loss CircleLoss has no argument 'alpha', it accepts m, gamma",
    ),
    (
        {"beta": 0.9, "loss_args": {"beta": 1.0}},
        "beta of the loss margin is given twice, as --beta 0.9 and as --loss.beta 1.0; leave one of them out",
    ),
    ({"loss": "TripletMarginLoss", "miner": "foo"}, "there is no miner 'foo'"),
    (
        {"loss": "TripletMarginLoss", "miner": "TripletMarginMiner", "miner_args": {"margin": "abc"}},
        "margin of TripletMarginMiner must be a number, got 'abc'",
    ),
    ({"backbone": "resnet51"}, "unknown backbone 'resnet51'"),
    ({"pretrained": True}, "'small' has no pretrained weights"),
    ({"pooling": "max"}, "pooling of the backbone 'small' must be 'avg'"),
    ({"backbone_weights": "nowhere.safetensors"}, "there is no file nowhere.safetensors"),
    ({"import_file": "nowhere.py"}, "--import: there is no file nowhere.py"),
    ({"crop": "random_resized", "crop_scale": (1.0, 0.5)}, "crop_scale must be the least and largest share"),
]


@pytest.mark.parametrize(("change", "message"), EARLY)
def test_names_arguments_and_files_are_checked_before_the_data(tiny, no_data, change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(tiny.replace(**change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_run_folder_is_checked_before_the_data(tiny, no_data, tmp_path):
    with pytest.raises(ValueError, match=r"exists already; choose another --out"):
        train(tiny, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be created in .*file; choose an --out where you may write"):
        train(tiny, tmp_path / "file" / "run")
    with pytest.raises(ValueError, match="is not a run folder"):
        train(tiny, tmp_path / "nowhere", resume=True)
    with pytest.raises(OpenedError):
        train(tiny, tmp_path / "run")


def test_weights_that_do_not_fit_are_refused_before_images_are_decoded(tiny, monkeypatch, tmp_path):
    save_file({"conv.weight": torch.zeros(3)}, tmp_path / "w.safetensors")
    monkeypatch.setattr(setup, "_read", lambda *some: pytest.fail("images are decoded"))
    with pytest.raises(ValueError, match="does not fit the backbone"):
        prepare(tiny.replace(backbone_weights=tmp_path / "w.safetensors"))


def test_random_numbers_drawn_while_images_are_decoded_change_nothing(tiny, monkeypatch):
    config = tiny.replace(loss="ProxyAnchorLoss")  # its proxies are drawn after the network
    before = prepare(config)
    real = setup._read

    def draws(*some):
        torch.rand(7)
        return real(*some)

    monkeypatch.setattr(setup, "_read", draws)
    after = prepare(config)
    for one, other in ((before.model, after.model), (before.dc, after.dc)):
        pairs = zip(one.parameters(), other.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    torch.manual_seed(config.optimisation.seed)
    first = make_model("small", config.model.dim).head.weight
    assert torch.equal(before.model.head.weight, first.contiguous()), "the network draws the first numbers"


def test_every_row_of_a_table_is_checked_before_the_first_run(tmp_path):
    rows = "rows: {a: {}, b: {flags: {backbone: resnet51, pretrained: true}}}"
    table = parse_table("t", f"title: T\npreset: demo\n{rows}\n")
    with pytest.raises(ValueError, match="row b: unknown backbone 'resnet51'"):
        check_losses(plan(table, tmp_path))


# A trial of the loss


class Counts(torch.nn.Module):
    """A loss that draws random numbers and keeps a record of its batches."""

    batches: list = []  # noqa: RUF012

    def __init__(self, num_classes):
        super().__init__()
        self.proxies = torch.nn.Parameter(torch.rand(num_classes, 3))

    def forward(self, z, labels):
        Counts.batches.append((z.shape, labels.tolist()))
        return z.sum() * torch.rand(())


def test_a_trial_needs_two_classes_and_leaves_the_generator_alone(monkeypatch):
    monkeypatch.setitem(LOSSES, "counts", Counts)
    monkeypatch.setattr(Counts, "batches", [])
    torch.manual_seed(3)
    state = torch.get_rng_state()
    check_loss("counts", dim=5, per_class=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert Counts.batches == [((4, 5), [0, 0, 1, 1])]


@pytest.mark.parametrize("value", [None, 3.0, torch.zeros(2), torch.tensor(float("nan"))])
def test_a_loss_must_return_one_finite_number(monkeypatch, value):
    class Returns(torch.nn.Module):
        def forward(self, z, labels):
            return value

    monkeypatch.setitem(LOSSES, "returns", Returns)
    with pytest.raises(ValueError, match="the loss of a batch must be a finite number, got"):
        check_loss("returns", dim=4)


@pytest.mark.parametrize("classes", [-3, 0, 7, "8", True, 8.0])
def test_a_number_of_classes_below_that_of_the_data_is_refused(tiny, classes, tmp_path):
    config = tiny.replace(loss="ProxyNCALoss", loss_args={"num_classes": classes})
    with pytest.raises(
        ValueError, match=r"num_classes of ProxyNCALoss must be at least (2|8), as in this run"
    ):
        train(config, tmp_path / "run")


# The number of clusters


def test_a_k_max_that_no_division_can_reach_is_refused(tiny, tmp_path):
    config = tiny.replace(k_max=16)  # 8 classes of 6 images: three pairs of each, 24 in all, are 12 clusters
    with pytest.raises(ValueError, match=r"k_max must be at most 8, got 16: .* use --k-max 8"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_k_max_above_half_of_the_classes_is_warned_of(tiny, tmp_path):
    config = tiny.replace(k_max=8, epochs=1, divide_every=2)
    with pytest.warns(UserWarning, match=r"k_max is 8, but 8 training classes .* lower --k-max to 4"):
        train(config, tmp_path / "run")
    assert Run.open(tmp_path / "run").config.division.k_max == 8


def test_a_default_k_max_is_lowered_to_what_the_classes_allow(tiny, tmp_path):
    config = tiny.replace(k_max=8, epochs=2)
    with pytest.warns(UserWarning, match=r"k_max is 4 instead of 8: .* set --k-max to choose it"):
        train(config, tmp_path / "run", lower_k_max=True)
    run = Run.open(tmp_path / "run")
    assert run.config.division.k_max == 4
    assert len(run.load()["divide_and_conquer"]["objective.masks.weight"]) == 4
    stored = run.config.replace(epochs=3)
    assert len(train(stored, tmp_path / "run", resume=True)) == 3


def test_a_run_with_any_k_max_can_be_resumed(tiny, tmp_path, monkeypatch):
    """A run of an older version may have a k_max that is refused now."""
    config = tiny.replace(k_max=16, epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(setup, "fit_k_max", lambda config, labels, way: config)
        train(config, tmp_path / "run")
    assert len(train(config.replace(epochs=2), tmp_path / "run", resume=True)) == 2


def test_eight_classes_of_photos_train_with_the_plain_command(tmp_path, monkeypatch, capsys):
    """Half of them are for testing, so four classes train. K_max of the preset would leave one class to a cluster."""
    from conftest import write_photos
    from divconq.cli import main

    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "photos", classes=8, images=6)
    flags = "--image-size 16 --resize 20 --backbone small --no-pretrained --dim 8 --batch 8 --epochs 3 --divide-every 1"
    flags += " --ks 1 --workers 1 --device cpu --out run"
    main(["train", "--data", "photos", *flags.split()])
    said = capsys.readouterr().err
    assert said.count("k_max is 2 instead of 4: 4 training classes have two or more images") == 1, said
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert (tmp_path / "run" / "model.safetensors").is_file()
    with pytest.raises(SystemExit) as stop:
        main(["train", "--data", "photos", *flags.replace("run", "other").split(), "--k-max", "16"])
    assert stop.value.code == 2
    assert "k_max must be at most 4, got 16" in capsys.readouterr().err
