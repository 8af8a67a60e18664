import subprocess
import sys
from importlib.metadata import version

import pytest
import torch

from divconq.losses import (
    LOSSES,
    MarginLoss,
    MultiSimilarityLoss,
    NPairsLoss,
    ProxyAnchorLoss,
    SoftTripletLoss,
    TripletLoss,
    make_loss,
)
from divconq.losses.external import Mined, external_miner

EXTERNAL = {
    "AngularLoss": {},
    "ArcFaceLoss": {"margin": 20},
    "CircleLoss": {"gamma": 40},
    "ContrastiveLoss": {"neg_margin": 0.8},
    "CosFaceLoss": {"margin": 0.3},
    "DynamicSoftMarginLoss": {},
    "FastAPLoss": {"num_bins": 8},
    "GeneralizedLiftedStructureLoss": {},
    "InstanceLoss": {},
    "IntraPairVarianceLoss": {},
    "LargeMarginSoftmaxLoss": {},
    "LiftedStructureLoss": {},
    "MarginLoss": {"learn_beta": True},
    "MultiSimilarityLoss": {"base": 0.4},
    "NCALoss": {},
    "NPairsLoss": {},
    "NTXentLoss": {"temperature": 0.1},
    "NormalizedSoftmaxLoss": {},
    "P2SGradLoss": {},
    "PNPLoss": {},
    "ProxyAnchorLoss": {"alpha": 16},
    "ProxyNCALoss": {"softmax_scale": 2},
    "RankedListLoss": {"margin": 0.4, "Tn": 1},
    "SignalToNoiseRatioContrastiveLoss": {},
    "SmoothAPLoss": {},
    "SoftTripleLoss": {"centers_per_class": 2},
    "SphereFaceLoss": {},
    "SubCenterArcFaceLoss": {"sub_centers": 2},
    "SupConLoss": {},
    "ThresholdConsistentMarginLoss": {},
    "TripletMarginLoss": {"margin": 0.1},
    "TupletMarginLoss": {},
}
NEW = ("SmoothAPLoss", "ThresholdConsistentMarginLoss")
PER_CLASS = [
    "ArcFaceLoss",
    "CosFaceLoss",
    "LargeMarginSoftmaxLoss",
    "NormalizedSoftmaxLoss",
    "P2SGradLoss",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "SoftTripleLoss",
    "SphereFaceLoss",
    "SubCenterArcFaceLoss",
]
MINERS = {
    "AngularMiner": {"angle": 10},
    "BatchEasyHardMiner": {"pos_strategy": "hard"},
    "BatchHardMiner": {},
    "DistanceWeightedMiner": {"cutoff": 0.4},
    "MultiSimilarityMiner": {"epsilon": 0.2},
    "PairMarginMiner": {},
    "TripletMarginMiner": {"type_of_triplets": "semihard"},
}


def step(loss):
    """The loss of 4 classes of 3 images in 8 dimensions, and all its gradients."""
    x = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.normalize(x, dim=1).requires_grad_()
    value = loss(x, torch.arange(12) // 3)
    value.backward()
    return value, [x.grad, *(p.grad for p in loss.parameters())]


@pytest.mark.parametrize("name", EXTERNAL)
def test_a_loss_of_pytorch_metric_learning_trains(name):
    installed = tuple(map(int, version("pytorch-metric-learning").split(".")[:2]))
    if name in NEW and installed < (2, 9):
        pytest.skip("needs pytorch-metric-learning 2.9")
    loss = make_loss(name, EXTERNAL[name], num_classes=4, dim=8)
    assert type(loss).__name__ == name
    assert type(loss).__module__.startswith("pytorch_metric_learning")
    value, gradients = step(loss)
    assert value.shape == ()
    assert value.isfinite()
    assert all(g.isfinite().all() for g in gradients)
    assert any((g != 0).any() for g in gradients)


@pytest.mark.parametrize("name", PER_CLASS)
def test_parameters_of_classes_are_sized_and_move_with_the_module(name):
    parameters = list(make_loss(name, num_classes=7, dim=8).to("meta").parameters())
    assert len(parameters) == 1
    assert parameters[0].device.type == "meta"
    assert 8 in parameters[0].shape
    assert parameters[0].numel() % (7 * 8) == 0


def test_sizes_given_by_the_user_win():
    assert make_loss("ProxyNCALoss", {"num_classes": 9}, num_classes=7, dim=8).proxies.shape == (9, 8)


def test_sizes_that_are_optional_are_left_to_the_user():
    assert len(make_loss("MarginLoss", num_classes=7, dim=8).beta) == 1
    assert len(make_loss("MarginLoss", {"num_classes": 7}, num_classes=7, dim=8).beta) == 7


@pytest.mark.parametrize("miner", MINERS)
def test_a_miner_selects_the_pairs_of_the_loss(miner):
    from pytorch_metric_learning import losses, miners

    arguments = {"num_classes": 4, "dim": 8, "miner": miner, "miner_arguments": MINERS[miner]}
    mined = make_loss("TripletMarginLoss", {"margin": 0.3}, **arguments)
    loss, by_hand = losses.TripletMarginLoss(margin=0.3), getattr(miners, miner)(**MINERS[miner])
    assert isinstance(mined, Mined)
    torch.manual_seed(0)
    value, gradients = step(mined)
    torch.manual_seed(0)
    wanted, wanted_gradients = step(lambda_module(lambda z, labels: loss(z, labels, by_hand(z, labels))))
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(gradients, wanted_gradients)


def lambda_module(function):
    class Lambda(torch.nn.Module):
        def forward(self, z, labels):
            return function(z, labels)

    return Lambda()


def test_a_mined_loss_keeps_the_parameters_of_its_loss():
    loss = make_loss("ProxyAnchorLoss", num_classes=4, dim=8, miner="MultiSimilarityMiner")
    assert [p.shape for p in loss.parameters()] == [(4, 8)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("margin", MarginLoss),
        ("Margin", MarginLoss),
        ("triplet", TripletLoss),
        ("soft_triplet", SoftTripletLoss),
        ("soft-triplet", SoftTripletLoss),
        ("npairs", NPairsLoss),
        ("N-Pairs", NPairsLoss),
        ("multi_similarity", MultiSimilarityLoss),
        ("multi-similarity", MultiSimilarityLoss),
        ("MultiSimilarity", MultiSimilarityLoss),
        ("proxy_anchor", ProxyAnchorLoss),
        ("proxy-anchor", ProxyAnchorLoss),
    ],
)
def test_names_of_built_in_losses(name, kind):
    assert type(make_loss(name, num_classes=4, dim=8)) is kind
    assert {MarginLoss, TripletLoss, SoftTripletLoss, NPairsLoss, MultiSimilarityLoss, ProxyAnchorLoss} == {
        *LOSSES.values()
    }


