"""How much each head, and each of the Jacobian's three terms, adds to σ and to output moves."""

from __future__ import annotations

import torch
from torch import Tensor

from lipcore.gates import head_outputs

#: Rows of attention weights that are differentiated at a time.
ROWS = 256


def head_and_term_shares(layer, X: Tensor, left: Tensor, right: Tensor) -> Tensor:
    r"""Return what each head and term of the Jacobian adds to :math:`\langle u, D_Xf[v]\rangle`.

    The Jacobian is a sum over heads and over the three terms of :prf:ref:`thm-jacobian`: the
    derivative with respect to the values (mixing), to the queries (own query) and to the keys
    (others' keys). With the top singular pair the numbers sum to σ.

    Parameters
    ----------
    layer : Attention or CrossAttention
    X : Tensor, shape (…, n, d)
    left, right : Tensor, shapes (…, n, output_dim) and (…, n, d)
        The singular vectors u and v.

    Returns
    -------
    Tensor, shape (…, heads, 3)
        Mixing, own query (the query term) and others' keys (the key term); some may be negative.
        With gates the shape is (…, heads, 4), and what their derivative adds comes last.

    Examples
    --------
    >>> import torch
    >>> from lipcore import Attention
    >>> f = Attention.from_matrices(torch.zeros(2, 2), torch.eye(2))  # no scores: mixing alone
    >>> u = torch.full((2, 2), 0.5)
    >>> head_and_term_shares(f, torch.eye(2), u, u).tolist()
    [[1.0, 0.0, 0.0]]
    """
    X = X.detach()
    with torch.no_grad():
        projected, tangents = torch.func.jvp(
            lambda Y: layer.project(Y, value_bias=layer.sinks is not None), (X,), (right.detach(),)
        )
        response = left.detach() if layer.output is None else left.detach() @ layer.output
        response = response.unflatten(-1, (layer.heads, -1)).transpose(-3, -2)
        gated = [] if layer.gates(X) is None else [_change_of_gates(layer, X, right) * response]
        response = layer.gated(response, X)
        total = 0
        n = response.shape[-2]
        for start in range(0, n, ROWS):
            rows = slice(start, min(start + ROWS, n))
            terms = [_change(layer, projected, tangents, moved, rows) for moved in (2, 0, 1)]
            changes = torch.stack(terms, dim=-1)  # (…, heads, rows, p, 3)
            total = total + (changes * response[..., rows, :, None]).sum((-3, -2))
    return torch.cat([total, *(part.sum((-2, -1))[..., None] for part in gated)], dim=-1)


@torch.no_grad()
def moves_by_term(layer, X: Tensor, H: Tensor) -> Tensor:
    r"""Return the parts of D_X f[H] by the terms of the Jacobian, for a move H of the tokens.

    Parameters
    ----------
    layer : Attention
        A layer without gates.
    X, H : Tensor, shape (…, n, d)

    Returns
    -------
    Tensor, shape (3, …, n, output_dim)
        Mixing, own query (the query term) and others' keys (the key term); their sum is D_X f[H].

    Examples
    --------
    >>> import torch
    >>> from lipcore import Attention
    >>> f = Attention.from_matrices(torch.zeros(2, 2), torch.eye(2))  # no scores: mixing alone
    >>> moves_by_term(f, torch.eye(2), torch.ones(2, 2)).norm(dim=(1, 2)).tolist()
    [2.0, 0.0, 0.0]
    """
    projected, tangents = torch.func.jvp(
        lambda Y: layer.project(Y, value_bias=layer.sinks is not None), (X,), (H,)
    )
    rows = slice(0, X.shape[-2])
    changes = [_change(layer, projected, tangents, moved, rows) for moved in (2, 0, 1)]
    return torch.stack([layer.join_heads(change) for change in changes])


def _change_of_gates(layer, X: Tensor, right: Tensor) -> Tensor:
    """Return the change of the heads' outputs (…, heads, n, p) if the gates alone move."""
    return torch.func.jvp(layer.gates, (X,), (right.detach(),))[1] * head_outputs(layer, X)


def _change(layer, projected, tangents, moved: int, rows: slice) -> Tensor:
    """Return the heads' change (…, heads, rows, p) if queries, keys or values alone move."""

    def outputs(part: Tensor) -> Tensor:
        parts = list(projected)
        parts[moved] = part
        queries, keys, values = parts
        if moved != 2 and layer.sinks is None:
            # rows of a change of weights sum to zero: values may be taken relative to their mean
            values = values - values.mean(-2, keepdim=True)
        return layer.row_weights(queries, keys, rows) @ values

    return torch.func.jvp(outputs, (projected[moved],), (tangents[moved],))[1]
