"""What a text is compared with: the same tokens in another order, any tokens, one token."""

from __future__ import annotations

import torch
from torch import Tensor


def controls(ids: Tensor, vocabulary: Tensor, *, generator: torch.Generator) -> dict[str, Tensor]:
    """Three controls of as many sequences, as long as those of a text.

    Parameters
    ----------
    ids : Tensor of integers, shape (count, n)
        Pieces of the text.
    vocabulary : Tensor of integers, shape (tokens,)
        The tokens to draw from.
    generator : torch.Generator

    Returns
    -------
    dict of Tensors, shape (count, n)
        ``"shuffled"``: all tokens of the text in random order, across its pieces; ``"random"``:
        tokens drawn uniformly from the vocabulary; ``"repeated"``: in each sequence one token of
        the text, drawn at random, n times.

    Raises
    ------
    ValueError
        If ids are not sequences, or there is no token to draw from.

    Examples
    --------
    >>> draw = torch.Generator().manual_seed(0)
    >>> found = controls(torch.tensor([[5, 6, 7], [8, 8, 9]]), torch.arange(50), generator=draw)
    >>> sorted(found["shuffled"].flatten().tolist()), found["repeated"].tolist()
    ([5, 6, 7, 8, 8, 9], [[7, 7, 7], [5, 5, 5]])
    """
    if ids.ndim != 2 or not ids.numel():
        raise ValueError(f"ids: expected shape (count, n), got {tuple(ids.shape)}")
    if vocabulary.ndim != 1 or not len(vocabulary):
        raise ValueError(f"vocabulary: expected a vector, got {tuple(vocabulary.shape)}")
    order = torch.randperm(ids.numel(), generator=generator)
    drawn = torch.randint(len(vocabulary), ids.shape, generator=generator)
    one = torch.randint(ids.numel(), (len(ids), 1), generator=generator)
    return {
        "shuffled": ids.flatten()[order].reshape(ids.shape),
        "random": vocabulary[drawn],
        "repeated": ids.flatten()[one].expand_as(ids),
    }
