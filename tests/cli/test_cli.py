import json
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from unittest.mock import patch

import jaxtyping
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from divconq.cli import COMMANDS, main
from divconq.config import Config, to_yaml
from divconq.presets import PRESETS, preset
from divconq.runs.checkpoints import masks_state
from divconq.runs.exported import load_model
from divconq.runs.folder import Run

TINY = ["--image-size", "16", "--resize", "20", "--backbone", "small", "--no-pretrained", "--dim", "16"]
TINY += ["--batch", "12", "--epochs", "2", "--divide-every", "1", "--k-max", "2", "--lr", "1e-3"]
TINY += ["--workers", "2", "--device", "cpu"]


def refused(capsys, *argv, code=2):
    disabled = patch.object(jaxtyping.config, "jaxtyping_disable", True)  # as it is for users
    with disabled, pytest.raises(SystemExit) as stop:
        main([str(word) for word in argv])
    assert stop.value.code == code
    return " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    main(["train", "--data", str(photos), "--out", str(out), *TINY])
    return out


def test_help_names_every_command_without_loading_torch():
    code = (
        "import sys; from divconq.cli import COMMANDS, main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stop: sys.exit(stop.code or 'torch' in sys.modules)\n"
        "sys.exit('no help')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in (*COMMANDS, "train"):
        assert re.search(rf" {command}  +[A-Z]", done.stdout), command


def test_a_loss_that_needs_an_extra_is_refused_before_data_is_read(tmp_path, capsys, monkeypatch):
    """The folder of photos does not exist, so reading it would be another error."""
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    loss, photos = "MultiSimilarityLoss", str(tmp_path / "photos")
    install = "needs pytorch-metric-learning, which is not installed; run pip install 'divconq[pml]'"
    out = tmp_path / "run"
    assert install in refused(capsys, "train", "--data", photos, "--loss", loss, "--out", out)
    assert not out.exists()
    out.mkdir()
    (out / "config.yaml").write_text(to_yaml(preset("photos").replace(data=photos, loss=loss)))
    assert install in refused(capsys, "train", "--resume", out)
    table = tmp_path / "table.yaml"
    table.write_text(f"{{title: T, preset: demo, rows: {{a: {{flags: {{loss: {loss}}}}}}}}}")
    assert install in refused(capsys, "reproduce", table, "--out", tmp_path / "results")
    assert not (tmp_path / "results" / "runs").exists()


def test_our_own_losses_need_neither_faiss_nor_pytorch_metric_learning():
    code = (
        "import sys; sys.modules.update(faiss=None, pytorch_metric_learning=None)\n"
        "import torch, divconq.train, divconq.trained_run\n"
        "from divconq.losses import LOSSES, make_loss\n"
        "from divconq.division import kmeans\n"
        "from divconq.evaluation import nmi, retrieval_scores\n"
        "x, y = torch.randn(24, 8), torch.arange(24) % 3\n"
        "[make_loss(name, num_classes=3, dim=8)(torch.nn.functional.normalize(x), y) for name in LOSSES]\n"
        "kmeans(x, 4); retrieval_scores(x, y); nmi(x, y)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_setting_is_a_documented_flag(capsys):
    with pytest.raises(SystemExit):
        main(["train", "cub", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for setting in Config().settings():
        if setting in ("loss_args", "miner_args"):
            continue
        name = "import" if setting == "import_file" else setting.replace("_", "-")
        assert re.search(rf"--{name}[ ,]", text), name


def test_help_is_grouped_by_section_and_shows_the_values_of_the_preset(capsys):
    with pytest.raises(SystemExit):
        main(["train", "sop", "--help"])
    text = capsys.readouterr().out
    for section in fields(Config):
        assert f" {section.name} options " in text
    assert re.search(r"--k-max INT[^-]*\(default: 32\)", text)
    division = text[text.index(" division options ") : text.index(" masks options ")]
    assert "--k-max" in division
    assert "--overlap-weight" not in division


def test_presets_are_listed_and_shown(capsys):
    main(["presets"])
    assert capsys.readouterr().out.split() == list(PRESETS)
    main(["presets", "show", "cub-paper"])
    assert "k_max: 4\n  divide_every: 10\n" in capsys.readouterr().out


def test_train_writes_the_run_and_says_what_to_do_next(photos, tmp_path, capsys):
    main(["train", "--data", str(photos), "--out", str(tmp_path / "run"), *TINY])
    out = capsys.readouterr().out
    assert "last (epoch 2)" in out
    assert f"divconq eval {tmp_path / 'run'}" in out
    assert Run.open(tmp_path / "run").config.division.k_max == 2


def test_losses_miners_and_their_arguments_by_name(photos, tmp_path):
    flags = "--loss MultiSimilarityLoss --loss.alpha 3 --loss.base=0.4 --miner BatchEasyHardMiner"
    main(["train", "--data", str(photos), "--out", str(tmp_path / "run"), *TINY, *flags.split()])
    config = Run.open(tmp_path / "run").config
    assert (config.loss.name, config.loss.miner) == ("MultiSimilarityLoss", "BatchEasyHardMiner")
    assert config.loss.args == {"alpha": 3, "base": 0.4}


def test_eval_gives_the_scores_of_the_last_epoch_again(trained, capsys):
    main(["eval", str(trained), "--json"])
    scores = json.loads(capsys.readouterr().out)
    last = Run.open(trained).metrics()[-1]
    for name, score in scores.items():
        assert score == pytest.approx(last[name], abs=1e-6), name
    main(["eval", str(trained), "--checkpoint", "best"])
    assert "R@1" in capsys.readouterr().out


def test_train_can_end_with_the_report_that_analyze_writes(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)  # it takes its time, and may be absent
    out = tmp_path / "run"
    main(["train", "--data", str(photos), "--out", str(out), *TINY, "--analyze"])
    said = capsys.readouterr()
    assert f"look at it:  divconq analyze {out}\n" in said.out
    assert said.out.endswith(f"report: {out / 'analysis' / 'report.html'}\n")
    assert "analysing: embeddings of run" in said.err
    assert "drawing the report" in said.err
    page = (out / "analysis" / "report.html").read_text()
    assert re.search(r"class\d\d/\d\.png", page), "which images are shown depends on rounding"
    for figure in ("recall", "masks", "cluster-sizes", "subspace-recall", "variances"):
        assert (out / "analysis" / "figures" / f"{figure}.png").is_file()
        assert f'<figure id="{figure}"' in page
    main(["analyze", str(out), str(out), "--out", str(tmp_path / "elsewhere"), "--checkpoint", "best"])
    assert capsys.readouterr().out == f"report: {tmp_path / 'elsewhere' / 'report.html'}\n"
    assert json.loads((tmp_path / "elsewhere" / "analysis.json").read_text())["dataset"] == "photos"


def test_embed_writes_unit_vectors_of_every_image(trained, photos, tmp_path, capsys):
    main(["embed", str(trained), "--data", str(photos), "--out", str(tmp_path / "x.npz")])
    assert "96 embeddings of 16 dimensions" in capsys.readouterr().out
    written = np.load(tmp_path / "x.npz")
    assert written["embeddings"].shape == (96, 16)
    assert np.allclose(np.linalg.norm(written["embeddings"], axis=1), 1, atol=1e-5)
    assert written["names"][written["labels"][0]] in written["paths"][0]
    message = refused(capsys, "embed", trained, "--data", photos, "--out", tmp_path / "x.npz")
    assert "exists already" in message


def test_the_final_model_needs_no_mask_code(trained):
    run = Run.open(trained)
    model, state = load_model(trained), run.load()
    images = torch.rand(3, 3, 16, 16)
    f = model(images)
    masks = masks_state(state)
    mask = masks["weight"][: masks["count"]].relu().sum(0)
    plain = load_model(trained)
    plain.load_state_dict(state["model"])
    assert torch.allclose(F.normalize(f), F.normalize(plain(images) * mask), atol=1e-6)


def test_resume_continues_and_refuses_other_settings(photos, tmp_path, capsys):
    out = tmp_path / "run"
    main(["train", "--data", str(photos), "--out", str(out), *TINY])
    main(["train", "--resume", str(out), "--epochs", "3"])
    assert [record["epoch"] for record in Run.open(out).metrics()] == [1, 2, 3]
    assert "k_max from 2 to 4; leave them out" in refused(capsys, "train", "--resume", out, "--k-max", "4")
    assert "give no preset and no --out" in refused(capsys, "train", "--resume", out, "--out", "x")


def test_a_run_stopped_by_a_user_says_how_to_go_on(photos, tmp_path, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("divconq.train.train", interrupted)
    out = tmp_path / "run"
    assert "nothing was written" in refused(capsys, "train", "--data", photos, "--out", out, code=130)
    Run.create(out, Config())
    assert f"--resume {out}" in refused(capsys, "train", "--data", photos, "--out", out, code=130)


def changed(capsys, out, *flags):
    """What is said of a run that is resumed with other flags, and what it goes on with."""
    capsys.readouterr()
    main(["train", "--resume", str(out), *flags])
    return capsys.readouterr().err


def test_a_resumed_run_says_what_was_changed_and_refuses_what_changes_the_result(photos, tmp_path, capsys):
    out = tmp_path / "run"
    main(["train", "--data", str(photos), "--out", str(out), *TINY])
    harmless = changed(
        capsys, out, "--workers", "1", "--save-steps", "3", "--save-minutes", "2", "--no-cache"
    )
    for change in ("workers from 2 to 1", "save_steps from None to 3", "save_minutes from 1.0 to 2.0"):
        assert f"changed: {change} (the result stays the same)" in harmless
    rounded = changed(capsys, out, "--precision", "bf16", "--compile", "off")
    assert "changed: precision from auto to bf16 (the result changes by rounding only)" in rounded
    assert "changed: compile from auto to off (the result changes by rounding only)" in rounded
    longer = changed(capsys, out, "--epochs", "3", "--eval-every", "2")
    assert "changed: epochs from 2 to 3 (every epoch is trained as before)" in longer
    config = Run.open(out).config
    assert (config.runtime.workers, config.runtime.precision, config.optimisation.epochs) == (1, "bf16", 3), (
        "the next resume knows of it"
    )
    assert "changed:" not in changed(capsys, out)

    message = refused(capsys, "train", "--resume", out, "--lr", "0.01", "--seed", "5", "--workers", "2")
    assert "would change its result: lr from 0.001 to 0.01; seed from 0 to 5; leave them out" in message
    assert "start a new run, or continue with --accept-changes" in message
    assert Run.open(out).config == config
    accepted = changed(capsys, out, "--lr", "0.01", "--epochs", "4", "--accept-changes")
    assert "changed: lr from 0.001 to 0.01 (accepted: the result changes)" in accepted
    rates = [group["lr"] for group in Run.open(out).load()["optimizer"]["param_groups"]]
    assert rates[0] == 0.01, "it is trained with, not only written down"
    message = refused(capsys, "train", "--resume", out, "--dim", "8", "--accept-changes")
    assert "the checkpoint does not fit the settings" in message
    assert "for a run that is continued" in refused(capsys, "train", "demo", "--accept-changes")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            "trian demo",
            "unknown command 'trian': choose one of train, eval, embed, analyze, compare, data, reproduce, bench, "
            "presets; did you mean 'train'?",
        ),
        ("train dmeo", "unknown preset 'dmeo': choose one of demo, cub"),
        ("train demo --k-mxa 4", "unknown flag --k-mxa; did you mean '--k-max'?"),
        ("train demo --device gpu", "device must be one of auto, cpu, cuda, got 'gpu'; did you mean 'cuda'?"),
        ("train demo --ks 1 two", "ks must be a whole number, got 'two'"),
        ("train demo --lr nan", "lr must be a finite number, got nan; the default is 1e-05"),
        ("train demo --k-max 6", "k_max must be a power of two, got 6; use 4 or 8"),
        (
            "train demo --k-max 4096 --masks none",
            "k_max must be at most the number of training images, 2400, got 4096",
        ),
        ("train demo --masks fixed --dim 2", "dim must be at least k_max = 4, got 2"),
        ("train demo --batch 5000", "batch must be at most the number of training images"),
        ("train demo --loss tripplet", "did you mean 'triplet'"),
        ("train demo --backbone resnet5o", "unknown backbone 'resnet5o'"),
        ("train demo --loss margin --loss.alhpa 2", "alpha"),
        ("train demo --loss.alpha", "--loss.alpha needs a value"),
        ("train demo --miner BatchHardMiner", "miner"),
        ("train --resume nowhere", "nowhere is not a run folder: it has no config.yaml"),
        ("train cub", "cub"),
        ("train demo --import nowhere.py", "there is no file"),
        ("train demo --backbone-weights nowhere.safetensors", "there is no file"),
        ("eval nowhere", "nowhere is not a run folder"),
        ("analyze nowhere", "nowhere is not a run folder"),
        ("embed nowhere --data demo --out x.txt", "--out must end in .npz"),
        ("presets show", "use: divconq presets show PRESET"),
        ("presets shwo cub", "action must be one of list, show, got 'shwo'; did you mean 'show'?"),
        ("train --epochs 3 demo", "a preset must come before the flags, got 'demo' after them"),
        ("train --epochs 3 foo", "a preset must come before the flags, got 'foo' after them"),
        ("train demo --optimisation.epochs 3", "unknown flag --optimisation.epochs; see --help"),
        ("train demo cub", "unknown word cub; see --help"),
        ("eval run --jsn", "unknown flag --jsn; did you mean '--json'?"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, *argv.split())
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_data_check_tells_good_data_from_bad(photos, tmp_path, capsys):
    main(["data", "check", str(photos), "--json"])
    assert json.loads(capsys.readouterr().out)["problems"] == []
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "class00" / "0.png").write_bytes(b"")
    with pytest.raises(SystemExit) as stop:
        main(["data", "check", str(tmp_path / "photos")])
    assert stop.value.code == 1
    assert "class00/0.png" in capsys.readouterr().out
    assert "action must be one of check, got 'chekc'" in refused(capsys, "data", "chekc", photos)


def test_a_run_folder_that_exists_is_not_overwritten(trained, photos, capsys):
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    assert "exists already" in refused(capsys, "train", "--data", photos, "--out", trained, *TINY)
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_without_out_a_free_folder_is_found(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        main(["train", "--data", str(photos), *TINY, "--epochs", "1"])
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["photos", "photos-2"]


@pytest.mark.parametrize(("data", "folder"), [("vehicleid:800", "vehicleid-800"), ("demo:1", "demo-1")])
def test_no_folder_has_a_colon_in_its_name(data, folder, tmp_path, monkeypatch):
    asked = []

    def records(config, out, **_):
        asked.append((config.data.name, out))
        return [{"epoch": 1, "k": 1, "recall@1": 0.5, "seconds": {"train": 1.0}}]

    monkeypatch.setattr("divconq.train.train", records)
    monkeypatch.chdir(tmp_path)
    main(["train", "--data", data])
    (tmp_path / "runs" / folder).mkdir(parents=True)
    main(["train", "--data", data])
    assert asked == [(data, Path("runs") / folder), (data, Path("runs") / f"{folder}-2")]


def test_a_truncated_or_foreign_checkpoint_is_refused(photos, tmp_path, capsys):
    out = tmp_path / "run"
    main(["train", "--data", str(photos), "--out", str(out), *TINY, "--epochs", "1"])
    whole = (out / "last.pt").read_bytes()
    (out / "last.pt").write_bytes(whole[: len(whole) // 2])
    assert "damaged or not a checkpoint" in refused(capsys, "train", "--resume", out, "--epochs", "2")
    torch.save({"anything": 1}, out / "last.pt")
    assert "damaged or not a checkpoint" in refused(capsys, "train", "--resume", out, "--epochs", "2")
    (out / "model.safetensors").write_bytes(b"nothing")
    assert "not a whole safetensors file" in refused(capsys, "eval", out)


def test_a_run_with_an_imported_backbone_asks_for_the_file_again(photos, tmp_path, capsys):
    module = tmp_path / "mine.py"
    module.write_text(
        "import timm\n"
        "from timm.models import register_model\n"
        "@register_model\n"
        "def imported_net(pretrained=False, **kwargs):\n"
        "    return timm.create_model('resnet10t', **kwargs)\n"
    )
    flags = [
        "--data",
        photos,
        "--out",
        tmp_path / "run",
        *TINY,
        "--image-size",
        32,
        "--resize",
        36,
        "--epochs",
        1,
    ]
    command = ["train", *flags, "--backbone", "imported_net", "--import", module]
    subprocess.run([sys.executable, "-m", "divconq", *map(str, command)], check=True, capture_output=True)
    message = refused(capsys, "eval", tmp_path / "run", "--device", "cpu")
    assert "was trained with --import mine.py; give it again" in message
    message = refused(capsys, "train", "--resume", tmp_path / "run", "--epochs", "2")
    assert f"was started with --import {module}; give it again" in message
    main(["eval", str(tmp_path / "run"), "--device", "cpu", "--import", str(module)])
    assert "R@1" in capsys.readouterr().out
