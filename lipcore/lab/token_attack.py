r"""Attacks in token space: sequences of real tokens on which a layer's attention is as rough as can be found.

Perturbing embeddings freely is not what a user can do; choosing words is. The search puts a token at one position or
at a few at once, proposed by the gradient of :math:`\sigma_{\max}` and judged by exact evaluation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from lipcore._checks import check_count
from lipcore.attention import Attention
from lipcore.models.language_model import _RUNNING, LanguageModel
from lipcore.spectral import local_lipschitz

#: Relative tolerance of an exact evaluation.
_TOL = 1e-3


@dataclass(frozen=True, eq=False)
class TokenAttack:
    """What a search over token sequences found.

    Attributes
    ----------
    ids : Tensor of int64, shape (n,)
        The best sequence.
    value : float
        Local constant of the layer there.
    history : Tensor, shape (evaluations,)
        Best value after each exact evaluation, the start included; it never falls.
    """

    ids: Tensor
    value: float
    history: Tensor


@torch.enable_grad()
def token_scores(model: LanguageModel, layer: int, ids: Tensor) -> Tensor:
    r"""First-order change of :math:`\sigma_{\max}` for every token of the vocabulary at every position.

    With the top singular vectors u, v held fixed, the gradient with respect to what the embedding layer puts out,
    :math:`x^0_i`, is that of :math:`u\cdot D_Xf[v]` (Danskin). Another token t at position i moves :math:`x^0_i` to
    :math:`x^0_i(t) = \mathrm{LayerNorm}(E_t + p_i)`, which is known exactly; it promises
    :math:`\nabla_{x^0_i}\sigma\cdot(x^0_i(t) - x^0_i)`. A linear model of LayerNorm as well would promise most to the
    tokens with the longest embeddings, which is what LayerNorm takes away.

    Parameters
    ----------
    model : LanguageModel
        Of BERT type.
    layer : int
    ids : Tensor of integers, shape (n,)

    Returns
    -------
    Tensor, shape (n, vocabulary)
        Zero at the tokens that are there.

    Raises
    ------
    ValueError, TypeError, IndexError
        If the model is not of BERT type, the ids are no single sequence of it, or there is no such layer.
    """
    ids = _check_sequence(model, ids)
    x0 = embedded(model, ids).requires_grad_()
    X, f = entering(model, layer, x0), model.attention(layer)
    found = local_lipschitz(f, X.detach()[None], tol=_TOL)
    (pulled,) = torch.autograd.grad(f(X), X, found.left[0], create_graph=True)
    (gradient,) = torch.autograd.grad((pulled * found.right[0]).sum(), x0)
    scores = _products(model, gradient)
    return scores - scores.gather(1, ids[:, None])


def embedded(model: LanguageModel, ids: Tensor) -> Tensor:
    """What BERT's embedding layer puts out: token, position and type, normalised. (…, n) → (…, n, d)."""
    if model.architecture != "BERT":
        raise ValueError(f"model: expected one of BERT type, got {model.architecture}")
    with torch.no_grad():
        return model.model.embeddings(input_ids=ids.reshape(-1, ids.shape[-1])).reshape(
            *ids.shape, -1
        )


def entering(model: LanguageModel, layer: int, x0: Tensor) -> Tensor:
    """What enters the attention of ``layer`` when the embedding layer puts out x0, (n, d): differentiable in x0."""
    kept: list[Tensor] = []

    def keep(module, args: tuple) -> None:
        kept.append(args[0])
        raise _Reached

    entry = model._layers.entry(model._check_layer(layer))
    with _RUNNING, contextlib.ExitStack() as stack:
        replaced = model.model.embeddings.register_forward_hook(lambda module, args, out: x0[None])
        stack.callback(replaced.remove)
        stack.callback(entry.register_forward_pre_hook(keep).remove)
        with contextlib.suppress(_Reached):
            model.model(input_ids=torch.zeros(1, len(x0), dtype=torch.long, device=x0.device))
    return kept[0][0]


