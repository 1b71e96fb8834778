"""Controls: texts without meaning, and weights that have learnt no attention."""

from __future__ import annotations

import torch
from torch import Tensor

from lab.models.language_model import LanguageModel

#: The controls: what they take from the model or its text; ``""`` is the text as it is.
CONTROLS = ("", "shuffled", "uniform", "repeated", "permuted")


def control_tokens(
    ids: Tensor, control: str, *, vocab_size: int, generator: torch.Generator
) -> Tensor:
    """Return a text of the same length without what the control takes from it.

    Parameters
    ----------
    ids : Tensor of integers, shape (tokens,)
        The whole text: its beginning stays the beginning of what comes out, whatever the length
        that is cut from it.
    control : str
        * ``"shuffled"``: its tokens in random order: the frequencies are left;
        * ``"uniform"``: tokens drawn uniformly from the vocabulary: nothing is left;
        * any other: the text as it is.
    vocab_size : int
    generator : torch.Generator

    Returns
    -------
    Tensor of integers, shape (tokens,)

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> text = torch.tensor([5, 5, 5, 7])
    >>> control_tokens(text, "shuffled", vocab_size=9, generator=generator).tolist()
    [5, 5, 7, 5]
    """
    check_control(control)
    if control == "shuffled":
        return ids[torch.randperm(len(ids), generator=generator)]
    if control == "uniform":
        return torch.randint(vocab_size, ids.shape, generator=generator)
    return ids


@torch.no_grad()
def permute_scores(model: LanguageModel, *, generator: torch.Generator) -> None:
    """Put the entries of every layer's query and key matrices in a random order, in place.

    Their size and their distribution stay, and what the model has learnt to attend to is lost.
    Values, the other layers and the embeddings stay as they are.

    Parameters
    ----------
    model : LanguageModel
        BERT or Llama, whose queries and keys are matrices of their own.
    generator : torch.Generator

    Raises
    ------
    ValueError
        If the model keeps queries, keys and values in one matrix.
    """
    ends = ("q_proj.weight", "k_proj.weight", "query.weight", "key.weight")
    found = [weight for name, weight in model.model.named_parameters() if name.endswith(ends)]
    if len(found) != 2 * model.n_layers:
        raise ValueError(
            f"model: expected query and key matrices in each of {model.n_layers} layers, "
            f"found {len(found)} in {model.name}"
        )
    for weight in found:
        order = torch.randperm(weight.numel(), generator=generator)
        weight.copy_(weight.flatten()[order].view_as(weight))


def check_control(control: str) -> str:
    """Return the name of a control, or raise a ValueError if it is unknown."""
    if control not in CONTROLS:
        named = ", ".join(map(repr, CONTROLS))
        raise ValueError(f"control: expected one of {named}, got {control!r}")
    return control
