"""The set in which tokens stay during gradient ascent: a ball, or an ellipsoid."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcore._checks import check_number, check_real_tensor
from lipcore.bounds.normalised import Normalisation

#: The relative distance by which a token may be outside the ball.
OUTSIDE = {torch.float32: 1e-5, torch.float64: 1e-9}
#: The same for the ellipsoid and the mean, since the ε of a normalisation makes tokens shorter.
OFF_ELLIPSOID = 1e-3


@dataclass(frozen=True, eq=False)
class Domain:
    """Tokens scale ⊙ y + offset, with y in the unit ball or on the sphere, perhaps of mean zero."""

    scale: Tensor  # (d,)
    offset: Tensor  # (d,)
    sphere: bool
    centred: bool = False

    def inward(self, X: Tensor) -> Tensor:
        """Return the coordinates y of tokens X, moved into the set."""
        return self.project((X - self.offset) / self.scale)

    def outward(self, y: Tensor) -> Tensor:
        """Return the tokens of coordinates y."""
        return self.scale * y + self.offset

    def project(self, y: Tensor) -> Tensor:
        """Return the nearest coordinates in the set."""
        y = self._centre(y)
        norms = y.norm(dim=-1, keepdim=True)
        if self.sphere:
            return y / torch.where(norms > 0, norms, 1)
        return y / norms.clamp(min=1.0)

    def tangent(self, y: Tensor, gradient: Tensor) -> Tensor:
        """Return the part of the gradient at y that moves tokens along the set."""
        gradient = self._centre(gradient)
        if self.sphere:
            return gradient - (gradient * y).sum(-1, keepdim=True) * y
        return gradient

    def check(self, X: Tensor) -> None:
        """Refuse tokens outside the set."""
        y = (X - self.offset) / self.scale
        norms = y.norm(dim=-1)
        if not self.sphere:
            if bool((norms > 1 + OUTSIDE[X.dtype]).any()):
                radius = self.scale[0].item()
                raise ValueError(
                    f"X: expected tokens in the ball of radius {radius:g}, "
                    f"got one of norm {norms.max().item() * radius:.9g}"
                )
            return
        off = (norms - 1).abs()
        if bool((off > OFF_ELLIPSOID).any()):
            size = norms.flatten()[off.argmax()].item()
            raise ValueError(
                f"X: expected tokens on the ellipsoid, got one at {size:.6g} of its size"
            )
        if self.centred and bool((y.mean(-1).abs() * math.sqrt(y.shape[-1]) > OFF_ELLIPSOID).any()):
            raise ValueError("X: expected tokens out of a LayerNorm, got one that is not centred")

    def _centre(self, y: Tensor) -> Tensor:
        return y - y.mean(-1, keepdim=True) if self.centred else y


def domain_of(
    X: Tensor,
    radius: float | None,
    ellipsoid: Normalisation | tuple[Tensor, Tensor | None] | None,
) -> Domain:
    """Return the ball or the ellipsoid, whichever is given, if it contains all tokens of X."""
    if (radius is None) == (ellipsoid is None):
        got = "neither" if radius is None else "both"
        raise ValueError(f"radius, ellipsoid: expected exactly one of the two, got {got}")
    d = X.shape[-1]
    if radius is not None:
        radius = check_number("radius", radius, minimum=0, strict=True)
        domain = Domain(X.new_full((d,), radius), X.new_zeros(d), sphere=False)
    elif isinstance(ellipsoid, Normalisation):
        centred = ellipsoid.kind == "layer"
        domain = _ellipsoid(X, ellipsoid.gain, ellipsoid.bias, centred=centred)
    else:
        domain = _ellipsoid(X, *ellipsoid, centred=False)
    domain.check(X)
    return domain


def _ellipsoid(X: Tensor, gain: Tensor, bias: Tensor | None, *, centred: bool) -> Domain:
    bias = torch.zeros_like(gain) if bias is None else bias
    d = X.shape[-1]
    for name, tensor in (("gain", gain), ("bias", bias)):
        if tuple(check_real_tensor(f"ellipsoid {name}", tensor).shape) != (d,):
            raise ValueError(f"ellipsoid {name}: expected shape ({d},), got {tuple(tensor.shape)}")
    if bool((gain == 0).any()):
        raise ValueError("ellipsoid gain: expected entries other than zero, got a zero")
    return Domain(math.sqrt(d) * gain.to(X), bias.to(X), sphere=True, centred=centred)
