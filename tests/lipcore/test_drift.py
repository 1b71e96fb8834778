"""Loss of orthogonality: followed on the host, against the vectors themselves; and what it must not change."""

import numpy as np
import pytest
import torch

import lipcore.spectral as spectral
from lipcore import spectral_norm
from lipcore._drift import Drift

SPECTRA = {
    "one stands out": np.r_[1.0, np.linspace(0.5, 0, 199)],
    "evenly spaced": np.linspace(1, 0, 200),
    "geometric": 0.8 ** np.arange(200),
    "crowded at the top": 1 - np.linspace(0, 1, 200) ** 2,
}


def matrix(spectrum, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((len(spectrum),) * 2))[0] for _ in range(2))
    return (left * spectrum @ right).astype(dtype)


def bare_lanczos(J, steps, seed=1):
    """Without any orthogonalisation: (predicted, true) largest |v_j·v_{k+1}| after each step, until Drift stops it."""
    v = np.random.default_rng(seed).standard_normal(len(J))
    V, before, left = [(v / np.linalg.norm(v)).astype(J.dtype)], 0, 0
    drift, diagonal, below, history = (
        Drift(1, steps, np.finfo(J.dtype).eps),
        np.zeros((1, steps)),
        np.zeros((1, steps)),
        [],
    )
    for k in range(1, steps + 1):
        u = J @ V[-1]
        stretch = np.linalg.norm(u)
        w = J.T @ u - stretch**2 * V[-1] - left * before
        left = np.linalg.norm(w)
        diagonal[:, k - 1], below[:, k - 1] = stretch**2, left
        (omega,) = drift.step(diagonal[:, :k], below[:, :k])
        before = V[-1]
        V.append(w / left)
        true = np.abs(np.array(V[:-1], dtype=np.float64) @ V[-1]).max()
        history.append((omega, true))
        if omega >= np.finfo(J.dtype).eps ** 0.5:
            break
    return np.array(history)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_the_prediction_is_above_the_truth(spectrum, dtype):
    """So it stops the run before orthogonality is worse than √ε."""
    for seed in range(10):
        predicted, true = bare_lanczos(matrix(SPECTRA[spectrum], dtype, seed), 150, seed).T
        assert (true <= predicted).all()
        assert predicted[-1] >= np.finfo(dtype).eps ** 0.5 or len(true) == 150


@pytest.mark.parametrize("spectrum", ["one stands out", "evenly spaced"])
def test_the_prediction_waits(spectrum):
    """It is not merely cautious: it lets the run go on until the truth is within a factor of 1000 of √ε."""
    _, true = bare_lanczos(matrix(SPECTRA[spectrum]), 150).T
    assert len(true) > 8 and true[-1] > 1e-3 * np.finfo(float).eps ** 0.5


def test_zero_and_ended_spaces_count_as_drifted():
    drift = Drift(2, 5, 1e-16)
    assert (drift.step(np.array([[1.0], [1.0]]), np.array([[0.5], [0.5]])) < 1e-14).all()
    assert (
        drift.step(np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([[0.5, 0.0], [0.0, 0.0]])) > 0.1
    ).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_what_is_left_out_changes_nothing(spectrum, dtype, monkeypatch):
    """Values, certificates and iterations are those of a run that orthogonalises at every step, to rounding."""
    M = torch.from_numpy(np.stack([matrix(SPECTRA[spectrum], seed=seed) for seed in range(4)])).to(
        dtype
    )
    removed = []
    real = spectral._Basis.remove_from
    monkeypatch.setattr(
        spectral._Basis, "remove_from", lambda V, w: removed.append(V.size) or real(V, w)
    )
    tol = 1e-4 if dtype == torch.float32 else 1e-10
    found, few = spectral_norm(M, tol=tol), len(removed)
    monkeypatch.setattr(spectral.Drift, "step", lambda self, diagonal, below: np.ones(len(below)))
    full = spectral_norm(M, tol=tol)
    assert few < len(removed) - few
    eps = torch.finfo(dtype).eps
    assert torch.equal(found.iterations, full.iterations)
    torch.testing.assert_close(found.value, full.value, rtol=20 * eps, atol=0)
    torch.testing.assert_close(found.upper, full.upper, rtol=200 * eps, atol=0)


def test_orthogonality_matters():
    """The control: without any, a run in float32 sees the top value twice, which the matrix has once."""
    J = matrix(SPECTRA["one stands out"], np.float32)
    v = np.random.default_rng(1).standard_normal(200)
    V = [(v / np.linalg.norm(v)).astype(np.float32)]
    diagonal, below = [], []
    for _ in range(40):
        u = J @ V[-1]
        w = J.T @ u - u @ u * V[-1] - (below[-1] * V[-2] if below else 0)
        diagonal.append(float(u @ u))
        below.append(float(np.linalg.norm(w)))
        V.append(w / below[-1])
    T = np.diag(diagonal) + np.diag(below[:-1], 1) + np.diag(below[:-1], -1)
    assert np.linalg.eigvalsh(T)[-2] > 0.99 and SPECTRA["one stands out"][1] == 0.5


CROWDED = {
    "float64 to the end": (np.r_[1 - 0.1 * np.linspace(0, 1, 19) ** 2, 0], torch.float64, 1e-14),
    "float32, tight": (
        np.r_[1 - 0.1 * np.linspace(0, 1, 145) ** 0.5, [0.27] * 5],
        torch.float32,
        1e-7,
    ),
    "float32, default": (
        np.r_[1 - 0.1 * np.linspace(0, 1, 145) ** 0.5, [0.27] * 5],
        torch.float32,
        1e-4,
    ),
}


@pytest.mark.parametrize("name", CROWDED)
def test_vectors_are_as_good_as_their_residual_says(name):
    """What is left out must not reach the singular vectors: values at the bottom converge early and are dangerous."""
    spectrum, dtype, tol = CROWDED[name]
    for seed in range(10):
        M = torch.from_numpy(matrix(spectrum, seed=seed)).to(dtype)
        found, exact = spectral_norm(M, tol=tol), M.double()
        v = found.right.double()
        sigma = (exact @ v).norm()
        true = (exact.T @ (exact @ v) / sigma - sigma * v).norm()
        assert true <= 1.5 * found.residual.double() + 10 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vectors_stay_orthogonal_when_the_space_ends(dtype, monkeypatch):
    """What is left of a vector is then rounding alone, and one pass leaves it as far from orthogonal as before."""
    bases = []
    real = spectral._summary
    monkeypatch.setattr(
        spectral, "_summary", lambda products, V, *x: bases.append(V) or real(products, V, *x)
    )
    for rank in range(1, 8):
        M = torch.from_numpy(
            matrix(np.r_[np.linspace(1, 0.3, rank), np.zeros(60 - rank)], seed=rank)
        ).to(dtype)
        spectral_norm(
            torch.stack([M, torch.from_numpy(matrix(np.linspace(1, 0.9, 60))).to(dtype)]), tol=1e-4
        )
    for V in bases:
        products = V[0].double() @ V[0].double().T
        assert (products - torch.eye(len(products))).abs().max() < torch.finfo(dtype).eps ** 0.5
