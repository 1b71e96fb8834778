"""Attention layers read out of modules, against what the modules put out; what cannot be read is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lipcore import capture, from_module, local_lipschitz
from lipcore.models.capture import captured, record
from lipcore.models.modules import read
from lipcore.models.structure import attention_modules


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def double(module):
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=i) / 2)
    return module.double().eval()


def assert_same(f, module, X, *args, **inputs):
    """The layer is the module, far away from where it was read, and has its Jacobian."""
    fn, tokens = capture(module, "", X, *args, **inputs)
    torch.testing.assert_close(f(3 * tokens), fn(3 * tokens), rtol=1e-6, atol=1e-6)
    sigmas = [local_lipschitz(map, tokens, tol=1e-10).value for map in (f, fn)]
    torch.testing.assert_close(*sigmas, rtol=1e-6, atol=0)


@pytest.mark.parametrize("options", (
    {"batch_first": True},
    {"batch_first": False},
    {"batch_first": True, "bias": False},
), ids=str)  # fmt: skip
def test_multihead_attention(options):
    module = double(nn.MultiheadAttention(8, 2, **options))
    f = from_module(module)
    assert (f.heads, f.d, f.output_dim) == (2, 8, 8)
    X = draw(5, 3, 8)
    assert_same(f, module, X, X, X)


def test_masks_of_multihead_attention():
    module = double(nn.MultiheadAttention(8, 2, batch_first=True))
    X = draw(2, 3, 8)
    masks = {
        "attn_mask": torch.ones(3, 3, dtype=torch.bool).triu(1),
        "key_padding_mask": torch.tensor([[False] * 3, [False, False, True]]),
    }
    f = from_module(module, X, X, X, **masks)
    assert_same(f, module, X, X, X, **masks)
    numbers = {"attn_mask": draw(4, 3, 3)}  # one for each sequence and head
    g = from_module(module, X, X, X, **numbers)
    assert g.bias.shape == (2, 2, 3, 3)
    assert_same(g, module, X, X, X, **numbers)


@pytest.mark.parametrize("options", ({"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 6}))
def test_multihead_attention_that_is_more_is_refused(options):
    module = double(nn.MultiheadAttention(8, 2, batch_first=True, **options))
    with pytest.raises(ValueError, match=r"^module: .*(measure it by autodiff|cannot be run on)"):
        from_module(module)


def test_attention_of_an_encoder_layer():
    layer = double(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True))
    X = draw(3, 5, 8)
    assert_same(from_module(layer.self_attn), layer.self_attn, X, X, X)


def test_cross_attention_is_refused():
    layer = double(nn.TransformerDecoderLayer(8, 2, 12, batch_first=True))
    fn, _X = capture(layer, "multihead_attn", draw(2, 3, 8), draw(2, 3, 8, seed=1))
    with pytest.raises(ValueError, match="does more than, or otherwise than, an Attention"):
        read(fn)


def test_what_is_no_attention():
    with pytest.raises(TypeError, match=r"module: expected a torch\.nn\.Module, got int"):
        from_module(3)
    with pytest.raises(ValueError, match="expected an attention module, with query, key and value"):
        from_module(nn.Linear(2, 2))


class Own(nn.Module):
    """One's own attention, with one fused projection, ordered by head."""

    def __init__(self, heads=2, scale=None, cap=None):
        super().__init__()
        self.num_heads = heads
        self.scale = scale
        self.cap = cap
        self.to_qkv = nn.Linear(8, 24)
        self.proj = nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.to_qkv(x).unflatten(-1, (self.num_heads, 3, -1)).movedim(-2, 0)
        scores = torch.einsum("...ihk,...jhk->...hij", q, k) * (self.scale or 0.5)
        if self.cap is not None:
            scores = self.cap * torch.tanh(scores / self.cap)
        return self.proj(torch.einsum("...hij,...jhk->...ihk", scores.softmax(-1), v).flatten(-2))


class OwnAttention(Own):
    pass


def test_ones_own_attention():
    module = double(OwnAttention(scale=0.3))
    assert_same(from_module(module), module, draw(2, 5, 8))


@pytest.mark.parametrize("wrong", ({"cap": 1.0}, {"heads": 4, "scale": 0.1234}))
def test_what_differs_is_seen(wrong):
    module = double(OwnAttention(**wrong))
    if "heads" in wrong:
        module.num_heads = 4
        module.scale = None  # then it is 0.5, where 4 heads of 2 would have 0.707
    with pytest.raises(ValueError, match=r"OwnAttention. does more than, or otherwise than"):
        from_module(module)


def test_what_differs_only_elsewhere_is_seen():
    class ClippedAttention(OwnAttention):
        def forward(self, x):
            return super().forward(x) + 100 * torch.relu(x.abs() - 1)

    module = double(ClippedAttention())
    X = draw(2, 5, 8).sign()  # there it clips nothing
    with pytest.raises(ValueError, match=r"ClippedAttention.* does more than"):
        from_module(module, X)


transformers = pytest.importorskip("transformers", reason="needs lipcore[models]")

from tiny_models import EAGER_ONLY, RUNS, inputs_of, tiny_model  # noqa: E402

#: Of the attention modules that run, those that an Attention is not.
UNREAD = dict.fromkeys(RUNS, 0) | {
    "albert": 2,  # a residual and a LayerNorm inside
    "deberta-v2": 2,  # positions and contents multiply
    "swin": 3,  # its biases are made inside
    "t5": 3,  # the same, and cross-attention
    "bart": 1,  # cross-attention
    "gpt-neo": 1,  # a window inside
    "bloom": 2,  # a residual comes in
}  # fmt: skip


@pytest.mark.parametrize("family", RUNS)
def test_families(family):
    """What is read agrees; in single precision too, where the loader's tolerance is 1e-5."""
    for kernel in ("eager",) if family in EAGER_ONLY else ("eager", "sdpa"):
        model = tiny_model(family, kernel).float()
        inputs = {
            k: v.float() if v.is_floating_point() else v for k, v in inputs_of(family).items()
        }
        calls = record(model, attention_modules(model), **inputs)
        unread = 0
        for call in calls:
            fn = captured(call)
            try:
                f = read(fn)
            except ValueError:
                unread += 1
                continue
            moved = fn.X + 0.5 * draw(*fn.X.shape).float()
            scale = fn(moved).detach().abs().amax().item()
            torch.testing.assert_close(f(moved), fn(moved).detach(), rtol=0, atol=1e-5 * scale)
        assert unread == UNREAD[family]


@pytest.mark.parametrize("family", ("bert", "vit", "gpt2", "llama", "mistral", "phi", "gpt-oss"))
def test_modules_alone(family):
    """Without the model: a causal module gets its mask, a rotary one its positions."""
    model = tiny_model(family)
    for call in record(model, attention_modules(model), **inputs_of(family)):
        f = from_module(call.module)
        assert f.mask is None
        assert f.causal == (family not in ("bert", "vit"))
        fn = captured(call)
        if family not in ("mistral", "gpt-oss"):  # their windows are made by the model
            torch.testing.assert_close(f(fn.X), fn(fn.X).detach(), rtol=1e-6, atol=1e-6)
