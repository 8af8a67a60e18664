"""Runs that train only the head, on stored features of a frozen backbone."""

import shutil
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file

from divconq.data.batches.views import test_view as view
from divconq.losses import TripletLoss
from divconq.model import Embedder, SmallNet, make_model
from divconq.runs.exported import load_model
from divconq.runs.folder import Run
from divconq.train import train
from divconq.trained_run import TrainedRun
from divconq.training import cached_features
from divconq.training.cached_features import backbone_fingerprint
from divconq.training.recorded_split import ChangedDataError
from divconq.training.seeds import epoch_seed, seed_all
from divconq.training.setup import prepare
from divconq.training.stored_features import StoredFeatures


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DIVCONQ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def save_weights(file, seed=1):
    torch.manual_seed(seed)
    save_file(SmallNet().state_dict(), file)
    return file


@pytest.fixture
def head(tiny, cache, tmp_path):
    """A run that trains the head of a backbone with weights from a file; augmentations would change its images."""
    return tiny.replace(
        trained="head", backbone_weights=save_weights(tmp_path / "w.safetensors"), augmentation="geom+color"
    )


@pytest.fixture
def computed(monkeypatch):
    """The sizes of the image sets whose features are computed."""
    sizes, real = [], cached_features.backbone_features

    def counted(model, images, **options):
        sizes.append(len(images))
        return real(model, images, **options)

    monkeypatch.setattr(cached_features, "backbone_features", counted)
    return sizes


def features_one_by_one(config, images):
    """The pooled features of each image in its test view, computed alone."""
    model = make_model("small", 8, weights=config.model.backbone_weights).eval()
    size, resize = config.data.image_size, config.data.resize
    rows = []
    for i in range(len(images)):
        pixels, aspect = images.store.load(torch.tensor([i])), images.store.aspect[[i]]
        with torch.no_grad():
            rows.append(model.backbone((view(pixels, aspect, size, resize) - model.mean) / model.std))
    return torch.cat(rows)


# What is stored


@pytest.mark.parametrize("kept", [True, False], ids=["cache", "no cache"])
def test_stored_features_are_those_of_each_image_alone(head, kept):
    config = head.replace(cache=kept, val_classes=2)
    job, pixels = prepare(config), prepare(config.replace(trained="whole"))
    for stored, images in (
        (job.train, pixels.train),
        (job.validation, pixels.validation),
        (job.test, pixels.test),
    ):
        assert stored.paths == images.paths
        assert torch.equal(stored.labels, images.labels)
        assert torch.allclose(stored.store.features, features_one_by_one(config, images), atol=1e-5)


def test_features_are_computed_once(head, computed, monkeypatch):
    first = prepare(head)
    assert computed == [48, 48]
    monkeypatch.setattr("divconq.training.setup._read", lambda *some: pytest.fail("images are decoded"))
    second = prepare(head)
    assert computed == [48, 48]
    assert torch.equal(first.train.store.features, second.train.store.features)


def test_runs_without_a_cache_leave_no_file(head, cache, computed):
    prepare(head.replace(cache=False))
    prepare(head.replace(cache=False))
    assert computed == [48, 48, 48, 48]
    assert not list(cache.glob("*.features"))


@pytest.mark.parametrize(
    "change", [{"dim": 8, "loss": "triplet"}, {"val_classes": 3}, {"seed": 5}, {"augmentation": "none"}]
)
def test_runs_with_the_same_backbone_and_images_share_the_features(head, computed, change):
    prepare(head)
    job = prepare(head.replace(**change))
    assert len(computed) == 2, change
    pixels = prepare(head.replace(**change, trained="whole"))
    assert torch.allclose(job.test.store.features, features_one_by_one(head, pixels.test), atol=1e-5)


@pytest.mark.parametrize(
    "change", [{"image_size": 18}, {"resize": 24}, {"mean": (0.4, 0.5, 0.5)}, {"std": (1, 1, 1)}]
)
def test_other_inputs_of_the_backbone_have_other_features(head, computed, change):
    prepare(head)
    prepare(head.replace(**change))
    assert len(computed) == 4


def test_other_weights_have_other_features(head, computed):
    one = prepare(head)
    save_weights(head.model.backbone_weights, seed=2)
    other = prepare(head)
    assert len(computed) == 4
    assert not torch.allclose(one.train.store.features, other.train.store.features, atol=1e-3)


def test_the_same_weights_in_another_file_have_the_same_features(head, computed, tmp_path):
    prepare(head)
    shutil.copy(head.model.backbone_weights, tmp_path / "copy.safetensors")
    prepare(head.replace(backbone_weights=tmp_path / "copy.safetensors"))
    assert len(computed) == 2


def test_a_changed_image_has_other_features_and_a_copied_folder_the_same(head, computed, tmp_path):
    folder = Path(shutil.copytree(head.data.name, tmp_path / "photos"))
    one = prepare(head)
    prepare(head.replace(data=str(folder)))
    assert len(computed) == 2, "the content counts, not the path"
    changed = folder / "class00" / "0.png"
    Image.new("RGB", (24, 24), "red").save(changed)
    other = prepare(head.replace(data=str(folder)))
    assert len(computed) == 4
    before, after = (torch.cat([job.train.store.features, job.test.store.features]) for job in (one, other))
    assert (before - after).abs().amax(1).gt(1e-3).sum() == 1


