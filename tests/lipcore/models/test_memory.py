"""Measuring long sequences keeps no attention weights of all pairs, and no vector twice."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="reads Linux's account of memory"
)

CODE = r"""
import re, torch
from pathlib import Path
from lipcore import _heads, jacobian, measure, spectral_norm
from lipcore.operators import FunctionOperator

torch.set_num_threads(1)


def memory(field):
    return 1024 * int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def peak(run):
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
    before = memory("VmRSS")
    run()
    return memory("VmHWM") - before


heads, n = 12, 1280
jacobian.WEIGHTS_BYTES = 2**20  # as if the sequence were too long to keep them
_heads.ENTRIES = 2**20
layer = torch.nn.TransformerEncoderLayer(16 * heads, heads, 32, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 1).eval()
short, long = torch.randn(1, 16, 16 * heads), torch.randn(1, n, 16 * heads)
measure(model, short)  # libraries load what they need
print(peak(lambda: measure(model, long, tol=0.5)) / (4 * heads * n**2))


def run(size, steps):
    d = torch.linspace(0, 1, size)
    diagonal = FunctionOperator(lambda H: d * H, lambda G: d * G, d, (), d.shape, d.shape)
    spectral_norm(diagonal, tol=1e-6, max_iterations=steps)


run(100, 3)
print(peak(lambda: run(2**18, 60)) / (60 * 4 * 2**18))
"""


def test_peaks():
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    of_layer, of_basis = map(float, done.stdout.split())
    assert of_layer < 0.9  # of its attention weights
    assert of_basis < 1.8  # of the Lanczos vectors, each stored once
