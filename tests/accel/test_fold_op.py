import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode

import divconq.accel.fold_op as room
from divconq.accel.fold_op import fold

EPS = 1e-3


def inputs(shape=(4, 3, 3, 3), *, biased=True, layout=torch.contiguous_format, dtype=torch.float64):
    def random(*size):
        return torch.rand(*size, dtype=dtype) + 0.5

    torch.manual_seed(0)
    weight = (random(*shape) - 1).to(memory_format=layout).requires_grad_()
    bias, gamma, beta = (random(shape[0]).requires_grad_() for _ in range(3))
    return weight, bias if biased else None, gamma, beta, random(shape[0]), random(shape[0]), EPS


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_right(biased, layout):
    given = inputs(biased=biased, layout=layout)
    assert torch.autograd.gradcheck(lambda *x: fold(*x, torch.float64), given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operation_passes_the_checks_of_torch_library(dtype):
    torch.library.opcheck(fold, (*inputs(layout=torch.channels_last, dtype=torch.float32), dtype))


def test_outputs_have_the_memory_layout_of_the_weights():
    weight, *rest = inputs(layout=torch.channels_last)
    folded, bias = fold(weight, *rest, torch.bfloat16)
    assert folded.stride() == weight.stride()
    assert folded.dtype == bias.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("installed", "capability", "answer"),
    [(True, (9, 0), True), (False, (9, 0), False), (True, (6, 1), False)],
)
def test_a_gpu_without_triton_uses_the_plain_form(monkeypatch, installed, capability, answer):
    room._has_triton.cache_clear()
    monkeypatch.setattr(room, "find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with FakeTensorMode():
        assert room._by_rows(torch.empty(2, 3, 1, 1, device="cuda:0")) is answer
    room._has_triton.cache_clear()


ROW_BY_ROW = """
import itertools, torch
from divconq.accel.fold_op import fold, fold_backward
from divconq.accel.fold_kernels import fold_rows, fold_rows_backward

torch.manual_seed(0)
layouts = (torch.contiguous_format, torch.channels_last)
shapes = ((6, 3, 3, 3), (3, 700, 1, 1), (4, 1, 3, 3), (2, 64, 3, 3))
for shape, layout, biased, dtype in itertools.product(shapes, layouts, (0, 1), (torch.float32, torch.bfloat16)):
    weight, n = torch.randn(shape).to(memory_format=layout), shape[0]
    bias = torch.randn(n) if biased else None
    gamma, beta, mean, variance = torch.rand(n) + 0.5, torch.randn(n), torch.randn(n), torch.rand(n) + 0.5
    ours = fold_rows(weight, bias, gamma, beta, mean, variance, 1e-3, dtype)
    assert ours[0].stride() == weight.stride()
    close = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(ours, fold(weight, bias, gamma, beta, mean, variance, 1e-3, dtype), **close)
    given = torch.randn_like(weight).to(dtype), torch.randn(n).to(dtype), weight, bias, gamma, mean, variance, 1e-3
    torch.testing.assert_close(fold_rows_backward(*given), fold_backward(*given), rtol=1e-4, atol=1e-4)
"""


def test_the_triton_kernels_give_the_same_result():
    pytest.importorskip("triton")
    subprocess.run(
        [sys.executable, "-c", ROW_BY_ROW], check=True, env={**os.environ, "TRITON_INTERPRET": "1"}
    )
