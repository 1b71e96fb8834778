"""A small Transformer that learns to recall, trained with and without methods that keep it smooth.

A sequence lists pairs of a key and a value, one token each, and its last token asks for one of the
keys; the answer is the value beside it. Embeddings are random and fixed. Several seeds are trained
at once: they are the first dimension of parameters and tokens, and do not touch each other.
``python -m lab.training FILE`` makes what is stored, and continues an interrupted run.
"""

from __future__ import annotations

import math
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from scipy import stats
from torch import Tensor
from torch.linalg import matrix_norm
from torch.nn.functional import cross_entropy, normalize

from lab._threads import one_thread
from lab.rivals import softmax_norm_upper
from lab.stored import kept, read_rows, short, write_rows
from lipcore import local_lipschitz
from lipcore.models.measure import versions

Parameters = dict[str, Tensor]

#: Pairs in a sequence, different keys and values.
PAIRS, KEYS, VALUES = 11, 16, 8
#: Width, heads, dimensions of a head, layers.
WIDTH, HEADS, HEAD, LAYERS = 32, 2, 16, 2
STEPS, BATCH, RATE = 300, 64, 3e-3
#: A penalty is computed at every fourth step, with four times its weight, on some sequences.
LAZY, PENALISED = 4, 8
#: The tolerance of σ's singular vectors in a penalty, and with them of its gradient.
TOLERANCE = 0.1
#: The seeds whose results are reported, and those on which strengths were chosen.
SEEDS, CHOSEN_ON = (0, 1, 2, 3, 4), (100, 101)
#: The chosen strength is the first, from smooth to free, that keeps this accuracy.
ACCURACY = 0.99
#: The number of held-out sequences, and of those on which σ is measured.
HELD_OUT, MEASURED = 256, 8
#: Radii of the attack, in which all tokens move together; a token has a norm of about 5.7.
RADII = (0.5, 1.0, 1.5)
#: Steps between the losses that are kept, and what makes the file of results.
EVERY = 20
COMMAND = "make training"


class Method(NamedTuple):
    """One method of keeping a network smooth, of the strengths that are tried, smooth to free."""

    penalty: Callable[[Parameters, Tensor], Tensor] | None = None  # added for each seed
    cap: bool = False  # the singular values of the weights are clipped at the strength
    qk_norm: bool = False  # queries and keys of length one, their products times the strength
    attack: bool = False  # learns at tokens that a gradient step of this length has moved
    strengths: tuple[float, ...] = (0.0,)


