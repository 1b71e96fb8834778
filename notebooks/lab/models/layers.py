"""Read attention layers out of models, each of which has its own places and layouts of weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipcore.attention import Attention
from lipcore.bounds.normalised import Normalisation


def split_heads(weight: Tensor, heads: int) -> Tensor:
    """Reshape rows of a weight (out, in) or bias, (heads·k, …), to (heads, k, …)."""
    return weight.detach().unflatten(0, (heads, -1)).contiguous()


def _bias_of(module: nn.Module) -> Tensor | None:
    return None if module.bias is None else module.bias.detach()


def _from_linear(
    linear: list[nn.Linear], heads: list[int], output: nn.Linear, **options
) -> Attention:
    """Return Attention with the query, key and value of three Linear layers."""
    weights = []
    biases = []
    for layer, count in zip(linear, heads, strict=True):
        weights.append(split_heads(layer.weight, count))
        biases.append(None if layer.bias is None else split_heads(layer.bias, count))
    projection = {"output": output.weight.detach(), "output_bias": _bias_of(output)}
    return Attention(*weights, *biases, **projection, **options)


class _Layers:
    """What differs between architectures; ``model`` is the library's backbone, without its head."""

    title: str
    model_class: str

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

    def entry(self, layer: int) -> nn.Module:
        """Return the first projection of the attention, whose input is what enters attention."""
        raise NotImplementedError

    def exit(self, layer: int) -> nn.Module:
        """Return the output projection, whose output is the attention before the residual."""
        raise NotImplementedError

    def attention(self, layer: int) -> Attention:
        raise NotImplementedError

    def norm(self, layer: int) -> Normalisation:
        raise NotImplementedError


def _layer_norm(module: nn.LayerNorm) -> Normalisation:
    return Normalisation("layer", module.weight.detach(), module.bias.detach(), module.eps)


class _Bert(_Layers):
    """Post-norm: attention reads the output of the LayerNorm at the end of the layer below."""

    title = "BERT"
    model_class = "BertModel"

    @classmethod
    def covers(cls, config) -> bool:
        return getattr(config, "position_embedding_type", "absolute") == "absolute"

    @property
    def causal(self) -> bool:
        return bool(self.config.is_decoder)

    def entry(self, layer: int) -> nn.Module:
        return self.model.encoder.layer[layer].attention.self.query

    def exit(self, layer: int) -> nn.Module:
        return self.model.encoder.layer[layer].attention.output.dense

    def attention(self, layer: int) -> Attention:
        module = self.model.encoder.layer[layer].attention.self
        linear = [module.query, module.key, module.value]
        return _from_linear(linear, [self.heads] * 3, self.exit(layer), causal=self.causal)

    def norm(self, layer: int) -> Normalisation:
        below = self.model.embeddings if layer == 0 else self.model.encoder.layer[layer - 1].output
        return _layer_norm(below.LayerNorm)


class _GPT2(_Layers):
    """Pre-norm and causal; Conv1D weights are stored (in, out), so that heads are columns."""

    title = "GPT-2"
    model_class = "GPT2Model"

    def entry(self, layer: int) -> nn.Module:
        return self.model.h[layer].attn.c_attn

    def exit(self, layer: int) -> nn.Module:
        return self.model.h[layer].attn.c_proj

    def attention(self, layer: int) -> Attention:
        joined = self.entry(layer)
        weights = [split_heads(part.mT, self.heads) for part in joined.weight.chunk(3, dim=1)]
        biases = [split_heads(part, self.heads) for part in joined.bias.chunk(3)]
        output = self.exit(layer)
        return Attention(
            *weights,  # query, key, value
            *biases,
            output=output.weight.detach().mT.contiguous(),
            output_bias=_bias_of(output),
            causal=self.causal,
            scale=self._scale(layer, k=weights[0].shape[1]),
        )

    def _scale(self, layer: int, *, k: int) -> float:
        scale = k**-0.5 if self.config.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.config.scale_attn_by_inverse_layer_idx else scale

    def norm(self, layer: int) -> Normalisation:
        return _layer_norm(self.model.h[layer].ln_1)


class _Llama(_Layers):
    """Pre-norm (RMSNorm) and causal, with rotary positions and fewer key heads than query heads."""

    title = "Llama"
    model_class = "LlamaModel"

    @classmethod
    def covers(cls, config) -> bool:
        rope = config.rope_parameters or {}
        kind = rope.get("rope_type", "default")
        part = rope.get("partial_rotary_factor") or 1.0
        return kind in ("default", "linear", "llama3", "yarn") and part == 1.0

    def entry(self, layer: int) -> nn.Module:
        return self.model.layers[layer].self_attn.q_proj

    def exit(self, layer: int) -> nn.Module:
        return self.model.layers[layer].self_attn.o_proj

    def attention(self, layer: int) -> Attention:
        module = self.model.layers[layer].self_attn
        linear = [module.q_proj, module.k_proj, module.v_proj]
        key_heads = self.config.num_key_value_heads
        return _from_linear(
            linear,
            [self.heads, key_heads, key_heads],
            self.exit(layer),
            causal=self.causal,
            # yarn multiplies cosines and sines, of queries and keys alike
            scale=module.head_dim**-0.5 * self.model.rotary_emb.attention_scaling**2,
            rotary=self.model.rotary_emb.inv_freq.detach().to(module.q_proj.weight),
        )

    def norm(self, layer: int) -> Normalisation:
        module = self.model.layers[layer].input_layernorm
        gain = module.weight.detach()
        return Normalisation("rms", gain, torch.zeros_like(gain), module.variance_epsilon)


ARCHITECTURES: dict[str, type[_Layers]] = {"bert": _Bert, "gpt2": _GPT2, "llama": _Llama}
