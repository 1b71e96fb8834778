"""BERT, GPT-2 and Llama: their attention, read out of the weights, and the norm in front of it."""

from __future__ import annotations

import torch
from torch import nn

from lipcore.attention import Attention
from lipcore.bounds.normalised import Normalisation
from lipcore.models.modules import output_of, weights_of

#: What the architectures are called, by the type in their configs.
TITLES = {"bert": "BERT", "gpt2": "GPT-2", "llama": "Llama"}
_ROPES = ("default", "linear", "llama3", "yarn")  # whose frequencies are the same at every length


def is_readable(config) -> bool:
    """Return whether the layers of such a config can be read without running the model."""
    if config.model_type == "llama":
        rope = config.rope_parameters or {}
        turns_all = (rope.get("partial_rotary_factor") or 1.0) == 1.0
        return turns_all and rope.get("rope_type", "default") in _ROPES
    return config.model_type in TITLES


def is_causal(config) -> bool:
    """Return whether token i sees only the tokens j ≤ i."""
    if config.model_type == "bert":
        return bool(config.is_decoder)
    return bool(getattr(config, "is_causal", True))


def read_attention(model: nn.Module, module: nn.Module, layer: int) -> Attention:
    """Return the attention of a layer, whose ``module`` this is, with its output projection."""
    config = model.config
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", heads)
    parts = next(weights_of(module, heads, key_heads))  # the order of all three
    if config.model_type == "bert":  # where it belongs to another module
        parts |= output_of(model.encoder.layer[layer].attention.output.dense)
    if config.model_type == "gpt2":
        scale = module.head_dim**-0.5 if config.scale_attn_weights else 1.0
        parts["scale"] = scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale
    if config.model_type == "llama":
        turn = model.rotary_emb
        parts["rotary"] = turn.inv_freq.detach().to(module.q_proj.weight)
        # yarn multiplies cosines and sines, of queries and keys alike
        parts["scale"] = module.head_dim**-0.5 * turn.attention_scaling**2
    return Attention(**parts, causal=is_causal(config))


def read_norm(model: nn.Module, layer: int) -> Normalisation:
    """Return the normalisation whose output enters the attention of a layer."""
    if model.config.model_type == "llama":
        module = model.layers[layer].input_layernorm
        gain = module.weight.detach()
        return Normalisation("rms", gain, torch.zeros_like(gain), module.variance_epsilon)
    if model.config.model_type == "gpt2":
        module = model.h[layer].ln_1
    else:  # BERT normalises at the end of each layer
        below = model.encoder.layer[layer - 1].output if layer else model.embeddings
        module = below.LayerNorm
    return Normalisation("layer", module.weight.detach(), module.bias.detach(), module.eps)
