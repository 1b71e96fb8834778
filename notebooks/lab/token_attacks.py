"""Searches for sequences of real tokens at which a layer's local constant is large."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from lab.models.language_model import LanguageModel
from lipcore.attention import Attention
from lipcore.lipschitz import local_lipschitz

#: The relative tolerance of an evaluation.
TOLERANCE = 1e-3
#: Sequences that are evaluated together, and exchanges at each position to draw from.
BATCH, PER_POSITION = 16, 4
#: An exchange puts a token at some positions: (positions, token).
_Exchange = tuple[Tensor, int]


class SearchResult(NamedTuple):
    """The best sequence of a search, the constant of the layer there, and how it was found."""

    ids: Tensor
    value: float
    history: Tensor  # the best value after each exact evaluation, the start included


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

    The result has shape (n, vocabulary), and is zero for the tokens that are there. The model is
    of BERT type, and ids (n,) are one sequence.
    """
    f = model.attention(layer)
    x0 = model.hidden_states(0, ids)[0].requires_grad_()
    X = entering(model, layer, x0)
    found = local_lipschitz(f, X.detach()[None], tol=TOLERANCE)
    (pulled,) = torch.autograd.grad(f(X), X, found.left[0], create_graph=True)
    (gradient,) = torch.autograd.grad((pulled * found.right[0]).sum(), x0)
    scores = _products(model, gradient)
    return scores - scores.gather(1, ids.long()[:, None])


def entering(model: LanguageModel, layer: int, x0: Tensor) -> Tensor:
    """Return what enters the attention of ``layer`` of a BERT, from its embeddings x0 (n, d)."""
    X = x0[None]
    mask = None
    if model.causal:
        mask = X.new_full((1, 1, len(x0), len(x0)), torch.finfo(X.dtype).min).triu(1)
    for block in model.model.encoder.layer[:layer]:
        X = block(X, mask)
    return X[0]


def _products(model: LanguageModel, gradient: Tensor) -> Tensor:
    """Return gradient_i · LayerNorm(E_t + p_i) for all i and t, up to a constant in t."""
    embedding = model.model.embeddings
    norm = embedding.LayerNorm
    table = embedding.word_embeddings.weight
    place = embedding.position_embeddings.weight[: len(gradient)]
    place = place + embedding.token_type_embeddings.weight[0]
    along = gradient * norm.weight
    along = along - along.mean(-1, keepdim=True)
    product = along @ table.mT + (along * place).sum(-1, keepdim=True)
    # mean and norm of E_t + p_i, by two products with the table
    mean = table.mean(-1) + place.mean(-1, keepdim=True)
    square = table.square().sum(-1) + 2 * place @ table.mT + place.square().sum(-1, keepdim=True)
    return product / (square / table.shape[1] - mean.square() + norm.eps).sqrt()


def guided_search(model: LanguageModel, layer: int, ids: Tensor, **options) -> SearchResult:
    """Search greedily by exchanges that the gradient favours, each of which is evaluated exactly.

    An exchange puts one token at c positions, with c drawn from ``copies``. For c = 1 it is drawn
    from the best four tokens of every position by :func:`token_scores`. For larger c it
    is drawn from as many tokens, those with the largest sum over their best c positions. Every
    round takes ``batch`` exchanges that were not tried since the last change, and makes the best of
    them if it raises the constant. All in all ``evaluations`` sequences are evaluated, the first of
    which is ``ids`` (n,), and tokens are put in where ``allowed`` (vocabulary,) is true.
    """

    def propose(ids, copies, allowed, generator) -> Iterator[_Exchange]:
        scores = token_scores(model, layer, ids).masked_fill(~allowed, -torch.inf)
        scores = scores.scatter(1, ids[:, None], -torch.inf)
        pools = [_pool(scores, c, generator) for c in copies]
        while left := [pool for pool in pools if pool]:
            yield left[_draw(len(left), generator)].pop()

    return _search(model, layer, ids, propose, **options)


def random_search(model: LanguageModel, layer: int, ids: Tensor, **options) -> SearchResult:
    """Search as :func:`guided_search` does, with positions and tokens drawn uniformly."""

    def propose(ids, copies, allowed, generator) -> Iterator[_Exchange]:
        tokens = allowed.nonzero()[:, 0]
        while True:
            places = torch.randperm(len(ids), generator=generator)
            places = places[: copies[_draw(len(copies), generator)]]
            yield places, int(tokens[_draw(len(tokens), generator)])

    return _search(model, layer, ids, propose, **options)


def random_sequences(
    model: LanguageModel,
    layer: int,
    n: int,
    *,
    evaluations: int,
    allowed: Tensor,
    generator: Generator,
) -> SearchResult:
    """Return the best of sequences of n allowed tokens, drawn uniformly."""
    tokens = allowed.nonzero()[:, 0]
    drawn = tokens[torch.randint(len(tokens), (evaluations, n), generator=generator)]
    f = model.attention(layer)
    values = torch.cat([evaluate(model, layer, part, f) for part in drawn.split(BATCH)]).double()
    return SearchResult(drawn[values.argmax()], values.max().item(), values.cummax(0).values)


def _search(
    model,
    layer,
    ids,
    propose,
    *,
    evaluations,
    allowed,
    batch=BATCH,
    copies=(1, 2, 4),
    generator=None,
) -> SearchResult:
    """Make the best of each round's exchanges where it raises the constant."""
    f = model.attention(layer)
    ids = ids.long()
    history = evaluate(model, layer, ids, f).double()
    copies = [c for c in copies if c <= len(ids)]
    generator = generator or Generator().manual_seed(0)
    exchanges = propose(ids, copies, allowed, generator)
    while (missing := evaluations - len(history)) > 0:
        tried = list(islice(exchanges, min(batch, missing)))
        if not tried:  # none is left
            history = torch.cat([history, history[-1:].expand(missing)])
            break
        candidates = ids.repeat(len(tried), 1)
        for candidate, (places, token) in zip(candidates, tried, strict=True):
            candidate[places] = token
        values = evaluate(model, layer, candidates, f).double()
        if values.max() > history[-1]:
            ids = candidates[values.argmax()]
            exchanges = propose(ids, copies, allowed, generator)
        history = torch.cat([history, values]).cummax(0).values
    return SearchResult(ids, history[-1].item(), history)


def _pool(scores: Tensor, copies: int, generator: Generator) -> list[_Exchange]:
    """Return the best exchanges with this many copies, in random order, without scores of −∞."""
    n, vocabulary = scores.shape
    if copies == 1:
        best = scores.topk(min(PER_POSITION, vocabulary), dim=1)
        places, ranks = best.values.isfinite().nonzero(as_tuple=True)
        found = [*zip(places[:, None], best.indices[places, ranks].tolist(), strict=True)]
    else:
        places = scores.topk(copies, dim=0)  # the best places of each token
        best = places.values.sum(0).topk(min(n * PER_POSITION, vocabulary))
        tokens = best.indices[best.values.isfinite()].tolist()
        found = [(places.indices[:, token], token) for token in tokens]
    return [found[k] for k in torch.randperm(len(found), generator=generator).tolist()]


def _draw(count: int, generator: Generator) -> int:
    return int(torch.randint(count, (), generator=generator))
