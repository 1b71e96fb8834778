r"""Attacks in token space, a search for sequences of real tokens with a large local constant.

A user cannot perturb embeddings freely, but can choose words. The search puts a token at one
position or at a few at once. The gradient of :math:`\sigma_{\max}` proposes, and exact evaluation
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from lab.models.language_model import LanguageModel
from lipcore._checks import check_count
from lipcore.attention import Attention
from lipcore.lipschitz import local_lipschitz

#: The relative tolerance of an evaluation.
TOLERANCE = 1e-3

#: An exchange puts a token at some positions: (positions, token).
_Exchange = tuple[Tensor, int]


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The result of a search over token sequences.

    Attributes
    ----------
    ids : Tensor of int64, shape (n,)
        The best sequence.
    value : float
        The local constant of the layer there.
    history : Tensor, shape (evaluations,)
        The best value after each exact evaluation, the start included; it never falls.
    """

    ids: Tensor
    value: float
    history: Tensor


def evaluate(
    model: LanguageModel, layer: int, ids: Tensor, attention: Attention | None = None
) -> Tensor:
    """Return the local constant of a layer at each sequence, (batch, n) ids → (batch,)."""
    f = model.attention(layer) if attention is None else attention
    return local_lipschitz(f, model.hidden_states(layer, ids), tol=TOLERANCE).value


@torch.enable_grad()
def token_scores(model: LanguageModel, layer: int, ids: Tensor) -> Tensor:
    r"""Return the first-order change of :math:`\sigma_{\max}` for every token at every position.

    With the top singular vectors u, v held fixed, the gradient with respect to the output of the
    embedding layer, :math:`x^0_i`, is that of :math:`u\cdot D_Xf[v]` (Danskin). Another token t at
    position i moves :math:`x^0_i` to :math:`x^0_i(t) = \mathrm{LayerNorm}(E_t + p_i)`, which is
    known exactly, and the predicted change is :math:`\nabla_{x^0_i}\sigma\cdot(x^0_i(t) - x^0_i)`.
    A linear model of LayerNorm too would prefer the tokens with the longest embeddings, although
    LayerNorm removes their length.

    Parameters
    ----------
    model : LanguageModel
        A model of BERT type.
    layer : int
    ids : Tensor of integers, shape (n,)

    Returns
    -------
    Tensor, shape (n, vocabulary)
        The changes, zero for the tokens that are there.

    Raises
    ------
    ValueError, TypeError, IndexError
        If the model is not of BERT type, the ids are no single sequence of it, or there is no such
        layer.
    """
    if model.architecture != "BERT":
        raise ValueError(f"model: expected one of BERT type, got {model.architecture}")
    f = model.attention(layer)
    x0 = model.hidden_states(0, ids)
    ids = _one_sequence(ids)
    x0 = x0[0].requires_grad_()
    X = entering(model, layer, x0)
    found = local_lipschitz(f, X.detach()[None], tol=TOLERANCE)
    (pulled,) = torch.autograd.grad(f(X), X, found.left[0], create_graph=True)
    (gradient,) = torch.autograd.grad((pulled * found.right[0]).sum(), x0)
    scores = _products(model, gradient)
    return scores - scores.gather(1, ids[:, None])


def entering(model: LanguageModel, layer: int, x0: Tensor) -> Tensor:
    """Return what enters the attention of ``layer`` of a BERT whose embeddings are x0.

    Both have shape (n, d), and the result is differentiable in x0.
    """
    X = x0[None]
    mask = None
    if model.causal:
        mask = X.new_full((1, 1, len(x0), len(x0)), torch.finfo(X.dtype).min).triu(1)
    for block in model.model.encoder.layer[:layer]:
        X = block(X, mask)
    return X[0]