def embeddings() -> dict[str, Tensor]:
    """Return the vectors of keys (16, 32) and values (8, 32), and that of the question (32,)."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(KEYS + VALUES + 1, WIDTH, generator=generator, dtype=torch.float64)
    drawn = drawn / math.sqrt(2)
    return {"key": drawn[:KEYS], "value": drawn[KEYS:-1], "question": drawn[-1]}


def sequences(generators: Sequence[torch.Generator], count: int) -> tuple[Tensor, Tensor]:
    """Draw tokens (seeds, count, 12, 32) and the right answers (seeds, count)."""
    table, tokens, answers = embeddings(), [], []
    for generator in generators:
        shuffled = torch.rand(count, KEYS, generator=generator).argsort(-1)
        keys = shuffled[:, :PAIRS]  # no key twice
        values = torch.randint(VALUES, (count, PAIRS), generator=generator)
        asked = torch.randint(PAIRS, (count, 1), generator=generator)
        question = table["key"][keys.gather(1, asked)] + table["question"]
        tokens.append(torch.cat([table["key"][keys] + table["value"][values], question], 1))
        answers.append(values.gather(1, asked)[:, 0])
    return torch.stack(tokens), torch.stack(answers)


def initial(generators: Sequence[torch.Generator]) -> Parameters:
    """Return random weights, with entries of variance 1/d."""
    shapes = {"answer": (VALUES, WIDTH)}
    for layer in range(LAYERS):
        shapes |= {f"{name}{layer}": (HEADS, HEAD, WIDTH) for name in ("query", "key", "value")}
        shapes[f"output{layer}"] = (HEADS, WIDTH, HEAD)
        shapes[f"up{layer}"], shapes[f"down{layer}"] = (2 * WIDTH, WIDTH), (WIDTH, 2 * WIDTH)
    drawn = [
        [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes.values()]
        for g in generators
    ]
    stacked = map(torch.stack, zip(*drawn, strict=True))
    return {name: W / math.sqrt(W.shape[-1]) for name, W in zip(shapes, stacked, strict=True)}


def _heads(parameters: Parameters, name: str, layer: int, X: Tensor) -> Tensor:
    """Return the queries, keys or values of each head: (seeds, …, heads, n, k)."""
    return torch.einsum("shkd,s...nd->s...hnk", parameters[f"{name}{layer}"], X)


def weights(parameters: Parameters, layer: int, X: Tensor, qk_norm: float | None = None) -> Tensor:
    """Return attention weights of a layer at X (seeds, …, n, d): (seeds, …, heads, n, n)."""
    q, k = (_heads(parameters, name, layer, X) for name in ("query", "key"))
    if qk_norm is None:
        return torch.softmax(q @ k.mT / math.sqrt(HEAD), -1)
    return torch.softmax(qk_norm * normalize(q, dim=-1) @ normalize(k, dim=-1).mT, -1)


def attend(parameters: Parameters, layer: int, X: Tensor, qk_norm: float | None = None) -> Tensor:
    """Return what the attention of a layer adds to X, output projection included."""
    outputs = weights(parameters, layer, X, qk_norm) @ _heads(parameters, "value", layer, X)
    return torch.einsum("shdk,s...hnk->s...nd", parameters[f"output{layer}"], outputs)


def states(parameters: Parameters, X: Tensor, qk_norm: float | None = None) -> list[Tensor]:
    """Return what enters each layer, and what leaves the last."""
    found = [X]
    for layer in range(LAYERS):
        X = X + attend(parameters, layer, X, qk_norm)
        hidden = torch.einsum("sed,s...d->s...e", parameters[f"up{layer}"], X).relu()
        X = X + torch.einsum("sde,s...e->s...d", parameters[f"down{layer}"], hidden)
        found.append(X)
    return found


def logits(parameters: Parameters, X: Tensor, qk_norm: float | None = None) -> Tensor:
    """Return the answer as the last token gives it: (seeds, …, values)."""
    last = states(parameters, X, qk_norm)[-1][..., -1, :]
    return torch.einsum("svd,s...d->s...v", parameters["answer"], last)


def _as_row(parameters: Parameters, X: Tensor, qk_norm: float | None = None) -> Tensor:
    return logits(parameters, X, qk_norm)[..., None, :]


def sigma_of_attention(parameters: Parameters, X: Tensor) -> Tensor:
    """Return σ of the attention of each layer at its tokens, added up, one number for each seed."""
    layers = enumerate(states(parameters, X)[:-1])
    return sum(_sigma(partial(attend, parameters, i), entering) for i, entering in layers).mean(-1)


def sigma_of_network(parameters: Parameters, X: Tensor) -> Tensor:
    """Return σ of the map from embeddings to logits, one number for each seed."""
    return _sigma(partial(_as_row, parameters), X).mean(-1)


def _sigma(fn: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    with warnings.catch_warnings():  # at a crossing any of the gradients will do
        warnings.filterwarnings("ignore", message="differentiable")
        return local_lipschitz(fn, X, differentiable=True, tol=TOLERANCE, probability=None).value


def mixing(parameters: Parameters, X: Tensor) -> Tensor:
    """Return the sum over heads and layers of ‖P‖ times the norm of the projected value matrix."""
    total = 0.0
    for layer, entering in enumerate(states(parameters, X)[:-1]):
        passed = parameters[f"output{layer}"] @ parameters[f"value{layer}"]
        P = weights(parameters, layer, entering)
        size = matrix_norm(passed, 2)[:, None] * matrix_norm(P, 2)
        total = total + size.sum(-1)
    return total.mean(-1)


def softmax_jacobian(parameters: Parameters, X: Tensor) -> Tensor:
    """Return the mean of Yudin et al.'s bound (:prf:ref:`lem-rivals-softmax`) over all rows."""
    layers = enumerate(states(parameters, X)[:-1])
    rows = [softmax_norm_upper(weights(parameters, i, entering)) for i, entering in layers]
    return torch.stack(rows).mean((0, -1, -2, -3))


