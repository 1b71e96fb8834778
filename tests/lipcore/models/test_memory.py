"""Measuring long sequences keeps no attention weights of all pairs, and no vector twice."""

import ctypes
import gc
import re
from pathlib import Path

import pytest
import torch

from lipcore import _heads, jacobian, measure, spectral_norm
from lipcore.operators import FunctionOperator

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="reads Linux's account of memory"
)


def memory(field: str) -> int:
    return 1024 * int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def peak(run) -> int:
    """The bytes that a call takes at once, above what is in use before it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what earlier tests have freed is given back
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
    before = memory("VmRSS")
    run()
    return memory("VmHWM") - before


def test_a_layer_keeps_no_weights_of_all_pairs(monkeypatch):
    """As if the sequence were too long to keep them."""
    monkeypatch.setattr(jacobian, "WEIGHTS_BYTES", 2**20)
    monkeypatch.setattr(_heads, "ENTRIES", 2**20)
    heads, n = 12, 1280
    layer = torch.nn.TransformerEncoderLayer(16 * heads, heads, 32, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 1).eval()
    measure(model, torch.randn(1, 16, 16 * heads))  # libraries load what they need
    long = torch.randn(1, n, 16 * heads)
    assert peak(lambda: measure(model, long, tol=0.5)) < 0.9 * 8 * heads * n**2


def test_the_basis_is_stored_once():
    def run(size, steps):
        d = torch.linspace(0, 1, size)
        diagonal = FunctionOperator(lambda H: d * H, lambda G: d * G, d, (), d.shape, d.shape)
        spectral_norm(diagonal, tol=1e-6, max_iterations=steps)

    run(100, 3)
    assert peak(lambda: run(2**18, 60)) < 1.8 * 60 * 4 * 2**18