def test_equal_images_have_equal_features(head, tmp_path):
    folder = Path(shutil.copytree(head.data.name, tmp_path / "photos"))
    for label in range(16):
        shutil.copy(folder / f"class{label:02d}" / "0.png", folder / f"class{label:02d}" / "again.png")
    config = head.replace(data=str(folder))
    job, pixels = prepare(config), prepare(config.replace(trained="whole"))
    assert len(job.train) == 56
    assert torch.allclose(job.train.store.features, features_one_by_one(config, pixels.train), atol=1e-5)


# The file


def cut(file):
    file.write_bytes(file.read_bytes()[:-50])


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[-50] ^= 1
    file.write_bytes(content)


def replace_by_another(file):
    save_file({"features": torch.zeros(96, 160)}, file)


def empty(file):
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flip_a_bit, replace_by_another, empty])
def test_a_damaged_file_is_computed_again(head, cache, computed, damage):
    first = prepare(head)
    (file,) = cache.glob("*.features")
    content = load_file(file)["features"].clone()  # not a map of the file
    damage(file)
    with pytest.warns(UserWarning, match=r"\.features is damaged; the features are computed again"):
        again = prepare(head)
    assert len(computed) == 4
    assert torch.equal(first.train.store.features, again.train.store.features)
    assert torch.equal(load_file(file)["features"], content)


def test_what_a_killed_process_left_is_removed(head, cache):
    prepare(head)
    (file,) = cache.glob("*.features")
    file.rename(cache / f".{file.name}.123.tmp")
    prepare(head)
    assert file.exists()
    assert not list(cache.glob(".*.tmp"))


def test_a_full_disk_costs_the_file_and_nothing_else(head, cache, monkeypatch):
    def full(*some):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cached_features, "_write", full)
    with pytest.warns(
        UserWarning, match=r"could not be cached \(.*No space left.* set DIVCONQ_CACHE to a folder"
    ):
        job = prepare(head)
    assert isinstance(job.train.store, StoredFeatures)
    assert not list(cache.glob("*.features"))


