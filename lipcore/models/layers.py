"""Reading attention layers out of the library's models: where each keeps its weights, and in which layout."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipcore.attention import Attention
from lipcore.bounds.normalised import Normalisation


def split_heads(weight: Tensor, heads: int) -> Tensor:
    """(heads·k, d) or (heads·k,) → (heads, k, d) or (heads, k): the rows of a Linear weight, which is (out, in)."""
    return weight.detach().unflatten(0, (heads, -1)).contiguous()


def _heads_of(linear: nn.Linear, heads: int) -> tuple[Tensor, Tensor | None]:
    return split_heads(linear.weight, heads), None if linear.bias is None else split_heads(
        linear.bias, heads
    )


def _bias_of(module: nn.Module) -> Tensor | None:
    return None if module.bias is None else module.bias.detach()


class _Layers:
    """What differs between architectures; ``model`` is the library's backbone (no head on top)."""

    title: str
    model_class: str

    def __init__(self, model: nn.Module) -> None:
        self.model, self.config = model, model.config
        self.heads = self.config.num_attention_heads

    @classmethod
    def refuse(cls, config) -> None:
        """Raise ValueError if the config asks for what is not covered here."""

    @property
    def causal(self) -> bool:
        return True

    def entry(self, layer: int) -> nn.Module:
        """The first projection of the layer's attention: its input is what enters the attention."""
        raise NotImplementedError

    def exit(self, layer: int) -> nn.Module:
        """The output projection: its output is the attention's, before residual and normalisation."""
        raise NotImplementedError

    def attention(self, layer: int) -> Attention:
        raise NotImplementedError

    def norm(self, layer: int) -> Normalisation:
        raise NotImplementedError


def _layer_norm(module: nn.LayerNorm) -> Normalisation:
    return Normalisation("layer", module.weight.detach(), module.bias.detach(), module.eps)


class _Bert(_Layers):
    """Post-norm: a layer's attention reads the LayerNorm that ends the layer below, or the embeddings'."""

    title, model_class = "BERT", "BertModel"

    @classmethod
    def refuse(cls, config) -> None:
        position = getattr(config, "position_embedding_type", "absolute")
        if position != "absolute":
            raise ValueError(
                f"position_embedding_type: expected 'absolute', got {position!r}, which is not supported"
            )

    @property
    def causal(self) -> bool:
        return bool(self.config.is_decoder)

    def entry(self, layer: int) -> nn.Module:
        return self.model.encoder.layer[layer].attention.self.query

    def exit(self, layer: int) -> nn.Module:
        return self.model.encoder.layer[layer].attention.output.dense

    def attention(self, layer: int) -> Attention:
        module, output = self.model.encoder.layer[layer].attention.self, self.exit(layer)
        (query, query_bias), (key, key_bias), (value, value_bias) = (
            _heads_of(linear, self.heads) for linear in (module.query, module.key, module.value)
        )
        return Attention(query, key, value, query_bias, key_bias, value_bias,
                         output=output.weight.detach(), output_bias=_bias_of(output), causal=self.causal)  # fmt: skip

    def norm(self, layer: int) -> Normalisation:
        below = self.model.embeddings if layer == 0 else self.model.encoder.layer[layer - 1].output
        return _layer_norm(below.LayerNorm)


class _GPT2(_Layers):
    """Pre-norm, causal; its weights are Conv1D ones, stored (in, out): heads are columns."""

    title, model_class = "GPT-2", "GPT2Model"

    def entry(self, layer: int) -> nn.Module:
        return self.model.h[layer].attn.c_attn

    def exit(self, layer: int) -> nn.Module:
        return self.model.h[layer].attn.c_proj

    def attention(self, layer: int) -> Attention:
        joined, output = self.entry(layer), self.exit(layer)
        query, key, value = (
            split_heads(part.mT, self.heads) for part in joined.weight.chunk(3, dim=1)
        )
        biases = (split_heads(part, self.heads) for part in joined.bias.chunk(3))
        return Attention(query, key, value, *biases, causal=True, scale=self._scale(layer, query.shape[1]),
                         output=output.weight.detach().mT.contiguous(), output_bias=_bias_of(output))  # fmt: skip

    def _scale(self, layer: int, k: int) -> float:
        scale = k**-0.5 if self.config.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.config.scale_attn_by_inverse_layer_idx else scale

    def norm(self, layer: int) -> Normalisation:
        return _layer_norm(self.model.h[layer].ln_1)


class _Llama(_Layers):
    """Pre-norm (RMSNorm), causal, rotary positions, fewer key than query heads."""

    title, model_class = "Llama", "LlamaModel"

    @classmethod
    def refuse(cls, config) -> None:
        rope = config.rope_parameters or {}
        kind, part = rope.get("rope_type", "default"), rope.get("partial_rotary_factor") or 1.0
        if kind != "default" or part != 1.0:
            raise ValueError(
                f"rope_parameters: expected rope_type 'default' over the whole head, got {dict(rope)}"
            )

    def entry(self, layer: int) -> nn.Module:
        return self.model.layers[layer].self_attn.q_proj

    def exit(self, layer: int) -> nn.Module:
        return self.model.layers[layer].self_attn.o_proj

    def attention(self, layer: int) -> Attention:
        module, output = self.model.layers[layer].self_attn, self.exit(layer)
        query, query_bias = _heads_of(module.q_proj, self.heads)
        (key, key_bias), (value, value_bias) = (
            _heads_of(linear, self.config.num_key_value_heads)
            for linear in (module.k_proj, module.v_proj)
        )
        return Attention(query, key, value, query_bias, key_bias, value_bias, output=output.weight.detach(),
                         output_bias=_bias_of(output), causal=True, scale=query.shape[1] ** -0.5,
                         rotary=self.model.rotary_emb.inv_freq.detach().to(query))  # fmt: skip

    def norm(self, layer: int) -> Normalisation:
        module = self.model.layers[layer].input_layernorm
        gain = module.weight.detach()
        return Normalisation("rms", gain, torch.zeros_like(gain), module.variance_epsilon)


ARCHITECTURES: dict[str, type[_Layers]] = {"bert": _Bert, "gpt2": _GPT2, "llama": _Llama}
