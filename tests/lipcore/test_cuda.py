"""Tensors on a GPU: the same numbers as on the CPU. Without a GPU, that nothing mixes devices."""

from __future__ import annotations

import pytest
import torch

import lipcore.jacobian as module
from lipcore import AutogradJacobian, local_lipschitz, spectral_norm
from lipcore.bounds import local_upper
from lipcore.jacobian import AttentionJacobian

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, PyTorch sees none"
)
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


KINDS = ["P kept", "P worked out anew"]


def jacobian(kind: str, attention, X) -> AttentionJacobian:
    return AttentionJacobian(attention, X, store=kind == "P kept")


def like(shape_of: AttentionJacobian, name: str) -> torch.Tensor:
    shape = (*shape_of.batch_shape, *getattr(shape_of, f"{name}_shape"))
    return torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_products(case, kind):
    here = jacobian(kind, case.attention, case.X)
    there = jacobian(kind, case.attention.to("cuda"), case.X.cuda())
    H, G = like(here, "input"), like(here, "output")
    for name, vector in (("matvec", H), ("rmatvec", G)):
        image = getattr(there, name)(vector.cuda())
        assert image.device.type == "cuda"
        torch.testing.assert_close(image.cpu(), getattr(here, name)(vector), **CLOSE)


@pytest.mark.parametrize(
    ("device", "its_own"), [("cpu", "TILE_BYTES"), ("cuda", "ACCELERATOR_TILE_BYTES")]
)
def test_the_accelerator_has_tiles_of_its_own(monkeypatch, device, its_own):
    tiles = len(module.cut_into_tiles(8, 300, 8, device))
    for size in ("TILE_BYTES", "ACCELERATOR_TILE_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(module, size, 1)
            cut = module.cut_into_tiles(8, 300, 8, device)
            assert (len(cut) > tiles) == (size == its_own)


@needs_gpu
def test_local_constant(case):
    here = local_lipschitz(case.attention, case.X, tol=1e-10)
    there = local_lipschitz(case.attention.to("cuda"), case.X.cuda(), tol=1e-10)
    for name in ("value", "upper"):
        torch.testing.assert_close(
            getattr(there, name).cpu(), getattr(here, name), rtol=1e-8, atol=1e-12
        )
    for name in ("value", "lower", "upper", "residual", "iterations", "converged", "left", "right"):
        assert getattr(there, name).device.type == "cuda", name
    bounded = local_lipschitz(
        case.attention.to("cuda"),
        case.X.cuda(),
        upper_bound=local_upper(case.attention.to("cuda"), case.X.cuda()),
    )
    assert (bounded.upper >= there.value * (1 - 1e-12)).all()


@needs_gpu
@pytest.mark.parametrize("method", ["lanczos", "power"])
@pytest.mark.parametrize("start", ["cpu", "cuda"])
def test_spectral_norm(randn, method, start):
    """A generator of either device starts a run on the GPU; the same one twice gives the same numbers."""
    matrix = randn(3, 20, 12)

    def found():
        return spectral_norm(
            matrix.cuda(),
            method=method,
            tol=1e-12,
            generator=torch.Generator(device=start).manual_seed(4),
        ).value

    torch.testing.assert_close(
        found().cpu(), torch.linalg.matrix_norm(matrix, 2), rtol=1e-8, atol=0
    )
    assert torch.equal(found(), found())


@needs_gpu
def test_extreme_scales(randn):
    matrix = randn(2, 6, 6) * torch.tensor([1e150, 1e-150], dtype=torch.float64)[:, None, None]
    found = spectral_norm(matrix.cuda(), tol=1e-12).value.cpu()
    torch.testing.assert_close(found, torch.linalg.matrix_norm(matrix, 2), rtol=1e-8, atol=0)


@needs_gpu
def test_autodiff(make_case):
    case = make_case("biases, causal")
    attention, X = case.attention.to("cuda"), case.X.cuda()
    J = AutogradJacobian(lambda Y: attention(Y), X)
    torch.testing.assert_close(J.dense(), attention.jacobian(X).dense(), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_products_stay_on_their_device(case, kind, monkeypatch):
    """On PyTorch's device without numbers: an array made on the CPU by mistake meets the others, and raises."""
    monkeypatch.setattr(
        module, "check_scores", lambda queries, keys: None
    )  # looks at numbers, of which there are none
    monkeypatch.setattr(type(case.attention), "check_input", lambda self, X: X)
    monkeypatch.setattr("lipcore.attention.check_layer", lambda attention: None)
    monkeypatch.setattr("lipcore._checks.check_same_kind", lambda *args, **kwargs: None)
    attention = type(case.attention)(
        **{k: x.to("meta") if isinstance(x, torch.Tensor) else x for k, x in case.kwargs.items()}
    )
    J = jacobian(kind, attention, case.X.to("meta"))
    H, G = (
        torch.empty(*J.batch_shape, *shape, dtype=J.dtype, device="meta")
        for shape in (J.input_shape, J.output_shape)
    )
    assert J.matvec(H).device.type == J.rmatvec(G).device.type == "meta"
