"""Tensors on a GPU: the same numbers as on the CPU. Without a GPU, that nothing mixes devices."""

from __future__ import annotations

import pytest
import torch

import lipcore.jacobian as module
from lipcore import Attention, AutogradJacobian, local_lipschitz, spectral_norm
from lipcore.bounds import local_upper
from lipcore.jacobian import AttentionJacobian

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, PyTorch sees none"
)
STORE = pytest.mark.parametrize("store", [True, False], ids=["P kept", "P worked out anew"])
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


@needs_gpu
@STORE
def test_products(case, store, randn):
    here = AttentionJacobian(case.attention, case.X, store=store)
    there = AttentionJacobian(case.attention.to("cuda"), case.X.cuda(), store=store)
    for name, shape in (("matvec", here.input_shape), ("rmatvec", here.output_shape)):
        vector = randn(*here.batch_shape, *shape)
        image = getattr(there, name)(vector.cuda())
        assert image.device.type == "cuda"
        torch.testing.assert_close(image.cpu(), getattr(here, name)(vector), **CLOSE)


@needs_gpu
def test_local_constant(case):
    attention, X = case.attention.to("cuda"), case.X.cuda()
    here = local_lipschitz(case.attention, case.X, tol=1e-10)
    there = local_lipschitz(attention, X, tol=1e-10)
    for name in ("value", "upper"):
        found, expected = getattr(there, name).cpu(), getattr(here, name)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)
    for name in ("value", "lower", "upper", "residual", "iterations", "converged", "left", "right"):
        assert getattr(there, name).device.type == "cuda", name
    bounded = local_lipschitz(attention, X, upper_bound=local_upper(attention, X))
    assert (bounded.upper >= there.value * (1 - 1e-12)).all()


@needs_gpu
@pytest.mark.parametrize("method", ["lanczos", "power"])
@pytest.mark.parametrize("start", ["cpu", "cuda"])
def test_spectral_norm(randn, method, start):
    """At extreme scales, from a start of either device; the same start gives the same numbers."""
    scales = torch.tensor([1e150, 1.0, 1e-150], dtype=torch.float64)[:, None, None]
    matrix = scales * randn(3, 20, 12)
    found = []
    for _ in range(2):
        generator = torch.Generator(device=start).manual_seed(4)
        options = {"method": method, "tol": 1e-12, "generator": generator}
        found.append(spectral_norm(matrix.cuda(), **options).value.cpu())
    truth = torch.linalg.matrix_norm(matrix, 2)
    torch.testing.assert_close(found[0], truth, rtol=1e-8, atol=0)
    assert torch.equal(*found)


@needs_gpu
def test_autodiff(make_case):
    case = make_case("biases, causal")
    attention, X = case.attention.to("cuda"), case.X.cuda()
    J = AutogradJacobian(lambda Y: attention(Y), X)
    torch.testing.assert_close(J.dense(), attention.jacobian(X).dense(), **CLOSE)


@needs_gpu
@pytest.mark.parametrize("reduced", ["highest", "high", "medium"])
def test_reduced_products_are_seen(randn, reduced, monkeypatch):
    """TF32 is good to 1e-3: a bracket holds, or there is none. So it is under autocast."""
    f = Attention.from_matrices(randn(64, 64) / 8, randn(64, 64)).to("cuda")
    X = randn(512, 64).cuda()
    single, Y = f.to(torch.float32), X.float()
    truth = local_lipschitz(single.to(torch.float64), Y.double(), tol=1e-12)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(reduced)
    try:
        closed = local_lipschitz(single, Y)
        with torch.autocast("cuda", torch.bfloat16):
            cast = local_lipschitz(single, Y)
        monkeypatch.setattr("lipcore.cross.FLOAT64_ENTRIES", 0)
        long = local_lipschitz(single, Y)
    finally:
        torch.set_float32_matmul_precision(before)
    for found in (closed, cast):
        assert found.lower <= truth.upper and truth.lower <= found.upper
        assert found.remark == "" and found.probability == 0.999
    assert long.remark == "float32, not certified" and long.probability is None
    assert abs(long.value / truth.value - 1) < 1e-2


@STORE
def test_products_stay_on_their_device(case, store, monkeypatch):
    """On PyTorch's device without numbers, an array made on the CPU by mistake raises."""
    # these look at numbers, of which there are none
    monkeypatch.setattr(module, "check_scores", lambda queries, keys: None)
    monkeypatch.setattr(type(case.attention), "check_input", lambda self, X: X)
    monkeypatch.setattr("lipcore.attention.check_layer", lambda attention: None)
    monkeypatch.setattr("lipcore._checks.check_same_kind", lambda *args, **kwargs: None)
    tensors = {k: x.to("meta") for k, x in case.kwargs.items() if isinstance(x, torch.Tensor)}
    attention = type(case.attention)(**case.kwargs | tensors)
    J = AttentionJacobian(attention, case.X.to("meta"), store=store)
    options = {"dtype": J.dtype, "device": "meta"}
    H, G = (torch.empty(*J.batch_shape, *shape, **options)
            for shape in (J.input_shape, J.output_shape))  # fmt: skip
    assert J.matvec(H).device.type == J.rmatvec(G).device.type == "meta"
