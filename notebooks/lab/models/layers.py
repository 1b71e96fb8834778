"""Where BERT, GPT-2 and Llama keep their attention layers, and what stands in front of them."""

from __future__ import annotations

import torch
from torch import nn

from lipcore.attention import Attention
from lipcore.bounds.normalised import Normalisation
from lipcore.models.modules import output_of, weights_of


class _Layers:
    """Paths of modules, for one layer; ``model`` is the library's backbone, without its head."""

    title: str
    model_class: str
    attention_path: str
    entry_path: str  # the first projection, whose input is what enters attention
    exit_path: str  # the output projection, whose output is the attention before the residual
    norm_path: str

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.config = model.config
        self.heads = self.config.num_attention_heads

    @classmethod
    def covers(cls, config) -> bool:
        """Return whether the layers of such a config can be read without running the model."""
        return True

    @property
    def causal(self) -> bool:
        return bool(getattr(self.config, "is_causal", True))

    def at(self, path: str, layer: int) -> nn.Module:
        return self.model.get_submodule(path.format(layer))

    def entry(self, layer: int) -> nn.Module:
        return self.at(self.entry_path, layer)

    def attention(self, layer: int) -> Attention:
        module = self.at(self.attention_path, layer)
        key_heads = getattr(self.config, "num_key_value_heads", self.heads)
        parts = next(weights_of(module, self.heads, key_heads))  # the order of all three
        parts |= output_of(self.at(self.exit_path, layer))
        return Attention(**parts, causal=self.causal, **self.options(module, layer))

    def options(self, module: nn.Module, layer: int) -> dict:
        return {}

    def norm(self, layer: int) -> Normalisation:
        module = self.at(self.norm_path, layer)
        return Normalisation("layer", module.weight.detach(), module.bias.detach(), module.eps)


class _Bert(_Layers):
    """Post-norm: attention reads the output of the LayerNorm at the end of the layer below."""

    title = "BERT"
    model_class = "BertModel"
    attention_path = "encoder.layer.{}.attention.self"
    entry_path = "encoder.layer.{}.attention.self.query"
    exit_path = "encoder.layer.{}.attention.output.dense"
    norm_path = "encoder.layer.{}.output.LayerNorm"

    @classmethod
    def covers(cls, config) -> bool:
        return getattr(config, "position_embedding_type", "absolute") == "absolute"

    @property
    def causal(self) -> bool:
        return bool(self.config.is_decoder)

    def norm(self, layer: int) -> Normalisation:
        if layer:
            return super().norm(layer - 1)
        below = self.model.embeddings.LayerNorm
        return Normalisation("layer", below.weight.detach(), below.bias.detach(), below.eps)


class _GPT2(_Layers):
    """Pre-norm and causal."""

    title = "GPT-2"
    model_class = "GPT2Model"
    attention_path = "h.{}.attn"
    entry_path = "h.{}.attn.c_attn"
    exit_path = "h.{}.attn.c_proj"
    norm_path = "h.{}.ln_1"

    def options(self, module: nn.Module, layer: int) -> dict:
        scale = module.head_dim**-0.5 if self.config.scale_attn_weights else 1.0
        by_layer = self.config.scale_attn_by_inverse_layer_idx
        return {"scale": scale / (layer + 1) if by_layer else scale}


class _Llama(_Layers):
    """Pre-norm (RMSNorm) and causal, with rotary positions and fewer key heads than query heads."""

    title = "Llama"
    model_class = "LlamaModel"
    attention_path = "layers.{}.self_attn"
    entry_path = "layers.{}.self_attn.q_proj"
    exit_path = "layers.{}.self_attn.o_proj"
    norm_path = "layers.{}.input_layernorm"

    @classmethod
    def covers(cls, config) -> bool:
        rope = config.rope_parameters or {}
        kind = rope.get("rope_type", "default")
        part = rope.get("partial_rotary_factor") or 1.0
        return kind in ("default", "linear", "llama3", "yarn") and part == 1.0

    def options(self, module: nn.Module, layer: int) -> dict:
        turn = self.model.rotary_emb
        # yarn multiplies cosines and sines, of queries and keys alike
        scale = module.head_dim**-0.5 * turn.attention_scaling**2
        return {"scale": scale, "rotary": turn.inv_freq.detach().to(module.q_proj.weight)}

    def norm(self, layer: int) -> Normalisation:
        module = self.at(self.norm_path, layer)
        gain = module.weight.detach()
        return Normalisation("rms", gain, torch.zeros_like(gain), module.variance_epsilon)


ARCHITECTURES: dict[str, type[_Layers]] = {"bert": _Bert, "gpt2": _GPT2, "llama": _Llama}
