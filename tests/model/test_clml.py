import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from torch import nn

from divconq.data.images.transform import Transform
from divconq.model import CLMLHead, Embedder, Mixture, SmallNet, make_model
from divconq.runs.exported import load_model, save_model
from divconq.training.mixture import fit_mixture

C, D, K = 80, 6, 4


def features(n=300, seed=0):
    """Overlapping groups, as features of a backbone: positive, of different lengths."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.rand(K, C, generator=draw)
    noise = torch.randn(n, C, generator=draw)
    scale = 0.5 + torch.rand(n, 1, generator=draw)
    return scale * (centres[torch.arange(n) % K] + 0.5 * noise).relu()


def between(h, mixture):
    """Points between the components, whose posteriors are far from 0 and 1."""
    own = mixture.clusters(h)
    means = torch.stack([h[own == k].mean(0) for k in range(K)])
    share = torch.rand(40, K, generator=torch.Generator().manual_seed(1)).pow(2)
    return (share / share.sum(1, keepdim=True)) @ means


@pytest.fixture(scope="module")
def mixture():
    return fit_mixture(features(), K)


def head_with(mixture, dropout=0.0):
    torch.manual_seed(0)
    head = CLMLHead(C, D, K, dropout)
    nn.init.normal_(head.weight)
    nn.init.normal_(head.bias)
    head.set_mixture_(mixture)
    return head


def slow(head, h):
    """The definition, image by image and component by component, in float64."""
    rows = []
    own = {name: value.double().numpy() for name, value in head.state_dict().items()}
    for x in h.double().numpy():
        z = own["axes"] @ (x / np.linalg.norm(x) - own["centre"])
        joint = []
        for k in range(K):
            covariance = np.diag(own["precisions"][k] ** -2)
            density = multivariate_normal(own["means"][k], covariance).logpdf(z)
            joint.append(own["log_weights"][k] + density)
        posterior = [np.exp(value - logsumexp(joint)) for value in joint]
        rows.append(sum(q * (own["weight"][k] @ x + own["bias"][k]) for k, q in enumerate(posterior)))
    return torch.tensor(np.array(rows))


def test_forward_equals_its_slow_twin(mixture):
    head, h = head_with(mixture), torch.cat([features(50), between(features(), mixture)])
    posterior = mixture.posterior(h)
    assert ((posterior > 0.1) & (posterior < 0.9)).any(1).sum() >= 10, "some posteriors are soft"
    assert torch.allclose(head(h).double(), slow(head, h), atol=1e-3)


def test_before_its_fit_it_is_one_linear_layer():
    torch.manual_seed(0)
    head = CLMLHead(C, D, K)
    torch.manual_seed(0)
    linear, h = nn.Linear(C, D), features(20)
    assert torch.allclose(head(h), linear(h), atol=1e-6)
    head.set_mixture_(fit_mixture(features(), K))
    assert torch.allclose(head(h), linear(h), atol=1e-6), "and after it, until it is trained"


def test_a_mixture_is_set_in_place(mixture):
    head = CLMLHead(C, D, K)
    places = {name: value.data_ptr() for name, value in head.named_buffers()}
    head.set_mixture_(mixture)
    assert {name: value.data_ptr() for name, value in head.named_buffers()} == places
    assert all(map(torch.equal, head.mixture, mixture))
    assert not any(buffer.requires_grad for buffer in head.buffers())


def test_gradients_go_through_the_projections_and_not_through_the_posterior(mixture):
    head, h = head_with(mixture), between(features(), mixture).requires_grad_()
    head(h).sum().backward()
    q = mixture.posterior(h)
    expected = (q[:, :, None] * head.weight.detach().sum(1)).sum(1)
    assert torch.allclose(h.grad, expected, atol=1e-4)
    assert torch.allclose(head.bias.grad, q.sum(0)[:, None].expand(K, D), atol=1e-4)


def test_posteriors_are_the_same_in_float32_under_autocast(mixture):
    h = between(features(), mixture)
    with torch.autocast("cpu", torch.bfloat16):
        low = mixture.posterior(h)
    assert low.dtype == torch.float32
    assert torch.equal(low, mixture.posterior(h))
    assert torch.equal(mixture.posterior(h.bfloat16()), mixture.posterior(h.bfloat16().float()))


def test_dropout_acts_on_the_projections_and_not_on_the_posterior(mixture):
    """With projections that ignore their input, dropout has nothing to change."""
    h = between(features(), mixture)
    head = head_with(mixture, dropout=0.5).train()
    assert not torch.equal(head(h), head(h))
    nn.init.zeros_(head.weight)
    assert torch.equal(head(h), head(h))


def test_points_far_from_all_components_have_a_posterior(mixture):
    far = torch.cat([torch.eye(C)[:3] * 1e6, -torch.eye(C)[:3], torch.zeros(1, C)])
    posterior = mixture.posterior(far)
    assert posterior.isfinite().all()
    assert torch.allclose(posterior.sum(1), torch.ones(7))


def test_renumbered_components(mixture):
    h, numbers = features(50), torch.tensor([2, 0, 3, 1])
    assert torch.allclose(
        mixture.renumbered(numbers).posterior(h)[:, numbers], mixture.posterior(h), atol=1e-6
    )
    assert torch.equal(mixture.renumbered(numbers).clusters(h), numbers[mixture.clusters(h)])


def test_folding_a_mask_equals_masking(mixture):
    torch.manual_seed(0)
    model = Embedder(SmallNet(), 160, 8, components=K).eval()
    nn.init.normal_(model.head.weight), nn.init.normal_(model.head.bias)
    x, mask = torch.rand(9, 3, 32, 32), torch.rand(8)
    model.head.set_mixture_(fit_mixture(torch.rand(100, 160), K))
    expected = model(x) * mask
    assert torch.allclose(model.fold_(mask)(x), expected, atol=1e-5)


def test_an_exported_model_is_the_same(tmp_path):
    model = make_model("small", 8, head="clml", components=K).eval()
    nn.init.normal_(model.head.weight)
    model.head.set_mixture_(fit_mixture(torch.rand(100, 160), K))
    settings = {"backbone": "small", "dim": 8, "pooling": "avg", "image_size": 32, "resize": 36}
    settings |= {"head": "clml", "components": K}
    save_model(model, tmp_path / "model.safetensors", settings)
    loaded, x = load_model(tmp_path / "model.safetensors"), torch.rand(3, 3, 32, 32)
    assert isinstance(loaded.transform, Transform)
    assert torch.equal(loaded(x), model(x))
    with pytest.raises(ValueError, match="head must be one of linear, clml, got 'local'"):
        make_model("small", 8, head="local")


def test_a_file_without_a_head_is_linear(tmp_path):
    settings = {"backbone": "small", "dim": 8, "pooling": "avg", "image_size": 32, "resize": 36}
    save_model(make_model("small", 8), tmp_path / "model.safetensors", settings)
    assert isinstance(load_model(tmp_path / "model.safetensors").head, nn.Linear)


def test_narrow_features_are_refused():
    assert CLMLHead(64, 8, 2)(torch.rand(1, 64)).shape == (1, 8)
    with pytest.raises(
        ValueError, match="to 64 dimensions, got 63 features; use a backbone with at least 64"
    ):
        CLMLHead(63, 8, 2)


COMPILED = """
import torch
from divconq.model import CLMLHead
from divconq.training.mixture import fit_mixture
torch.manual_seed(0)
head, h = CLMLHead(80, 6, 4), torch.rand(100, 80)
torch.nn.init.normal_(head.weight)
compiled = torch.compile(head.forward, backend="eager", fullgraph=True)
assert torch.allclose(compiled(h), head(h), atol=1e-5)
before = head(h)
head.set_mixture_(fit_mixture(h, 4))
assert torch.allclose(compiled(h), head(h), atol=1e-5), "a new mixture is used at once"
assert not torch.allclose(before, head(h), atol=1e-5)
"""


def test_forward_compiles_as_one_graph():
    """Nothing in it reads from the device, so a step can be captured. In another process: checked types cannot be."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True, timeout=120)


def test_an_unfitted_mixture_is_uniform():
    assert torch.equal(Mixture.unfitted(C, 8).posterior(features(5)), torch.full((5, 8), 0.125))