def test_arguments_of_built_in_losses():
    fixed = make_loss("margin", {"alpha": 0.1, "beta": 1}, num_classes=4, dim=8)
    learned = make_loss("margin", {"beta": 1.5, "learn_beta": True}, num_classes=4, dim=8)
    assert (fixed.alpha, fixed.beta, list(fixed.parameters())) == (0.1, 1, [])
    assert torch.equal(learned.beta, torch.full((4,), 1.5))
    assert list(make_loss("margin", {"learn_beta": False}, num_classes=4, dim=8).parameters()) == []
    assert make_loss("triplet", {"alpha": 0.4}, num_classes=4, dim=8).alpha == 0.4
    assert make_loss("npairs", {"scale": 3}, num_classes=4, dim=8).scale.item() == 3


BUILT_IN = "use margin, triplet, soft_triplet, npairs, multi_similarity, proxy_anchor or the exact name "
BASES = "embedding_regularizer, embedding_reg_weight, reducer, distance, collect_stats"
UNSUITABLE = "so it cannot be chosen by name; choose a loss that takes embeddings and their labels"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "margn",
            {},
            f"there is no loss 'margn'; {BUILT_IN}"
            "of a class of pytorch_metric_learning.losses; did you mean 'margin'?",
        ),
        (
            "tripletmarginloss",
            {},
            f"there is no loss 'tripletmarginloss'; {BUILT_IN}"
            "of a class of pytorch_metric_learning.losses; did you mean 'TripletMarginLoss'?",
        ),
        (
            "qqq",
            {},
            f"there is no loss 'qqq'; {BUILT_IN}of a class of pytorch_metric_learning.losses",
        ),
        (
            "margin",
            {"bata": 1.0},
            "margin has no argument 'bata', it accepts alpha, beta, learn_beta, sampling_dim, without_replacement, "
            "equal_pairs; did you mean 'beta'?",
        ),
        (
            "margin",
            {"num_classes": 4},
            "margin has no argument 'num_classes', it accepts alpha, beta, learn_beta, sampling_dim",
        ),
        ("soft_triplet", {"zoom": 1.0}, "soft_triplet has no argument 'zoom', it accepts none"),
        ("margin", {"alpha": "1e-1"}, "alpha of the loss margin must be a number, got '1e-1'"),
        ("triplet", {"alpha": True}, "alpha of the loss triplet must be a number, got True"),
        ("margin", {"learn_beta": "no"}, "learn_beta of the loss margin must be true or false, got 'no'"),
        (
            "triplet",
            {"alpha": -1},
            "triplet could not be made with alpha=-1: "
            "alpha must be at least 0, got -1; the usual value is 0.2",
        ),
        (
            "ContrastiveLoss",
            {"pos_margn": 0.1},
            "ContrastiveLoss has no argument 'pos_margn', "
            f"it accepts pos_margin, neg_margin, {BASES}; did you mean 'pos_margin'?",
        ),
        (
            "RankedListLoss",
            {},
            "RankedListLoss could not be made with no arguments: "
            "RankedListLoss.__init__() missing 2 required positional arguments: 'margin' and 'Tn'",
        ),
        (
            "TupletMarginLoss",
            {"reducer": 3, "distance": 4},
            "TupletMarginLoss could not be made with reducer=3, distance=4: ",
        ),
        (
            "CrossBatchMemory",
            {},
            f"CrossBatchMemory of pytorch-metric-learning wraps another loss, {UNSUITABLE}",
        ),
        (
            "SelfSupervisedLoss",
            {},
            "SelfSupervisedLoss of pytorch-metric-learning wraps another loss and takes two views instead of "
            f"labels, {UNSUITABLE}",
        ),
        (
            "VICRegLoss",
            {},
            f"VICRegLoss of pytorch-metric-learning takes two views instead of labels, {UNSUITABLE}",
        ),
        ("ManifoldLoss", {}, f"ManifoldLoss of pytorch-metric-learning takes no labels, {UNSUITABLE}"),
        ("GenericPairLoss", {}, f"GenericPairLoss of pytorch-metric-learning is a base class, {UNSUITABLE}"),
        ("base_loss_wrapper", {}, "there is no loss 'base_loss_wrapper'"),
    ],
)
def test_messages_for_a_wrong_loss(name, arguments, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011, the whole message is compared
        make_loss(name, arguments, num_classes=4, dim=8)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("loss", "miner", "arguments", "message"),
    [
        (
            "TripletMarginLoss",
            "BatchHardMinr",
            {},
            "there is no miner 'BatchHardMinr'; use the exact name of a class of "
            "pytorch_metric_learning.miners; did you mean 'BatchHardMiner'?",
        ),
        (
            "TripletMarginLoss",
            "AngularMiner",
            {"angel": 3},
            "AngularMiner has no argument 'angel', it accepts angle, distance, collect_stats; "
            "did you mean 'angle'?",
        ),
        (
            "TripletMarginLoss",
            "BatchHardMiner",
            {"pos_strategy": "easy"},
            "BatchHardMiner could not be made with pos_strategy='easy': ",
        ),
        (
            "TripletMarginLoss",
            "BaseMiner",
            {},
            "BaseMiner of pytorch-metric-learning is a base class, so it cannot be chosen by name; "
            "choose a miner that takes embeddings and their labels",
        ),
        (
            "TripletMarginLoss",
            "EmbeddingsAlreadyPackagedAsTriplets",
            {},
            "EmbeddingsAlreadyPackagedAsTriplets of pytorch-metric-learning takes batches ordered as "
            "triplets instead of labels, so it cannot be chosen by name",
        ),
        (
            "triplet",
            "BatchHardMiner",
            {},
            "the loss triplet selects its own negatives and takes no miner, got BatchHardMiner; "
            "leave the miner out, or choose a loss of pytorch-metric-learning such as TripletMarginLoss",
        ),
        (
            "TripletMarginLoss",
            None,
            {"angle": 3},
            "miner arguments {'angle': 3} were given without a miner; name one or leave them out",
        ),
    ],
)
def test_messages_for_a_wrong_miner(loss, miner, arguments, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011, the whole message is compared
        make_loss(loss, num_classes=4, dim=8, miner=miner, miner_arguments=arguments)
    assert str(error.value).startswith(message)


OWN = "margin, triplet, soft_triplet, npairs, multi_similarity, proxy_anchor"
INSTALL = "needs pytorch-metric-learning, which is not installed; run pip install 'divconq[pml]'"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ArcFaceLoss", f"loss 'ArcFaceLoss' is none of {OWN}, so it {INSTALL}"),
        ("foo", f"loss 'foo' is none of {OWN}, so it {INSTALL}"),
        ("margn", f"loss 'margn' is none of {OWN}, so it {INSTALL}; did you mean 'margin'?"),
        ("CrossBatchMemory", f"loss 'CrossBatchMemory' is none of {OWN}, so it {INSTALL}"),
    ],
)
def test_without_pytorch_metric_learning_the_error_says_how_to_install_it(name, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    with pytest.raises(ValueError) as error:  # noqa: PT011, the whole message is compared
        make_loss(name, num_classes=4, dim=8)
    assert str(error.value) == message
    assert isinstance(make_loss("margin", num_classes=4, dim=8), MarginLoss)


def test_without_pytorch_metric_learning_a_miner_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    with pytest.raises(ValueError) as error:  # noqa: PT011, the whole message is compared
        external_miner("BatchHardMiner", {})
    assert str(error.value) == f"miner 'BatchHardMiner' {INSTALL}"


def test_importing_the_losses_does_not_import_pytorch_metric_learning():
    code = "import divconq.losses, sys; sys.exit('pytorch_metric_learning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
