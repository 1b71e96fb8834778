"""Controls: texts without meaning, and weights that have learnt no attention."""

from __future__ import annotations

import torch
from torch import Tensor

from lab.models.language_model import LanguageModel
from lipcore._checks import require

#: The controls: what they take from the model or its text; ``""`` is the text as it is.
CONTROLS = ("", "shuffled", "uniform", "repeated", "permuted")


def control_tokens(
    ids: Tensor, control: str, *, vocab_size: int, generator: torch.Generator
) -> Tensor:
    """Return a text with its tokens shuffled, or drawn uniformly, or as it is.

    >>> generator = torch.Generator().manual_seed(0)
    >>> text = torch.tensor([5, 5, 5, 7])
    >>> control_tokens(text, "shuffled", vocab_size=9, generator=generator).tolist()
    [5, 5, 7, 5]
    """
    require(control in CONTROLS, "control", f"one of {CONTROLS}", repr(control))
    if control == "shuffled":
        return ids[torch.randperm(len(ids), generator=generator)]
    if control == "uniform":
        return torch.randint(vocab_size, ids.shape, generator=generator)
    return ids


@torch.no_grad()
def permute_scores(model: LanguageModel, *, generator: torch.Generator) -> None:
    """Put the entries of every layer's query and key matrices in a random order, in place."""
    ends = ("q_proj.weight", "k_proj.weight", "query.weight", "key.weight")
    found = [weight for name, weight in model.model.named_parameters() if name.endswith(ends)]
    is_whole = len(found) == 2 * model.n_layers
    require(is_whole, "model", "query and key matrices in each layer", f"{len(found)} of them")
    for weight in found:
        order = torch.randperm(weight.numel(), generator=generator)
        weight.copy_(weight.flatten()[order].view_as(weight))
