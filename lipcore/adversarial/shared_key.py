"""One key that all the other tokens attend to, in a head with biases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipcore._checks import check_count, check_number
from lipcore.adversarial.pairs import one_against_others, reduced_scores
from lipcore.attention import Attention
from lipcore.bounds import score_gap


@dataclass(frozen=True, eq=False)
class SharedKey:
    """An input whose first token is attended to by all the others, for one head.

    Attributes
    ----------
    X : Tensor, shape (n, d)
        The shared key first, then n − 1 equal tokens.
    lead : float
        How much the others' score for the shared key exceeds their score for one another.
    lower : float
        A lower bound of the local constant at X, from moves of the first token alone.
    """

    X: Tensor
    lead: float
    lower: float


def shared_key_inputs(head: Attention, n: int, radius: float) -> SharedKey:
    r"""Return an input with one token that all others attend to (:prf:ref:`prop-crowd-bias`).

    The head may have biases and a causal mask. The others are at :math:`x_2 = Ru`, u the maximiser
    of the score gap of A, and the shared key is at :math:`x_1 = Ry/\|y\|` with
    :math:`y = Ax_2 + c`, the gradient of their scores. With :math:`z = x_1 - x_2`,
    :math:`w_i = 1/(1 + m_i e^{-y\cdot z})`, and :math:`m_i = n - 1`, or i − 1 with a causal mask,

    .. math:: \|D_Xf\|_2 \ge \max_{\|\varepsilon\|=1} \Big( \sum_{i\ge2} w_i^2
        \big\| V(I + (1-w_i)\,zy^\top)\varepsilon \big\|^2 \Big)^{1/2}.

    Parameters
    ----------
    head : Attention
        With one head. With rotary positions the tokens are those for equal positions, and
        ``lower`` is no bound.
    n : int
    radius : float

    Returns
    -------
    SharedKey

    Raises
    ------
    ValueError, TypeError
        If there are several heads, other masks than the causal one, n < 2, or the radius is not
        positive.

    Examples
    --------
    >>> import torch
    >>> head = Attention.from_matrices(-torch.eye(2), torch.eye(2))
    >>> found = shared_key_inputs(head, n=50, radius=4.0)
    >>> round(found.lead, 3), round(found.lower, 3)  # 2γR²; all the weight is on one key: √49
    (32.0, 7.0)
    """
    if head.heads != 1 or head.mask is not None or head.log_weights is not None or head.window:
        expected = "one head without mask, log_weights and window (causal=True is allowed)"
        raise ValueError(f"head: expected {expected}, got {head!r}")
    n = check_count("n", n, minimum=2)
    radius = check_number("radius", radius, minimum=0, strict=True)
    A, basis = reduced_scores(head)
    _, u = score_gap(A)
    x2 = radius * (basis @ u.to(A))
    y = basis @ (A @ (basis.mT @ x2)) + head.score_offsets()[0]
    if not bool(y.norm() > 0):
        raise ValueError("head: expected scores that depend on the key, got equal ones")
    x1 = radius * y / y.norm()
    z = x1 - x2
    lead = y @ z
    if not bool(torch.isfinite(lead)):
        raise ValueError(f"radius: expected scores within range of {lead.dtype}, got {radius:g}")
    rivals = torch.arange(1, n) if head.causal else torch.full((n - 1,), n - 1)  # m_i
    w = torch.sigmoid(lead - rivals.to(y).log())
    lower = _response_to_first(_value_and_output(head), y, z, w)
    return SharedKey(one_against_others(x1, x2, n), lead.item(), lower.item())


def _value_and_output(head: Attention) -> Tensor:
    """Return W V, or a matrix with the same norms and few rows."""
    value = head.value[0]
    return value if head.output is None else torch.linalg.qr(head.output, mode="r").R @ value


def _response_to_first(V: Tensor, y: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """Return the largest √Σ_i w_i² ‖V(I + (1−w_i) z yᵀ) ε‖² over unit ε, in the span of V and y."""
    basis, _ = torch.linalg.qr(torch.cat([V, y[None]]).mT)
    VB = V @ basis
    yB = y @ basis
    Vz = V @ z
    s0, s1, s2 = ((w.square() * (1 - w) ** power).sum() for power in range(3))
    cross = torch.outer(Vz @ VB, yB)
    form = s0 * VB.mT @ VB + s1 * (cross + cross.mT) + s2 * (Vz @ Vz) * torch.outer(yB, yB)
    return torch.linalg.eigvalsh(form)[-1].clamp(min=0).sqrt()