def _products(model: LanguageModel, gradient: Tensor) -> Tensor:
    """Return gradient_i · LayerNorm(E_t + p_i) for all i and t, up to a constant in t.

    Two products with the table E suffice, for the mean and the norm of E_t + p_i.
    """
    embedding = model.model.embeddings
    norm = embedding.LayerNorm
    table = embedding.word_embeddings.weight
    place = embedding.position_embeddings.weight[: len(gradient)]
    place = place + embedding.token_type_embeddings.weight[0]
    along = gradient * norm.weight
    along = along - along.mean(-1, keepdim=True)
    product = along @ table.mT + (along * place).sum(-1, keepdim=True)
    mean = table.mean(-1) + place.mean(-1, keepdim=True)
    square = table.square().sum(-1) + 2 * place @ table.mT + place.square().sum(-1, keepdim=True)
    return product / (square / table.shape[1] - mean.square() + norm.eps).sqrt()


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
) -> SearchResult:
    """Search greedily by exchanges that the gradient favours, each of which is evaluated exactly.

    An exchange puts one token at c positions, with c drawn from ``copies``. For c = 1 it is drawn
    from the best ``per_position`` tokens of every position by :func:`token_scores`. For larger c it
    is drawn from as many tokens, those with the largest sum over their best c positions. Every
    round takes ``batch`` exchanges that were not tried since the last change, and makes the best of
    them if it raises the constant.

    Parameters
    ----------
    model : LanguageModel
    layer : int
    ids : Tensor of integers, shape (n,)
        The sequence at which the search begins.
    evaluations : int
        The number of exact evaluations in all, the start included.
    batch : int
        The number of exchanges that are evaluated together.
    copies : sequence of int
        At how many positions the new token may be put at once; ``(1,)`` means one at a time.
    per_position : int
        From how many tokens a position may choose; more help where first order is a poor guide.
    allowed : Tensor of bool, shape (vocabulary,), optional
        Tokens that may be put in; all if left out.
    generator : torch.Generator, optional
        The source of chance; a fixed seed if left out.
    progress : bool

    Returns
    -------
    SearchResult

    Raises
    ------
    ValueError, TypeError, IndexError
        If the ids, the layer, ``copies`` or ``allowed`` do not fit the model.
    """
    allowed = _check_allowed(model, allowed)
    per_position = check_count("per_position", per_position)
    generator = generator or torch.Generator().manual_seed(0)
    pools: list[list[_Exchange]] = []
    scored: Tensor | None = None

    def propose(ids: Tensor, copies: list[int], count: int) -> list[_Exchange]:
        nonlocal pools, scored
        if scored is not ids:
            scores = token_scores(model, layer, ids).masked_fill(~allowed, -torch.inf)
            scores = scores.scatter(1, ids[:, None], -torch.inf)
            pools = [_pool(scores, c, per_position, generator) for c in copies]
            scored = ids
        found: list[_Exchange] = []
        while len(found) < count and (left := [pool for pool in pools if pool]):
            found.append(left[_draw(len(left), generator)].pop())
        return found

    return _search(model, layer, ids, propose, copies, evaluations, batch, progress)


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
) -> SearchResult:
    """Search as :func:`guided_search` does, with positions and tokens drawn uniformly.

    Parameters
    ----------
    model, layer, ids, evaluations, batch, copies, allowed, generator, progress
        As in :func:`guided_search`.

    Returns
    -------
    SearchResult
    """
    tokens = _check_allowed(model, allowed).nonzero()[:, 0]
    generator = generator or torch.Generator().manual_seed(0)

    def propose(ids: Tensor, copies: list[int], count: int) -> list[_Exchange]:
        drawn = []
        for _ in range(count):
            places = torch.randperm(len(ids), generator=generator)
            places = places[: copies[_draw(len(copies), generator)]]
            drawn.append((places, int(tokens[_draw(len(tokens), generator)])))
        return drawn

    return _search(model, layer, ids, propose, copies, evaluations, batch, progress)