def capped(parameters: Parameters, cap: float) -> Parameters:
    """Clip the singular values of every matrix at ``cap``."""
    found = {}
    for name, matrix in parameters.items():
        U, S, Vh = torch.linalg.svd(matrix, full_matrices=False)
        found[name] = U * S.clamp(max=cap)[..., None, :] @ Vh
    return found


#: The methods that are compared.
METHODS = {
    "plain": Method(),
    "σ of attention": Method(sigma_of_attention, strengths=(1.0, 0.3, 0.1, 0.03)),
    "σ of the network": Method(sigma_of_network, strengths=(1.0, 0.3, 0.1, 0.03)),
    "‖P‖ and values": Method(mixing, strengths=(3.0, 1.0, 0.3, 0.1)),
    "QK-norm": Method(qk_norm=True, strengths=(1.0, 2.0, 4.0, 8.0)),
    "spectral caps": Method(cap=True, strengths=(0.6, 0.8, 1.0, 1.25, 1.5)),
    "softmax penalty": Method(softmax_jacobian, strengths=(10.0, 3.0, 1.0, 0.3)),
    "trained on attacks": Method(attack=True, strengths=(2.0, 1.0, 0.5, 0.25)),
}


class Trained(NamedTuple):
    """Networks of several seeds after training; ``losses`` (steps, seeds) are without penalties."""

    parameters: Parameters
    qk_norm: float | None
    losses: Tensor | None = None


def train(
    method: Method, strength: float, seeds: Sequence[int] = SEEDS, *, steps: int | None = None
) -> Trained:
    """Train one network for each seed, all at once, with Adam and a rate that falls to zero."""
    steps = STEPS if steps is None else steps
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    parameters = {name: p.requires_grad_() for name, p in initial(generators).items()}
    qk_norm = strength if method.qk_norm else None
    adam = torch.optim.Adam(parameters.values(), lr=RATE)
    losses = []
    for step in range(steps):
        X, answers = sequences(generators, BATCH)
        if method.attack:
            X = X - strength * _unit_slope(Trained(parameters, qk_norm), X, answers)
        loss = _loss(logits(parameters, X, qk_norm), answers)
        total = loss.sum()
        if method.penalty is not None and step % LAZY == 0:
            total = total + LAZY * strength * method.penalty(parameters, X[:, :PENALISED]).sum()
        adam.zero_grad()
        total.backward()
        adam.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        adam.step()
        losses.append(loss.detach())
        if method.cap and (step % LAZY == 0 or step == steps - 1):
            with torch.no_grad():
                for name, matrix in capped(parameters, strength).items():
                    parameters[name].copy_(matrix)
    found = {name: p.detach() for name, p in parameters.items()}
    return Trained(found, qk_norm, torch.stack(losses))


def _loss(scores: Tensor, answers: Tensor) -> Tensor:
    return cross_entropy(scores.movedim(-1, 1), answers, reduction="none").mean(-1)


def margins(trained: Trained, X: Tensor, answers: Tensor) -> Tensor:
    """Return the logit of the right answer minus the largest other: (seeds, count)."""
    scores = logits(trained.parameters, X, trained.qk_norm)
    right = answers[..., None]
    others = scores.scatter(-1, right, -torch.inf)
    return scores.gather(-1, right)[..., 0] - others.amax(-1)


def attacked(trained: Trained, X: Tensor, answers: Tensor, radius: float) -> Tensor:
    """Return the least margin that gradient steps find if all tokens move, by ``radius`` in all."""
    H = torch.zeros_like(X)
    least = margins(trained, X, answers)
    for _ in range(15):
        H = H - radius / 2 * _unit_slope(trained, X + H, answers)
        H = H * (radius / H.norm(dim=(-2, -1), keepdim=True)).clamp(max=1)
        least = torch.minimum(least, margins(trained, X + H, answers))
    return least


