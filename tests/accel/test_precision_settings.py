"""Products are exact inside ``exact_products``, and every setting is as before after it."""

import pytest
import torch

from divconq.accel.precision import exact_products

BACKENDS = torch.backends
NEW = hasattr(BACKENDS.cuda.matmul, "fp32_precision")  # torch 2.9 or later
needs_new = pytest.mark.skipif(not NEW, reason="needs the settings of torch 2.9")


@pytest.fixture(autouse=True)
def settings_of_the_start():
    yield
    if NEW:
        BACKENDS.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


def settings():
    of_backends = [BACKENDS.cuda.matmul.fp32_precision, BACKENDS.mkldnn.matmul.fp32_precision] if NEW else []
    return [torch.get_float32_matmul_precision(), BACKENDS.cuda.matmul.allow_tf32, *of_backends]


def exact():
    if NEW:
        return BACKENDS.cuda.matmul.fp32_precision == BACKENDS.mkldnn.matmul.fp32_precision == "ieee"
    return torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_precision_is_given_back(precision):
    torch.set_float32_matmul_precision(precision)
    before = settings()
    assert before[0] == precision
    with exact_products("cpu"):
        assert exact()
    assert settings() == before


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_precision_is_given_back_after_an_error(precision):
    torch.set_float32_matmul_precision(precision)
    before = settings()
    with pytest.raises(KeyError, match="the body"), exact_products("cpu"):
        raise KeyError("the body")
    assert settings() == before


def test_one_inside_another():
    torch.set_float32_matmul_precision("medium")
    before = settings()
    with exact_products("cpu"):
        with exact_products("cpu"):
            assert exact()
        assert exact()
    assert settings() == before


@needs_new
def test_an_inherited_precision_is_inherited_again():
    children = (BACKENDS.cuda.matmul, BACKENDS.mkldnn.matmul)
    for child in children:
        child.fp32_precision = "none"
    BACKENDS.fp32_precision = "tf32"
    with exact_products("cpu"):
        assert exact()
    assert [child.fp32_precision for child in children] == ["tf32", "tf32"]
    BACKENDS.fp32_precision = "ieee"
    assert [child.fp32_precision for child in children] == ["ieee", "ieee"]


@needs_new
def test_the_precision_of_one_backend_is_given_back():
    BACKENDS.cuda.matmul.fp32_precision, BACKENDS.mkldnn.matmul.fp32_precision = "ieee", "bf16"
    with exact_products("cpu"):
        assert exact()
    assert (BACKENDS.cuda.matmul.fp32_precision, BACKENDS.mkldnn.matmul.fp32_precision) == ("ieee", "bf16")
