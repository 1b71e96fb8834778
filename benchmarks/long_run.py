"""One long sequence in a process of its own: ``python -m benchmarks.long_run head 16384`` prints time and memory."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

from lipcore import Attention, local_lipschitz


def head(n: int) -> tuple[Attention, torch.Tensor]:
    """A causal head of dimension 64, normal tokens."""
    generator = torch.Generator().manual_seed(0)
    A, V = torch.randn(2, 64, 64, generator=generator) / 8
    return Attention.from_matrices(A, V, causal=True), torch.randn(n, 64, generator=generator)


def minilm(n: int) -> tuple[Attention, torch.Tensor]:
    """A layer of MiniLM, all heads; normal tokens with mean and deviation of the ones it sees, in every coordinate."""
    from benchmarks import cases

    attention, X = cases.minilm(64)
    seen = X.flatten(0, 1)
    noise = torch.randn(n, attention.d, generator=torch.Generator().manual_seed(0))
    return attention, seen.mean(0) + seen.std(0) * noise


def memory(field: str) -> int:
    """Bytes in a field of Linux's account of this process."""
    return 1024 * int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def stretch(attention: Attention, X: torch.Tensor, direction: torch.Tensor) -> float:
    """‖f(X + εH) − f(X − εH)‖ / 2ε in float64, f by PyTorch's fused attention: none of lipcore's products."""
    attention, X, H = attention.to(torch.float64), X.double(), direction.double()
    step = 1e-6

    def f(Y: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (part[None] for part in attention.project(Y))
        mixed = scaled_dot_product_attention(
            queries, keys, values, is_causal=attention.causal, scale=1.0
        )
        return attention.join_heads(mixed[0])

    return ((f(X + step * H) - f(X - step * H)).norm() / (2 * step * H.norm())).item()


def measure(name: str, n: int) -> dict:
    attention, X = {"head": head, "minilm": minilm}[name](n)
    local_lipschitz(attention, X[:64])  # libraries load what they need
    before = memory("VmRSS")
    begin = time.perf_counter()
    found = local_lipschitz(attention, X)
    seconds = time.perf_counter() - begin
    peak = memory("VmHWM") - before
    assert found.converged
    return {
        "layer": name, "n": n, "seconds": seconds, "peak_bytes": peak, "iterations": found.iterations.item(),
        "value": found.value.item(), "bracket": (found.upper / found.value - 1).item(),
        "error": abs(found.value.item() / stretch(attention, X, found.right) - 1),
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