def _products(model: LanguageModel, gradient: Tensor) -> Tensor:
    """gradient_i · LayerNorm(E_t + p_i) for all i and t, up to a constant in t, from two products with the table E."""
    layer = model.model.embeddings
    table = layer.word_embeddings.weight
    place = (
        layer.position_embeddings.weight[: len(gradient)] + layer.token_type_embeddings.weight[0]
    )
    along = gradient * layer.LayerNorm.weight
    along = along - along.mean(-1, keepdim=True)
    product = along @ table.mT + (along * place).sum(-1, keepdim=True)
    mean = table.mean(-1) + place.mean(-1, keepdim=True)
    square = table.square().sum(-1) + 2 * place @ table.mT + place.square().sum(-1, keepdim=True)
    return product / (square / table.shape[1] - mean.square() + layer.LayerNorm.eps).sqrt()


def guided_search(
    model: LanguageModel,
    layer: int,
    ids: Tensor,
    *,
    evaluations: int,
    batch: int = 16,
    copies: Sequence[int] = (1, 2, 4),
    per_position: int = 4,
    allowed: Tensor | None = None,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> TokenAttack:
    """Greedy coordinate search: exchanges that the gradient favours, each evaluated exactly.

    An exchange puts one token at c positions, with c drawn from ``copies``. For c = 1 it is drawn from the best
    ``per_position`` tokens of every position by :func:`token_scores`; for larger c from as many tokens, those whose
    best c positions promise most together. Every round takes ``batch`` exchanges that were not tried since the last
    change; the best of them is made if it raises the constant.

    Parameters
    ----------
    model : LanguageModel
    layer : int
    ids : Tensor of integers, shape (n,)
        Where to start.
    evaluations : int
        Exact evaluations in all, the start included.
    batch : int
        Exchanges evaluated together.
    copies : sequence of int
        At how many positions the new token may be put at once; ``(1,)`` is coordinate search proper.
    per_position : int
        How many tokens a position may choose from: more variety, where first order is a poor guide.
    allowed : Tensor of bool, shape (vocabulary,), optional
        Tokens that may be put in; all if left out.
    generator : torch.Generator, optional
        A fixed seed if left out.
    progress : bool

    Returns
    -------
    TokenAttack

    Raises
    ------
    ValueError, TypeError, IndexError
        If the ids, the layer, ``copies`` or ``allowed`` do not fit the model.
    """
    allowed, per_position = (
        _check_allowed(model, allowed),
        check_count("per_position", per_position),
    )
    copies = _check_copies(copies, _check_sequence(model, ids))

    def propose(search: _Search, count: int) -> list[_Exchange]:
        if search.pools is None:
            scores = token_scores(model, layer, search.ids).masked_fill(~allowed, -torch.inf)
            scores[torch.arange(len(search.ids)), search.ids] = -torch.inf
            search.pools = [_pool(scores, c, per_position, search.generator) for c in copies]
        found: list[_Exchange] = []
        while len(found) < count and (pools := [pool for pool in search.pools if pool]):
            found.append(pools[_draw(len(pools), search.generator)].pop())
        return found

    return _search(model, layer, ids, propose, evaluations, batch, generator, progress)


def random_search(
    model: LanguageModel,
    layer: int,
    ids: Tensor,
    *,
    evaluations: int,
    batch: int = 16,
    copies: Sequence[int] = (1, 2, 4),
    allowed: Tensor | None = None,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> TokenAttack:
    """Search as :func:`guided_search`, with positions and tokens of the exchanges drawn uniformly.

    Parameters
    ----------
    model, layer, ids, evaluations, batch, copies, allowed, generator, progress
        As in :func:`guided_search`.

    Returns
    -------
    TokenAttack
    """
    tokens = _check_allowed(model, allowed).nonzero()[:, 0]
    copies = _check_copies(copies, _check_sequence(model, ids))

    def propose(search: _Search, count: int) -> list[_Exchange]:
        drawn = []
        for _ in range(count):
            places = torch.randperm(len(search.ids), generator=search.generator)
            places = places[: copies[_draw(len(copies), search.generator)]]
            drawn.append((places, int(tokens[_draw(len(tokens), search.generator)])))
        return drawn

    return _search(model, layer, ids, propose, evaluations, batch, generator, progress)


def evaluate(
    model: LanguageModel, layer: int, ids: Tensor, attention: Attention | None = None
) -> Tensor:
    """Local constant of a layer at each sequence: ids of shape (batch, n) → (batch,)."""
    f = model.attention(layer) if attention is None else attention
    return local_lipschitz(f, model.hidden_states(layer, ids), tol=_TOL).value


class _Reached(Exception):
    """Raised inside the running model once the layer's input is there."""


#: A token put at some positions: (positions, token).
_Exchange = tuple[Tensor, int]


@dataclass
class _Search:
    """Where a search stands; ``pools`` hold what is left to try at the present ids, a pool for each count of copies."""

    ids: Tensor
    generator: torch.Generator
    pools: list[list[_Exchange]] | None = None


def _pool(
    scores: Tensor, copies: int, per_position: int, generator: torch.Generator
) -> list[_Exchange]:
    """The exchanges with ``copies`` copies that promise most, in random order; scores −∞ are left out."""
    n, vocabulary = scores.shape
    if copies == 1:
        best = scores.topk(min(per_position, vocabulary), dim=1)
        pairs = [
            (place, int(token))
            for place in range(n)
            for token in best.indices[place][best.values[place].isfinite()]
        ]
        found = [(torch.tensor([place]), token) for place, token in pairs]
    else:
        top = scores.topk(copies, dim=0)  # the best places of each token
        best = top.values.sum(0).topk(min(n * per_position, vocabulary))
        found = [
            (top.indices[:, token], int(token)) for token in best.indices[best.values.isfinite()]
        ]
    return [found[k] for k in torch.randperm(len(found), generator=generator).tolist()]


def _draw(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(count, (), generator=generator))


def _search(model, layer, ids, propose, evaluations, batch, generator, progress) -> TokenAttack:
    evaluations, batch = check_count("evaluations", evaluations), check_count("batch", batch)
    search = _Search(
        _check_sequence(model, ids).clone(), generator or torch.Generator().manual_seed(0)
    )
    f = model.attention(layer)
    history = [evaluate(model, layer, search.ids[None], f).item()]
    with tqdm(total=evaluations, disable=not progress, desc="token attack", leave=False) as ticks:
        ticks.update(1)
        while len(history) < evaluations:
            exchanges = propose(search, min(batch, evaluations - len(history)))
            if not exchanges:  # none is left
                history += history[-1:] * (evaluations - len(history))
                break
            candidates = search.ids.repeat(len(exchanges), 1)
            for candidate, (places, token) in zip(candidates, exchanges, strict=True):
                candidate[places] = token
            values = evaluate(model, layer, candidates, f)
            best = int(values.argmax())
            if values[best] > history[-1]:
                search.ids, search.pools = candidates[best], None
            for value in values.tolist():
                history.append(max(history[-1], value))
            for _ in exchanges:
                ticks.update()
    return TokenAttack(search.ids, history[-1], torch.tensor(history, dtype=torch.float64))


def _check_copies(copies: Sequence[int], ids: Tensor) -> list[int]:
    """As a list without counts that exceed the sequence (one copy always fits)."""
    if not isinstance(copies, Sequence):
        raise TypeError(f"copies: expected a sequence of counts, got {copies!r}")
    checked = [check_count("copies", c) for c in copies]
    if not checked:
        raise ValueError("copies: expected at least one count, got none")
    return [c for c in checked if c <= ids.shape[-1]] or [1]


def _check_sequence(model: LanguageModel, ids: Tensor) -> Tensor:
    checked = model._check_ids(ids)
    if len(checked) != 1:
        raise ValueError(f"ids: expected one sequence, got shape {tuple(ids.shape)}")
    return checked[0]


def _check_allowed(model: LanguageModel, allowed: Tensor | None) -> Tensor:
    if allowed is None:
        return torch.ones(model.vocab_size, dtype=torch.bool)
    if (
        not isinstance(allowed, Tensor)
        or allowed.dtype != torch.bool
        or tuple(allowed.shape) != (model.vocab_size,)
    ):
        raise ValueError(f"allowed: expected a boolean tensor of shape ({model.vocab_size},)")
    if not bool(allowed.any()):
        raise ValueError("allowed: expected some token, got none")
    return allowed
