import json
import math
import warnings

import pytest
import torch
import torch.nn.functional as F

from divconq.analysis import read_run
from divconq.config import Config
from divconq.data.batches.loading import training_batches
from divconq.data.batches.sampler import plan_epoch
from divconq.losses import LOSSES, make_loss
from divconq.masks.rotation import rotated
from divconq.presets import preset
from divconq.runs.checkpoints import masks_state
from divconq.runs.folder import Run
from divconq.train import train
from divconq.training.seeds import epoch_seed
from divconq.training.setup import prepare
from tiny_settings import TINY

TIMINGS = ("images_per_s", "seconds")


def without_timings(records):
    return [{name: value for name, value in record.items() if name not in TIMINGS} for record in records]


def test_metrics_and_files_of_a_run(tiny, tmp_path):
    records = train(tiny.replace(k_max=4, singletons="keep"), tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == records
    assert [record["epoch"] for record in records] == [1, 2, 3, 4]
    assert [record["k"] for record in records] == [1, 2, 4, 4]
    for record in records:
        for name in ("loss", "images_per_s", "recall@1", "recall@2", "map@r", "marp", "nmi", "r_precision"):
            assert math.isfinite(record[name]), name
        assert set(record["seconds"]) == {"train", "evaluate"} | (
            {"divide"} if record["epoch"] > 1 else set()
        )
    names = sorted(path.relative_to(tmp_path / "run").as_posix() for path in (tmp_path / "run").rglob("*.*"))
    assert names == [
        "best.pt", "config.yaml", "divisions/epoch_0001.safetensors", "divisions/epoch_0002.safetensors",
        "divisions/epoch_0003.safetensors", "last.pt", "metrics.jsonl", "model.safetensors", "previous.pt",
        "split.json",
    ]  # fmt: skip


def test_partition_and_masks_are_saved_at_every_division(tiny, tmp_path):
    from safetensors.torch import load_file

    train(tiny.replace(k_max=2, epochs=3), tmp_path / "run")
    kept = load_file(tmp_path / "run" / "divisions" / "epoch_0001.safetensors")
    assert kept["clusters"].shape == (48,)
    assert kept["clusters"].unique().tolist() == [0, 1]
    assert kept["masks"].shape == (2, 16)
    assert torch.equal(kept["masks"][0], kept["masks"][1]), "children start as their parent"


@pytest.mark.parametrize("mask_reset", [True, False])
def test_mask_reset_resets_moments_at_a_split(tiny, tmp_path, monkeypatch, mask_reset):
    resets = []
    monkeypatch.setattr("divconq.divide_and_conquer.reset_moments", lambda _, masks: resets.append(masks.k))
    config = tiny.replace(k_max=4, masks="learned", singletons="keep", mask_reset=mask_reset)
    train(config, tmp_path / "run")
    assert resets == ([2, 4] if mask_reset else [2]), "masks do not train before the first split"


def test_rotating_masks_rotate_in_every_epoch(tiny, tmp_path):
    config = tiny.replace(masks="rotating", division="flat", k_max=4, epochs=3, divide_every=10, seed=1)
    train(config, tmp_path / "run")
    saved = read_run(tmp_path / "run")
    by_epoch = [rotated(saved.divisions[0].masks, seed=1, epoch=epoch) for epoch in range(3)]
    assert len(saved.divisions) == 1
    assert torch.equal(saved.divisions[0].masks, by_epoch[0])
    assert torch.equal(saved.snapshot().masks, by_epoch[2])
    assert not torch.equal(by_epoch[0], by_epoch[2])


@pytest.mark.parametrize("loss", [*LOSSES, "MultiSimilarityLoss"])
def test_one_cluster_without_masks_equals_plain_training(tiny, tmp_path, loss):
    config = tiny.replace(k_max=1, masks="none", loss=loss, epochs=2, lr=1e-3)
    train(config, tmp_path / "run")

    job = prepare(config)  # the same data and the same initial weights
    base = make_loss(loss, num_classes=len(job.train.names), dim=config.model.dim)
    base.load_state_dict(job.dc.loss.state_dict())  # the same proxies
    groups = [{"params": job.model.parameters(), "weight_decay": config.optimisation.weight_decay}]
    if list(base.parameters()):
        groups.append({"params": base.parameters(), "lr": config.optimisation.lr * config.loss.lr_scale})
    adam = torch.optim.Adam(groups, lr=config.optimisation.lr)
    for epoch in range(config.optimisation.epochs):
        torch.manual_seed(epoch_seed(config.optimisation.seed, epoch))
        job.model.train()
        everything = torch.zeros_like(job.train.labels)
        plan = plan_epoch(
            job.train.labels,
            everything,
            1,
            batch=config.optimisation.batch,
            seed=config.optimisation.seed,
            epoch=epoch,
        )
        for x, y, _ in training_batches(
            job.train, plan, job.augmentation, size=config.data.image_size, resize=config.data.resize,
            seed=epoch_seed(config.optimisation.seed, epoch), device=job.device,
        ):  # fmt: skip
            adam.zero_grad()
            base(F.normalize(job.model(x)), y).backward()
            adam.step()
    trained = Run.open(tmp_path / "run").load()["model"]
    for name, value in job.model.state_dict().items():
        assert torch.equal(trained[name], value), name


def test_runs_depend_only_on_seed(tiny, tmp_path):
    first = train(tiny, tmp_path / "first")
    assert without_timings(train(tiny, tmp_path / "second")) == without_timings(first)
    other = train(tiny.replace(seed=1), tmp_path / "other")
    assert without_timings(other) != without_timings(first)


@pytest.mark.parametrize("stopped_after", [1, 2, 3])
@pytest.mark.parametrize("loss", ["margin", "ProxyAnchorLoss"])
def test_resumed_run_equals_uninterrupted_run(tiny, tmp_path, stopped_after, loss):
    whole = train(tiny.replace(loss=loss), tmp_path / "whole")
    train(tiny.replace(loss=loss, epochs=stopped_after), tmp_path / "run")
    resumed = train(tiny.replace(loss=loss), tmp_path / "run", resume=True)
    assert without_timings(resumed) == without_timings(whole)
    a, b = Run.open(tmp_path / "whole").load(), Run.open(tmp_path / "run").load()
    for part in ("model", "divide_and_conquer"):
        division = {name: state[part].pop("_extra_state", None) for name, state in (("a", a), ("b", b))}
        assert all(torch.equal(a[part][name], b[part][name]) for name in a[part]), part
    assert torch.equal(division["a"].pop("clusters"), division["b"].pop("clusters"))
    assert division["a"] == division["b"]


@pytest.fixture(scope="module")
def plain_records(photos, tmp_path_factory):
    """The log of the run that the runs with a switch are compared with."""
    return train(TINY.replace(data=str(photos), epochs=3), tmp_path_factory.mktemp("plain") / "run")


# The epochs whose loss a switch changes. The first division is before the second epoch.
CHANGES_THE_LOSS = [
    ({"division": "flat"}, [1, 2, 3]),
    ({"division": "random"}, [2, 3]),
    ({"division": "random-again"}, [2, 3]),
    ({"divide_every": 2}, [2, 3]),
    ({"masks": "fixed"}, [2, 3]),
    ({"masks": "rotating"}, [2, 3]),
    ({"masks": "none"}, [2, 3]),
    ({"mask_activation": "softplus"}, [2, 3]),
    ({"overlap_weight": 0.0}, [2, 3]),
    ({"mask_split_noise": 0.1}, [2, 3]),
    ({"mask_weight_decay": 0.1}, [2, 3]),
    ({"cluster_on": "features"}, [2, 3]),
    ({"cluster_order": "round_robin"}, [1, 2, 3]),
    ({"cluster_steps": "equal"}, [2, 3]),
    ({"epoch_length": "largest"}, [2, 3]),
    ({"epoch_length": "smallest"}, [2, 3]),
    ({"finetune_from": 2}, [3]),
    ({"freeze_backbone_epochs": 1}, [2, 3]),
    ({"per_class": 2}, [1, 2, 3]),
    ({"per_class": 2, "class_sampling": "classes"}, [1, 2, 3]),
    ({"crop": "random_resized"}, [1, 2, 3]),
    ({"augmentation": "none"}, [1, 2, 3]),
    ({"augmentation": "geom"}, [1, 2, 3]),
    ({"augmentation": "geom+color"}, [1, 2, 3]),
    ({"augmentation": "color-heavy"}, [1, 2, 3]),
    ({"augmentation": "geom-authors"}, [1, 2, 3]),
    ({"augmentation": "geom+color-authors"}, [1, 2, 3]),
    ({"decode_size": 30, "crop": "random_resized"}, [1, 2, 3]),
    ({"val_classes": 2}, [1, 2, 3]),
    ({"loss_args": {"learn_beta": True}}, [1, 2, 3]),
    ({"precision": "bf16"}, [1, 2, 3]),
    ({"dropout": 0.5}, [1, 2, 3]),
    ({"weight_decay": 0.1}, [1, 2, 3]),
    ({"head_lr_scale": 2.0}, [1, 2, 3]),
]


def named(change):
    return "-".join(f"{name}={value}" for name, value in change.items()) if isinstance(change, dict) else ""


@pytest.mark.parametrize(("change", "epochs"), CHANGES_THE_LOSS, ids=named)
def test_every_switch_trains_and_changes_the_run(tiny, plain_records, tmp_path, change, epochs):
    records = train(tiny.replace(epochs=3, **change), tmp_path / "run")
    pairs = list(zip(records, plain_records, strict=True))
    assert all(math.isfinite(record["loss"]) for record in records)
    assert [record["epoch"] for record, plain in pairs if record["loss"] != plain["loss"]] == epochs
    assert records[-1]["spread"] != plain_records[-1]["spread"]
    assert ("val_recall@1" in records[-1]) == ("val_classes" in change)
    clusters = {"flat": [2, 2, 2], 2: [1, 1, 2]}
    expected = clusters.get(change.get("division", change.get("divide_every")), [1, 2, 2])
    assert [record["k"] for record in records] == expected


@pytest.mark.parametrize("change", [{"workers": 1}, {"cache": False}, {"save_steps": 1}], ids=named)
def test_switches_of_the_machine_change_nothing(tiny, plain_records, tmp_path, change):
    records = train(tiny.replace(epochs=3, **change), tmp_path / "run")
    assert without_timings(records) == without_timings(plain_records)


def test_switches_of_the_evaluation_change_the_scores_alone(tiny, plain_records, tmp_path):
    scores = {"recall@1", "map@r", "nmi", "spread"}
    plain = train(tiny.replace(epochs=3, conquer="plain"), tmp_path / "plain")
    seldom = train(tiny.replace(epochs=3, eval_every=2, nmi=False), tmp_path / "seldom")
    several = train(tiny.replace(epochs=3, nmi_runs=3), tmp_path / "several")
    assert any(other["nmi"] != record["nmi"] for record, other in zip(plain_records, several, strict=True))
    same = [[{**r, "nmi": None} for r in without_timings(records)] for records in (plain_records, several)]
    assert same[0] == same[1]
    for record, other in zip(plain_records, plain, strict=True):
        assert other["loss"] == record["loss"]
        assert any(other[name] != record[name] for name in scores) == (record["k"] > 1), "one mask rests"
    for record, other in zip(plain_records, seldom, strict=True):
        expected = set() if record["epoch"] == 1 else scores - {"nmi"}
        assert {name for name in scores if name in other} == expected
        assert all(other[name] == record[name] for name in {"loss", *expected})


@pytest.mark.parametrize("mask_weight_decay", [0.0, 0.1])
def test_masks_do_not_change_in_fine_tuning(tiny, tmp_path, mask_weight_decay):
    config = tiny.replace(epochs=4, finetune_from=3, mask_weight_decay=mask_weight_decay)
    train(config.replace(epochs=3), tmp_path / "run")
    before = masks_state(Run.open(tmp_path / "run").load())["weight"]
    train(config, tmp_path / "run", resume=True)
    assert torch.equal(masks_state(Run.open(tmp_path / "run").load())["weight"], before)


def test_backbone_is_frozen_after_a_division(tiny, tmp_path):
    config = tiny.replace(epochs=2, freeze_backbone_epochs=1)
    train(config.replace(epochs=1), tmp_path / "run")
    before = Run.open(tmp_path / "run").load()["model"]
    train(config, tmp_path / "run", resume=True)
    after = Run.open(tmp_path / "run").load()["model"]
    assert torch.equal(before["backbone.0.weight"], after["backbone.0.weight"])
    assert not torch.equal(before["head.weight"], after["head.weight"])


def test_loss_that_is_not_finite_stops_the_run(tiny, tmp_path, monkeypatch):
    steps = []

    class Fails(torch.nn.Module):
        calls = 0

        def forward(self, z, labels):
            self.calls += 1
            steps.append(self.calls)
            return z.sum() * (float("nan") if self.calls == 3 else 1.0)

    monkeypatch.setitem(LOSSES, "fails", Fails)
    with pytest.raises(
        FloatingPointError, match=r"nan at epoch 1, step 3 of 4 \(cluster 0\): the embeddings are"
    ):
        train(tiny.replace(loss="fails"), tmp_path / "run")
    assert steps == [1, 1, 2, 3], "a trial before the data is opened, then three steps"


def test_error_distinguishes_diverged_network_from_failed_loss(tiny, tmp_path):
    config = tiny.replace(lr=1000)
    object.__setattr__(config.optimisation, "lr", 1e30)  # more than is allowed
    with pytest.raises(
        FloatingPointError, match="network's output is not finite, so training diverged; lower --lr"
    ):
        train(config, tmp_path / "run")


def test_collapse_gives_a_warning(tiny, tmp_path, monkeypatch):
    class Contract(torch.nn.Module):
        def forward(self, z, labels):
            return (z - z[:1].detach()).square().sum()

    monkeypatch.setitem(LOSSES, "contract", Contract)
    with pytest.warns(UserWarning, match="the embeddings have collapsed at epoch"):
        train(tiny.replace(loss="contract", k_max=1, epochs=6, lr=3e-3), tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_max": 64}, "k_max must be at most the number of training images, 48, got 64"),
        ({"batch": 49}, "batch must be at most the number of training images"),
        ({"loss": "tripplet"}, "did you mean 'triplet'"),
        ({"loss": "MultiSimilarityLos"}, "MultiSimilarityLoss"),
        ({"loss": "margin", "loss_args": {"aplha": 1}}, "alpha"),
        ({"backbone": "resnet_50"}, "unknown backbone"),
        ({"data": "nowhere"}, "no dataset is called 'nowhere' and no folder of that name exists"),
        ({"division": "labels"}, "needs super-categories"),
        (
            {"ks": (1, 64)},
            "Recall@64 needs 64 images in the gallery, and a test query has 47; add test images",
        ),
        (
            {"val_classes": 7},
            "val_classes must leave at least two classes to train on: at most 6 of 8, got 7",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tiny, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        train(tiny.replace(**change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_class_with_one_image_is_refused_dropped_or_kept(photos, tiny, tmp_path):
    import shutil

    shutil.copytree(photos, tmp_path / "photos" / "train")
    shutil.copytree(photos, tmp_path / "photos" / "test")
    for number in range(1, 6):
        (tmp_path / "photos" / "train" / "class03" / f"{number}.png").unlink()
    config = tiny.replace(data=str(tmp_path / "photos"))
    with pytest.raises(
        ValueError, match=r"1 training classes have a single image \('class03'\).*--singletons drop"
    ):
        prepare(config)
    assert len(prepare(config.replace(singletons="drop")).train) == 90
    assert len(prepare(config.replace(singletons="keep")).train) == 91


def test_cuda_without_a_gpu_is_a_clear_error(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch finds no GPU here; use --device cpu"):
        train(tiny.replace(device="cuda"), tmp_path / "run")


def test_a_checkpoint_of_other_data_is_refused(tiny, tmp_path, photos):
    train(tiny.replace(epochs=1), tmp_path / "run")
    (tmp_path / "run" / "split.json").unlink()  # as in a run of an older version
    other = tiny.replace(test_classes=0.25)
    with pytest.raises(
        ValueError, match=r"it divides 48 training images, there are 72 now\); resume with those"
    ):
        train(other, tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="the checkpoint does not fit the settings"):
        train(tiny.replace(dim=8), tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="the training images have other classes"):
        train(tiny.replace(seed=1), tmp_path / "run", resume=True)  # which splits them another way


def test_run_folder_stores_the_config(tiny, tmp_path):
    train(tiny.replace(epochs=1), tmp_path / "run")
    assert Run.open(tmp_path / "run").config == tiny.replace(epochs=1)
    assert isinstance(Run.open(tmp_path / "run").config, Config)


@pytest.mark.gpu
@pytest.mark.parametrize("compiling", ["auto", "off"])
def test_a_gpu_trains_the_demo_and_resumes(tmp_path, compiling):
    torch.compiler.reset()
    config = preset("demo").replace(
        epochs=6,
        divide_every=2,
        device="cuda",
        precision="bf16",
        compile=compiling,
        eval_every=3,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*cannot be (compiled or )?captured")
        train(config.replace(epochs=3), tmp_path / "run")
        before = Run.open(tmp_path / "run").load()["model"]
        records = train(config, tmp_path / "run", resume=True)
    after = Run.open(tmp_path / "run").load()["model"]
    assert [record["epoch"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["k"] for record in records] == [1, 1, 2, 2, 4, 4]
    losses = [record["loss"] for record in records]
    assert all(map(math.isfinite, losses))
    assert losses[1] < losses[0], "of one space; that of a part is another"
    assert records[5]["recall@1"] > records[2]["recall@1"] > 0.05
    assert not torch.equal(before["backbone.0.weight"], after["backbone.0.weight"])


@pytest.mark.gpu
def test_recompiled_training_is_identical_without_autotuning(tmp_path, monkeypatch):
    monkeypatch.setattr("torch._inductor.config.deterministic", True)
    monkeypatch.setattr("torch._inductor.config.force_disable_caches", True)
    config = preset("demo").replace(epochs=4, divide_every=1, device="cuda", precision="bf16")
    losses = []
    for name in ("once", "again"):
        torch.compiler.reset()
        losses.append([record["loss"] for record in train(config, tmp_path / name)])
    assert losses[0] == losses[1]


@pytest.mark.gpu
def test_compiled_training_equals_plain_training(tmp_path):
    """In full precision, with a deterministic loss, the losses of all epochs are equal up to rounding."""
    torch.compiler.reset()
    config = preset("demo").replace(
        loss="npairs",
        dropout=0.0,
        epochs=2,
        k_max=1,
        lr=1e-4,
        device="cuda",
        precision="fp32",
    )
    fast, plain = (
        train(config.replace(compile=compiling), tmp_path / compiling) for compiling in ("auto", "off")
    )
    for a, b in zip(fast, plain, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-2)
        assert a["recall@1"] == pytest.approx(b["recall@1"], abs=0.03)