def random_sequences(
    model: LanguageModel,
    layer: int,
    n: int,
    *,
    evaluations: int,
    batch: int = 16,
    allowed: Tensor | None = None,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> SearchResult:
    """Return the sequence of largest constant among ``evaluations`` with uniformly drawn tokens.

    Parameters
    ----------
    n : int
        The number of tokens in a sequence.
    model, layer, evaluations, batch, allowed, generator, progress
        Those of :func:`guided_search`.

    Returns
    -------
    SearchResult
    """
    tokens = _check_allowed(model, allowed).nonzero()[:, 0]
    generator = generator or torch.Generator().manual_seed(0)
    shape = (check_count("evaluations", evaluations), check_count("n", n))
    drawn = tokens[torch.randint(len(tokens), shape, generator=generator)]
    f = model.attention(layer)
    parts = tqdm(drawn.split(check_count("batch", batch)), leave=False, disable=not progress)
    values = torch.cat([evaluate(model, layer, part, f) for part in parts]).double()
    return SearchResult(drawn[values.argmax()], values.max().item(), values.cummax(0).values)


def _search(
    model: LanguageModel,
    layer: int,
    ids: Tensor,
    propose: Callable[[Tensor, list[int], int], list[_Exchange]],
    copies: Sequence[int],
    evaluations: int,
    batch: int,
    progress: bool,
) -> SearchResult:
    """Make the best of each round's exchanges where it raises the constant."""
    evaluations = check_count("evaluations", evaluations)
    batch = check_count("batch", batch)
    f = model.attention(layer)
    history = evaluate(model, layer, ids, f).double()
    ids = _one_sequence(ids)
    copies = _check_copies(copies, len(ids))
    with tqdm(
        total=evaluations, initial=1, desc="token search", leave=False, disable=not progress
    ) as ticks:
        while len(history) < evaluations:
            exchanges = propose(ids, copies, min(batch, evaluations - len(history)))
            if not exchanges:  # none is left
                history = torch.cat([history, history[-1:].expand(evaluations - len(history))])
                break
            candidates = ids.repeat(len(exchanges), 1)
            for candidate, (places, token) in zip(candidates, exchanges, strict=True):
                candidate[places] = token
            values = evaluate(model, layer, candidates, f).double()
            if values.max() > history[-1]:
                ids = candidates[values.argmax()]
            history = torch.cat([history, values]).cummax(0).values
            ticks.update(len(exchanges))
    return SearchResult(ids, history[-1].item(), history)


def _pool(
    scores: Tensor, copies: int, per_position: int, generator: torch.Generator
) -> list[_Exchange]:
    """Return the best exchanges with this many copies, in random order, without scores of −∞."""
    n, vocabulary = scores.shape
    if copies == 1:
        best = scores.topk(min(per_position, vocabulary), dim=1)
        found = [
            (torch.tensor([place]), token)
            for place in range(n)
            for token in best.indices[place, best.values[place].isfinite()].tolist()
        ]
    else:
        places = scores.topk(copies, dim=0)  # the best places of each token
        best = places.values.sum(0).topk(min(n * per_position, vocabulary))
        tokens = best.indices[best.values.isfinite()].tolist()
        found = [(places.indices[:, token], token) for token in tokens]
    return [found[k] for k in torch.randperm(len(found), generator=generator).tolist()]


def _draw(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(count, (), generator=generator))


def _one_sequence(ids: Tensor) -> Tensor:
    """Return a copy of the ids as a vector."""
    if ids.numel() != ids.shape[-1]:
        raise ValueError(f"ids: expected one sequence, got shape {tuple(ids.shape)}")
    return ids.flatten().long().clone()


def _check_copies(copies: Sequence[int], n: int) -> list[int]:
    """Return the counts as a list, without those beyond the sequence (one copy always fits)."""
    if not isinstance(copies, Sequence):
        raise TypeError(f"copies: expected a sequence of counts, got {copies!r}")
    checked = [check_count("copies", c) for c in copies]
    if not checked:
        raise ValueError("copies: expected at least one count, got none")
    return [c for c in checked if c <= n] or [1]


def _check_allowed(model: LanguageModel, allowed: Tensor | None) -> Tensor:
    if allowed is None:
        return torch.ones(model.vocab_size, dtype=torch.bool)
    is_mask = isinstance(allowed, Tensor) and allowed.dtype == torch.bool
    if not is_mask or tuple(allowed.shape) != (model.vocab_size,):
        raise ValueError(f"allowed: expected a boolean tensor of shape ({model.vocab_size},)")
    if not bool(allowed.any()):
        raise ValueError("allowed: expected some token, got none")
    return allowed
