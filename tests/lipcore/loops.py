"""Attention from its definition, one number at a time: an oracle for the layers of the tests."""

from __future__ import annotations

import math

import numpy as np
import torch


def alone(kwargs: dict, shape: tuple[int, ...], i: int) -> dict:
    """The arguments for sequence i alone: masks and biases of ``shape`` (…, heads, n, keys)."""
    tables = {name: kwargs[name] for name in ("mask", "bias") if name in kwargs}
    own = {name: x.expand(shape).reshape(-1, *shape[-3:])[i] for name, x in tables.items()}
    return kwargs | own


def loop_attention(kwargs: dict, X: np.ndarray, memory: np.ndarray | None = None) -> np.ndarray:
    """f(X) for X (n, d), from the constructor's arguments; keys are of ``memory`` if given."""
    given = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in kwargs.items()}
    memory = X if memory is None else memory
    rows = []
    for i, x in enumerate(X):
        heads = []
        for h in range(len(given["query"])):
            g = h * len(given["key"]) // len(given["query"])  # the key head that h shares
            P = _weights(given, X, memory, h, g, i)
            values = [_affine(given, "value", g, y) for y in memory]
            heads.append(sum(p * v for p, v in zip(P, values, strict=True)) * _gates(given, h, x))
        rows.append(np.concatenate(heads))
    joined = np.stack(rows)
    if "output" in given:
        joined = joined @ given["output"].T
    return joined + given.get("output_bias", 0.0)


def _weights(given: dict, X: np.ndarray, memory: np.ndarray, h: int, g: int, i: int) -> np.ndarray:
    """Row i of the weights: P_ij = w_j e^{s_ij} / Σ_l w_l e^{s_il} over the visible l."""
    scale = given.get("scale", 1 / math.sqrt(given["query"].shape[1]))
    query = _turned(given, _normed(given, "query", _affine(given, "query", h, X[i])), i)
    masses = np.zeros(len(memory))
    for j, y in enumerate(memory):
        if (given.get("causal") and j > i) or abs(i - j) >= given.get("window", math.inf):
            continue
        if "mask" in given and not given["mask"][h, i, j]:
            continue
        key = _turned(given, _normed(given, "key", _affine(given, "key", g, y)), j)
        score = scale * query @ key
        if "softcap" in given:
            score = given["softcap"] * math.tanh(score / given["softcap"])
        score += given["bias"][h, i, j] if "bias" in given else 0.0
        score += given["log_weights"][j] if "log_weights" in given else 0.0
        masses[j] = math.exp(score)
    sink = math.exp(given["sinks"][h]) if "sinks" in given else 0.0
    return masses / (masses.sum() + sink)


def _affine(given: dict, kind: str, head: int, x: np.ndarray) -> np.ndarray:
    bias = given[f"{kind}_bias"][head] if f"{kind}_bias" in given else 0.0
    return given[kind][head] @ x + bias


def _gates(given: dict, h: int, x: np.ndarray) -> np.ndarray | float:
    if "gate" not in given and "gate_bias" not in given:
        return 1.0
    moved = given["gate"][h] @ x if "gate" in given else 0.0
    return 1 / (1 + np.exp(-moved - (given["gate_bias"][h] if "gate_bias" in given else 0.0)))


def _normed(given: dict, kind: str, vector: np.ndarray) -> np.ndarray:
    norm = given.get(f"{kind}_norm")
    return vector if norm is None else norm(torch.from_numpy(vector)).numpy()


def _turned(given: dict, vector: np.ndarray, position: int) -> np.ndarray:
    """Rotary positions, through complex numbers."""
    if "rotary" not in given:
        return vector
    half = len(vector) // 2
    numbers = (vector[:half] + 1j * vector[half:]) * np.exp(1j * position * given["rotary"])
    return np.concatenate([numbers.real, numbers.imag])