def test_several_runs_at_once_compute_the_features_once(head, computed, monkeypatch):
    real = cached_features._cached

    def slow(file, compute):
        return real(file, lambda: (time.sleep(0.2), compute())[1])

    monkeypatch.setattr(cached_features, "_cached", slow)
    found = []
    threads = [threading.Thread(target=lambda: found.append(prepare(head))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert computed == [48, 48]


# Training


def test_training_equals_training_the_head_by_hand(head, tmp_path):
    """With a division before the second epoch, dropout, and Adam on the embedding layer alone."""
    config = head.replace(
        epochs=2,
        masks="fixed",
        loss="triplet",
        dropout=0.3,
        lr=1e-2,
        head_lr_scale=0.5,
        norm_weight_decay=1.0,
    )
    train(config, tmp_path / "run")

    job, pixels = prepare(config), prepare(config.replace(trained="whole"))
    x, labels = features_one_by_one(config, pixels.train), pixels.train.labels
    torch.manual_seed(config.optimisation.seed)
    layer = make_model("small", config.model.dim).head
    adam = torch.optim.Adam(layer.parameters(), lr=0.5e-2, weight_decay=config.optimisation.weight_decay)
    loss, blocks = TripletLoss(), torch.ones(1, 16)
    for epoch in range(2):
        if epoch == 1:
            z = F.normalize(layer(x)).detach()
            job.dc.divide(z, epoch)
            blocks = torch.cat([torch.ones(8), torch.zeros(16), torch.ones(8)]).view(2, 16)
        plan = job.dc.plan(epoch)
        seed_all(epoch_seed(config.optimisation.seed, epoch))
        for rows, cluster in zip(plan.indices, plan.clusters, strict=True):
            f = layer(F.dropout(x[rows], 0.3))
            value = loss(F.normalize(f * blocks[cluster]), labels[rows])
            adam.zero_grad(), value.backward(), adam.step()
    trained = load_model(tmp_path / "run")
    assert (layer.weight - make_model("small", 16).head.weight).abs().max() > 0.05
    assert torch.allclose(trained.head.weight, layer.weight, atol=1e-5)
    assert torch.allclose(trained.head.bias, layer.bias, atol=1e-5)


def test_only_the_head_the_masks_and_the_loss_are_trained(head, tmp_path):
    config = head.replace(loss="ProxyAnchorLoss", freeze_backbone_epochs=1, head_lr_scale=2.0)
    job = prepare(config)
    assert [(g["name"], [tuple(p.shape) for p in g["params"]]) for g in job.optimizer.param_groups] == [
        ("head", [(16, 160), (16,)]),
        ("masks", [(2, 16)]),
        ("loss", [(8, 16)]),
    ]
    train(config, tmp_path / "run")
    trained = load_model(tmp_path / "run")
    for name, weight in load_file(head.model.backbone_weights).items():
        assert torch.equal(trained.backbone.state_dict()[name], weight)
    assert not torch.allclose(trained.head.weight, job.model.head.weight, atol=1e-3)


@pytest.mark.parametrize("cluster_on", ["embedding", "features"])
def test_the_scores_are_those_of_the_exported_model_on_the_images(head, tmp_path, cluster_on):
    config = head.replace(val_classes=2, train_recall=True, lr=1e-3, cluster_on=cluster_on)
    *_, last = train(config, tmp_path / "run")
    records = Run.open(tmp_path / "run").metrics()
    best = records[Run.open(tmp_path / "run").load("best")["epoch"] - 1]
    for which, record in (("last", last), ("best", best)):
        run = TrainedRun(tmp_path / "run", which=which, device="cpu")
        scores = run.scores()
        assert len(scores) > 5
        assert scores == pytest.approx({name: record[name] for name in scores}, abs=1e-4)
    z, images = run.embed(config.data.name, "train")
    assert z.shape == (len(images), 16)


def test_the_backbone_is_not_used_once_its_features_are_stored(head, tmp_path, monkeypatch):
    prepare(head)
    monkeypatch.setattr(SmallNet, "forward", lambda *some: pytest.fail("the backbone is used"))
    train(head, tmp_path / "run")


def test_a_trained_model_refuses_features(head, tmp_path):
    train(head.replace(epochs=1), tmp_path / "run")
    with pytest.raises(ValueError, match="the model takes images of 16 x 16 pixels"):
        load_model(tmp_path / "run")(torch.rand(2, 160))
    model = Embedder(SmallNet(), 160, 8).eval()
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(model(model.features(x)), model(x))


def test_random_weights_are_warned_of(head, tmp_path):
    with pytest.warns(
        UserWarning, match=r"the backbone has random weights, .* give weights with --backbone-weights"
    ):
        prepare(head.replace(backbone_weights=None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(head)
        prepare(head.replace(backbone_weights=None, trained="whole"))


@pytest.mark.gpu
def test_a_gpu_captures_the_step(head, tmp_path, monkeypatch):
    from divconq.training.step import TrainingStep

    torch.compiler.reset()
    ways, real = set(), TrainingStep.__call__

    def call(step, x, labels, cluster):
        outcome = real(step, x, labels, cluster)
        ways.add((step.way, x.device.type, tuple(x.shape)))
        return outcome

    monkeypatch.setattr(TrainingStep, "__call__", call)
    config = head.replace(
        device="cuda", precision="fp32", epochs=8, freeze_backbone_epochs=1, finetune_from=6
    )
    *_, last = train(config, tmp_path / "run")
    assert ways == {("whole", "cuda", (12, 160))}
    scores = TrainedRun(tmp_path / "run", device="cuda").scores()
    assert scores == pytest.approx({name: last[name] for name in scores}, abs=1e-2)


# Resume


def test_a_run_with_another_backbone_is_not_resumed(head, tmp_path, computed):
    train(head.replace(epochs=2), tmp_path / "run")
    save_weights(head.model.backbone_weights, seed=2)
    for accept in (False, True):
        with pytest.raises(
            ValueError, match=r"have changed since the start of the run, .* or start a new run"
        ):
            train(head.replace(epochs=3), tmp_path / "run", resume=True, accept_changes=accept)
    assert len(computed) == 2, "it is refused before features are computed"
    with pytest.raises(ValueError, match="the weights of the backbone, or its mean and std, have changed"):
        train(head.replace(epochs=3, backbone_weights=None), tmp_path / "run", resume=True)
    assert len(Run.open(tmp_path / "run").metrics()) == 2
    save_weights(tmp_path / "moved.safetensors")
    moved = head.replace(epochs=3, backbone_weights=tmp_path / "moved.safetensors")
    assert len(train(moved, tmp_path / "run", resume=True)) == 3, "the same weights in another place"


def test_a_run_with_changed_images_is_resumed_on_request_only(head, tmp_path, computed):
    folder = Path(shutil.copytree(head.data.name, tmp_path / "photos"))
    config = head.replace(data=str(folder))
    train(config.replace(epochs=1), tmp_path / "run")
    Image.new("RGB", (24, 24), "red").save(folder / "class00" / "0.png")
    with pytest.raises(ChangedDataError, match="has changed since the training"):
        train(config, tmp_path / "run", resume=True)
    assert len(computed) == 2
    with pytest.warns(UserWarning, match="has changed since the training"):
        assert len(train(config, tmp_path / "run", resume=True, accept_changes=True)) == 4
    assert len(computed) == 4


def test_the_fingerprint_is_of_the_backbone_and_its_input_only():
    torch.manual_seed(0)
    model = Embedder(SmallNet(), 160, 8)
    before = backbone_fingerprint(model)
    with torch.no_grad():
        model.head.weight.add_(1)
    assert backbone_fingerprint(model) == before
    for tensor in (model.mean, model.std, *model.backbone.state_dict().values()):
        with torch.no_grad():
            tensor.add_(1)
            assert backbone_fingerprint(model) != before
            tensor.sub_(1)
