import sys
import warnings

import pytest
import torch
from sklearn.mixture import GaussianMixture

from divconq.cli import main
from divconq.config import Config
from divconq.model import CLMLHead, Mixture
from divconq.runs.folder import Run
from divconq.train import train
from divconq.trained_run import TrainedRun
from divconq.training.mixture import check_images, fit_head, fit_mixture, without_subspaces
from divconq.training.setup import prepare
from test_resume import assert_same_runs, stopped_and_resumed

C, K = 80, 4


def groups(n=200, k=K, noise=0.1, seed=0):
    """Features in ``k`` groups, and the group of each."""
    draw = torch.Generator().manual_seed(seed)
    own = torch.randint(k, (n,), generator=draw)
    return torch.rand(k, C, generator=draw)[own] + noise * torch.randn(n, C, generator=draw), own


@pytest.fixture
def clml(tiny):
    """72 training images; 4 components, fitted before each of three epochs of six steps."""
    return tiny.replace(head="clml", masks="none", k_max=4, test_classes=0.25, epochs=3)


@pytest.mark.parametrize("noise", [0.1, 1.0, 10.0])
def test_posteriors_are_those_of_scikit_learn(noise, monkeypatch):
    fitted, real = [], GaussianMixture.fit
    monkeypatch.setattr(GaussianMixture, "fit", lambda model, x: fitted.append((model, x)) or real(model, x))
    h, _ = groups(noise=noise)
    mixture = fit_mixture(h, K, seed=1)
    ((model, x),) = fitted
    assert torch.allclose(mixture.posterior(h), torch.from_numpy(model.predict_proba(x)).float(), atol=1e-5)


def test_the_components_are_those_of_the_features():
    h, own = groups()
    found = fit_mixture(h, K).clusters(h)
    assert sorted((found == k).sum().item() for k in range(K)) == sorted(own.bincount().tolist())
    assert all(len(found[own == k].unique()) == 1 for k in range(K))


def test_the_axes_are_the_principal_components():
    h, _ = groups(noise=0.5)
    mixture = fit_mixture(h, K)
    x = torch.nn.functional.normalize(h)
    z = (x - mixture.centre) @ mixture.axes.T
    variances = z.var(0, correction=0)
    expected = torch.linalg.svdvals(x - x.mean(0))[:64].square()
    assert torch.allclose(variances / variances.sum(), expected / expected.sum(), atol=1e-5)
    assert variances.mean() == pytest.approx(1.0, abs=1e-4)
    assert (variances.diff() <= 1e-5).all()


def test_a_fit_is_a_function_of_features_and_seed():
    h, _ = groups(noise=1.0)
    first = fit_mixture(h, K, seed=1)
    assert all(map(torch.equal, first, fit_mixture(h, K, seed=1)))
    assert not torch.equal(first.means, fit_mixture(h, K, seed=2).means)
    assert fit_mixture(h, K, seed=2**63).means.isfinite().all(), "scikit-learn takes seeds up to 2^32"


@pytest.mark.parametrize("n", [64, 65])
@pytest.mark.parametrize("k", [1, 4, 64])
def test_few_images_give_a_usable_mixture(n, k):
    h, _ = groups(n)
    posterior = fit_mixture(h, k).posterior(h)
    assert posterior.isfinite().all()
    assert torch.allclose(posterior.sum(1), torch.ones(n))


@pytest.mark.parametrize("h", [torch.ones(70, C), torch.zeros(70, C), torch.eye(C)[torch.arange(70) % 2]])
def test_equal_features_give_a_usable_mixture(h):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_mixture(h, K).posterior(h).isfinite().all()


def test_features_that_are_not_finite_are_refused():
    h, _ = groups()
    h[3, 5] = torch.nan
    with pytest.raises(ValueError, match="x must be finite, got NaN or infinity in 1 of 200 rows"):
        fit_mixture(h, K)


def test_components_keep_their_numbers_when_the_mixture_is_fitted_again():
    h, _ = groups()
    head = CLMLHead(C, 8, K)
    fit_head(head, h, seed=0)
    before = head.mixture.clusters(h)
    others = [fit_mixture(h, K, seed).clusters(h) for seed in range(1, 9)]
    assert any(not torch.equal(other, before) for other in others), "new fits have other numbers"
    for seed in range(1, 9):
        fit_head(head, h + 0.01 * torch.randn_like(h), seed)
        assert torch.equal(head.mixture.clusters(h), before)


def test_clusters_of_many_rows_are_found_in_parts(monkeypatch):
    h, _ = groups(50)
    mixture, lengths = fit_mixture(torch.cat([h, h]), K), []
    real = Mixture.posterior
    monkeypatch.setattr(
        Mixture, "posterior", lambda self, some: lengths.append(len(some)) or real(self, some)
    )
    many = h.repeat(2000, 1)
    assert torch.equal(mixture.clusters(many), mixture.clusters(h).repeat(2000))
    assert len(lengths) > 2


