"""σ through the depth of a model: ``python -m lab.depth FILE`` stores what its chapter shows."""

from __future__ import annotations

import functools
import itertools
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lab.models import load
from lab.models.signals import patches, photographs
from lab.models.texts import load_text, sequences
from lab.stored import kept, short, stored_file
from lipcore.autodiff import AutogradJacobian
from lipcore.lipschitz import local_lipschitz
from lipcore.models.capture import Captured, captured, module_of, record
from lipcore.models.measure import versions
from lipcore.models.structure import blocks
from lipcore.models.whole import whole
from lipcore.operators import FunctionOperator, LinearOperator
from lipcore.spectral import spectral_norm


class Model(NamedTuple):
    """A model that is stored, and which photographs it sees; without them it reads the text."""

    after: tuple[str, ...] = ()  # submodules that run after its blocks
    read: int = -1  # the output token that stands for the whole input: last word, or class token
    photographs: tuple[str, ...] = ()


#: Models that are stored; the numbers of each block are those of the first input.
MODELS = {
    "minilm": Model(),
    "smollm2": Model(after=("norm",)),
    "vit": Model(after=("layernorm",), read=0, photographs=("chelsea", "coffee", "rocket")),
}
#: Numbers of inputs, of tokens of text in each, and of patches along the side of a photograph.
INPUTS, LENGTH, SIDE = 3, 16, 4
#: Of σ; where singular vectors are used, the iteration runs to its square.
TOLERANCE = 1e-3


def product(factors: Sequence[LinearOperator]) -> LinearOperator:
    """Return the product of operators, of which the first is applied first."""
    return functools.reduce(lambda done, J: J @ done, factors)


def less_identity(J: LinearOperator) -> LinearOperator:
    """Return J − I, the derivative of what a residual block adds to its input."""
    shapes = J.batch_shape, J.input_shape, J.output_shape
    return FunctionOperator(lambda H: J.matvec(H) - H, lambda G: J.rmatvec(G) - G, J, *shapes)


def chain(model: nn.Module, *after: str, **inputs) -> list[Captured]:
    """Return the blocks of a running model, and the submodules ``after`` them, in order, as maps.

    It is an error if one does not feed the next alone; ``inputs`` are one sequence.
    """
    module = module_of(model)
    maps = [captured(call) for call in record(module, [*blocks(module), *after], **inputs)]
    for one, following in itertools.pairwise(maps):
        if not torch.equal(one(one.X), following.X):
            raise ValueError(f"model: expected {one.name} to feed {following.name} alone")
    return maps


def jacobians(maps: Sequence[Captured]) -> list[AutogradJacobian]:
    """Return the Jacobian of each block at what enters it."""
    return [AutogradJacobian(fn, fn.X) for fn in maps]


def places(count: int) -> list[int]:
    """Return the numbers k of first blocks that are measured together: about ten, with the last."""
    return sorted({*range(1, count + 1, max(1, count // 10)), count})


def norms_up_to(factors: Sequence[LinearOperator], tol: float = TOLERANCE) -> Tensor:
    """Return σ of the first k factors together, for k in :func:`places`, of one sequence."""
    stacks = [product(factors[:k]) for k in places(len(factors))]
    return torch.cat([spectral_norm(stack, tol=tol).value for stack in stacks])


def along(factors: Sequence[LinearOperator], H: Tensor) -> list[Tensor]:
    """Return a move of the first input, and its image under each factor in turn: L + 1 moves."""
    return list(itertools.accumulate(factors, lambda move, J: J.matvec(move), initial=H))


def through(
    model: nn.Module, *after: str, read: int = -1, tol: float = TOLERANCE, **inputs
) -> dict:
    """Return what the chapter shows of one sequence: numbers of the L blocks, and of the model."""
    maps = chain(model, *after, **inputs)
    factors = jacobians(maps)
    own = [spectral_norm(J, tol=tol**2) for J in factors]
    moves = along(factors, spectral_norm(product(factors), tol=tol**2).right)
    module = module_of(model)
    fn = captured(whole(module, blocks(module), **inputs))
    found = local_lipschitz(fn, fn.X, tol=tol**2)
    return {
        "sigma": [r.value.item() for r in own],
        # what a block adds to its input
        "branch": [spectral_norm(less_identity(J), tol=tol).value.item() for J in factors],
        "up_to": norms_up_to(factors, tol).tolist(),
        # how much a block stretches the worst move of the model, which may not be its own
        "gain": [(J_H.norm() / H.norm()).item() for H, J_H in itertools.pairwise(moves)],
        "cosine": [
            r.right.mul(H / H.norm()).sum().abs().item()
            for r, H in zip(own, moves[:-1], strict=True)
        ],
        # the share of the first token in what the block makes of that move
        "first": [(H[..., 0, :].square().sum() / H.square().sum()).item() for H in moves[1:]],
        "size": [fn.X.square().sum(-1).mean().sqrt().item() for fn in maps],
        # the shares of the tokens in the worst move and in the answer
        "from": found.right[0].square().sum(-1).tolist(),
        "to": found.left[0].square().sum(-1).tolist(),
        "model": found.value.item(),
        "token": local_lipschitz(fn, fn.X, tol=tol, norm="token").value.item(),
        "read": local_lipschitz(fn, fn.X, tol=tol, tokens=read).value.item(),
        "others": local_lipschitz(fn, fn.X, tol=tol, tokens=slice(1, None)).value.item(),
    }


def product_and_whole(model: nn.Module, *after: str, tol: float = TOLERANCE, **inputs) -> dict:
    """Return the product of the σ of the blocks, and σ of all together, for one sequence."""
    factors = jacobians(chain(model, *after, **inputs))
    own = [spectral_norm(J, tol=tol).value for J in factors]
    together = spectral_norm(product(factors), tol=tol).value
    return {"product": torch.cat(own).prod().item(), "model": together.item()}


def inputs_of(name: str, model: nn.Module) -> list[dict[str, Tensor]]:
    """Return the inputs of a model: pieces of the text, or photographs, each alone."""
    if shown := MODELS[name].photographs:
        photos = photographs()
        squares = [patches(photos[photo].double(), SIDE) for photo in shown]
        return [{"pixel_values": square[None]} for square in squares]
    ids = sequences(model, load_text("pydoc"), n=LENGTH, count=INPUTS)
    return [{"input_ids": one[None]} for one in ids]


def measured(name: str) -> dict:
    """Return one row of the stored table, in float64; ``again`` is for the other inputs."""
    model = load(name, dtype=torch.float64)
    after, read, _ = MODELS[name]
    first, *others = inputs_of(name, model)
    found = through(model, *after, read=read, **first)
    again = [product_and_whole(model, *after, **inputs) for inputs in others]
    return {"name": name, "n": len(found["from"])} | found | {"again": again}


def stored() -> list[dict]:
    """Return the rows that are kept with the book."""
    file = stored_file("depth.json", "make depth")
    return json.loads(file.read_text(encoding="utf8"))["rows"]


def main(path: str) -> None:
    """Measure every model, and store the table; after an interruption, go on where it was."""
    parts = Path(path).with_suffix(".part")
    rows = [kept(parts / f"{name}.json", functools.partial(measured, name)) for name in MODELS]
    table = {"command": "make depth", "versions": versions(), "rows": short(rows)}
    Path(path).write_text(json.dumps(table, indent=1) + "\n", encoding="utf8")
    shutil.rmtree(parts)


if __name__ == "__main__":
    main(sys.argv[1])