def _unit_slope(trained: Trained, X: Tensor, answers: Tensor) -> Tensor:
    Y = X.detach().requires_grad_()
    (slope,) = torch.autograd.grad(margins(trained, Y, answers).sum(), Y)
    return slope / slope.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-300)


def rounded(parameters: Parameters, kind: str) -> Parameters:
    """Return weights in fewer bits: ``"bfloat16"``, or ``"int8"`` with one scale for each row."""
    if kind == "bfloat16":
        return {name: W.bfloat16().to(W.dtype) for name, W in parameters.items()}
    steps = {name: W.abs().amax(-1, keepdim=True) / 127 for name, W in parameters.items()}
    return {name: (W / steps[name]).round() * steps[name] for name, W in parameters.items()}


def held_out(seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return sequences that no training draws, different for every seed."""
    return sequences([torch.Generator().manual_seed(10_000 + seed) for seed in seeds], HELD_OUT)


def measure(trained: Trained, seeds: Sequence[int] = SEEDS, *, radii=RADII) -> dict[str, Tensor]:
    """Return results of the networks on held-out sequences: one number a seed for each question."""
    X, answers = held_out(seeds)
    clear = margins(trained, X, answers)
    parameters, fixed = trained.parameters, {"qk_norm": trained.qk_norm}
    scores = logits(parameters, X, **fixed)
    few = X[:, :MEASURED]
    sigma = partial(local_lipschitz, tol=1e-4, probability=None)
    layers = [
        sigma(partial(attend, parameters, layer, **fixed), at).value
        for layer, at in enumerate(states(parameters, few, **fixed)[:-1])
    ]
    whole = sigma(partial(_as_row, parameters, **fixed), few).value
    found = {
        "accuracy": _share(clear > 0),
        "loss": _loss(scores, answers),
        "margin": clear.median(-1).values,
        "sigma attention": torch.stack(layers).amax(0).mean(-1),
        "sigma network": whole.mean(-1),
        "margin over sigma": (clear[:, :MEASURED] / whole).median(-1).values,
    }
    for radius in radii:
        found[f"attacked {radius:g}"] = _share(attacked(trained, X, answers, radius) > 0)
    for kind in ("int8", "bfloat16"):
        moved = logits(rounded(parameters, kind), X, **fixed)
        found[f"{kind} moved"] = ((moved - scores).norm(dim=-1) / clear.abs()).median(-1).values
        found[f"{kind} flipped"] = _share(moved.argmax(-1) != scores.argmax(-1))
    return found


def _share(which: Tensor) -> Tensor:
    return which.double().mean(-1)


def study(name: str) -> dict:
    """Choose the strength of a method on other seeds, train with it, return what is stored."""
    method = METHODS[name]
    tried = {}
    for strength in method.strengths:
        clear = margins(train(method, strength, CHOSEN_ON), *held_out(CHOSEN_ON)) > 0
        accuracy = round(_share(clear).mean().item(), 4)
        tried[f"{strength:g}"] = accuracy
        if accuracy >= ACCURACY:
            break
    trained = train(method, strength)
    found = {"losses": trained.losses[::EVERY], **measure(trained)}
    numbers = short({key: values.tolist() for key, values in found.items()}, 5)
    return {"name": name, "strength": strength, "tried": tried, **numbers}


def stored() -> pd.DataFrame:
    """Return the results that are kept with the book, one row for each method."""
    return read_rows("training.json", "methods", COMMAND).set_index("name")


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's 95 % interval for the mean of independent, normal values."""
    return stats.ttest_1samp(values, 0).confidence_interval(0.95)


def main(file: Path) -> None:
    """Study every method, and write the results to a file."""
    parts = file.with_suffix(".part")
    with one_thread():
        found = [kept(parts / f"{i}.json", partial(study, name)) for i, name in enumerate(METHODS)]
    write_rows(file, "methods", found, command=COMMAND, versions=versions())
    shutil.rmtree(parts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