def test_a_run_trains_saves_and_opens_again(clml, tmp_path):
    records = train(clml, tmp_path / "run")
    assert [record["k"] for record in records] == [1, 1, 1]
    assert all(record["seconds"]["divide"] > 0 for record in records)
    assert records[-1]["map@r"] > records[0]["map@r"]
    run, x = Run.open(tmp_path / "run"), torch.rand(5, 3, 16, 16)
    assert not list((tmp_path / "run" / "divisions").iterdir())
    last = run.model("last")
    assert isinstance(last.head, CLMLHead)
    assert last.head.weight.std(0).max() > 0, "the projections part"
    assert TrainedRun(tmp_path / "run", device="cpu").scores()["recall@1"] == records[-1]["recall@1"]
    run.model("best")
    (tmp_path / "run" / "model.safetensors").unlink()
    assert torch.allclose(run.model("last")(x), last(x), atol=1e-6), "the checkpoint gives the same"


@pytest.mark.parametrize("steps", [(1,), (6,), (7, 1), (8, 5)])
def test_a_run_stopped_at_any_step_ends_like_one_that_was_not(clml, tmp_path, monkeypatch, steps):
    config = clml.replace(divide_every=2, dropout=0.3)
    train(config, tmp_path / "whole")
    stopped_and_resumed(config, tmp_path / "run", monkeypatch, *steps)
    assert_same_runs(tmp_path / "whole", tmp_path / "run")


def test_the_mixture_is_fitted_as_often_as_the_data_is_divided(clml, tmp_path, monkeypatch):
    fitted = []

    def fit(head, h, seed):
        assert h.shape == (72, 160)
        assert torch.allclose(h.norm(dim=1), torch.ones(72), atol=1e-5)
        fitted.append(seed)

    monkeypatch.setattr("divconq.train.fit_head", fit)
    train(clml.replace(epochs=5, divide_every=2, seed=10, nmi=False), tmp_path / "run")
    assert fitted == [10, 12, 14]
    train(clml.replace(head="linear", epochs=2), tmp_path / "linear")
    assert fitted == [10, 12, 14]


def test_masks_are_replaced_with_a_warning_and_stored(clml, tmp_path):
    with pytest.warns(UserWarning, match=r"masks is none instead of fixed: .* each of 4 mixture components"):
        train(clml.replace(masks="fixed", epochs=1), tmp_path / "run")
    assert Run.open(tmp_path / "run").config.masks.kind == "none"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert without_subspaces(clml) is clml
        assert without_subspaces(Config.of(masks="fixed")).masks.kind == "fixed"


def test_the_data_is_not_divided(clml):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nor is k_max compared with the classes
        job = prepare(clml.replace(k_max=64, division="flat"), k_max="check")
    assert len(job.dc.masks.weight) == 1
    assert len(job.model.head.weight) == 64
    assert not any(job.dc.divides(epoch) for epoch in range(9))
    assert Config.of(head="clml", masks="fixed", dim=2, k_max=4).max_clusters == 1, "no blocks of dimensions"


def test_too_few_images_are_refused_before_the_run_folder(clml, tmp_path):
    with pytest.raises(ValueError, match=r"needs at least 64 training images .*, got 48; add images, or use"):
        train(clml.replace(test_classes=0.5), tmp_path / "run")
    with pytest.raises(ValueError, match="k_max must be at most the number of training images, 72, got 128"):
        train(clml.replace(k_max=128), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    check_images(clml, 64)
    check_images(Config(), 1)


def test_without_scikit_learn_it_is_refused_and_a_trained_model_opens(clml, tmp_path, monkeypatch):
    train(clml.replace(epochs=1), tmp_path / "run")
    monkeypatch.setitem(sys.modules, "sklearn.mixture", None)
    TrainedRun(tmp_path / "run", device="cpu").model(torch.rand(1, 3, 16, 16))
    with pytest.raises(ValueError, match=r"'clml' needs scikit-learn, .* run pip install 'divconq\[clml\]'"):
        train(clml, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_commands_work_with_it(clml, photos, tmp_path, capsys):
    out = str(tmp_path / "run")
    train(clml.replace(epochs=2, train_recall=True), tmp_path / "run")
    main(["eval", out, "--device", "cpu"])
    main(["embed", out, "--data", str(photos), "--out", str(tmp_path / "e.npz"), "--device", "cpu"])
    main(["analyze", out, "--out", str(tmp_path / "report"), "--device", "cpu"])
    page = (tmp_path / "report" / "report.html").read_text()
    assert "There are no divisions: the head clml replaces them." in page
    assert "There are no subspaces" in page
    capsys.readouterr()


@pytest.mark.gpu
def test_a_captured_step_uses_the_new_mixture(clml, tmp_path):
    """On a GPU, the run with captured graphs follows the plain one, over three fits."""
    losses = {}
    for compiled in ("auto", "off"):
        torch.compiler.reset()
        config = clml.replace(device="cuda", precision="fp32", compile=compiled, dropout=0.0, lr=1e-4)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*cannot be (compiled or )?captured")
            losses[compiled] = [record["loss"] for record in train(config, tmp_path / compiled)]
    assert losses["auto"] == pytest.approx(losses["off"], rel=1e-2)
