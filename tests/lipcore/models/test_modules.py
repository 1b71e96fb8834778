"""Attention layers read out of modules, against what the modules put out; what cannot be read is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lipcore import capture, from_module, local_lipschitz, measure
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
    with pytest.raises(ValueError, match=r"^module: "):
        from_module(module)


def test_attention_of_an_encoder_layer():
    layer = double(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True))
    X = draw(3, 5, 8)
    assert_same(from_module(layer.self_attn), layer.self_attn, X, X, X)


def test_cross_attention_is_refused():
    layer = double(nn.TransformerDecoderLayer(8, 2, 12, batch_first=True))
    fn, _X = capture(layer, "multihead_attn", draw(2, 3, 8), draw(2, 3, 8, seed=1))
    with pytest.raises(ValueError, match="Attention"):
        read(fn)


def test_what_is_no_attention():
    with pytest.raises(TypeError, match=r"^module: "):
        from_module(3)
    with pytest.raises(ValueError, match="attention"):
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
    with pytest.raises(ValueError, match="OwnAttention"):
        from_module(module)


def test_what_differs_only_elsewhere_is_seen():
    class ClippedAttention(OwnAttention):
        def forward(self, x):
            return super().forward(x) + 100 * torch.relu(x.abs() - 1)

    module = double(ClippedAttention())
    X = draw(2, 5, 8).sign()  # there it clips nothing
    with pytest.raises(ValueError, match="ClippedAttention"):
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


#: What a module alone does not know: whether it is causal, its positions, or what it attends to.
UNKNOWN = dict.fromkeys(RUNS, 0) | {
    "albert": 2, "deberta-v2": 2, "swin": 3, "t5": 3, "bart": 1, "gpt-neo": 1, "bloom": 2,
    "clip": 2, "mpt": 2, "falcon": 2,
}  # fmt: skip


@pytest.mark.parametrize("family", RUNS)
def test_modules_alone(family):
    """Without the model: masks, windows and positions are those of the model, or it is refused."""
    model = tiny_model(family)
    unknown = 0
    for call in record(model, attention_modules(model), **inputs_of(family)):
        try:
            f = from_module(call.module)
        except ValueError as error:
            assert str(error).startswith("module: ") and "\n" not in str(error)
            unknown += 1
            continue
        assert f.mask is None
        fn = captured(call)
        torch.testing.assert_close(f(fn.X), fn(fn.X).detach(), rtol=1e-5, atol=1e-5)
    assert unknown == UNKNOWN[family]


LAYER_TYPES = ["sliding_attention", "full_attention"]
WINDOWS = {
    "mistral": ("MistralConfig", {"sliding_window": 3}, [3, 3]),
    "no window": ("MistralConfig", {"sliding_window": None}, [None, None]),
    "longer than what is tried": ("MistralConfig", {"sliding_window": 7}, [7, 7]),
    "phi3": ("Phi3Config", {"sliding_window": 3, "pad_token_id": 0}, [3, 3]),
    "mixtral": ("MixtralConfig", {"sliding_window": 3, "num_local_experts": 2}, [3, 3]),
    "qwen2": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 3,
                              "layer_types": LAYER_TYPES}, [3, None]),
    "qwen2, unused": ("Qwen2Config", {"use_sliding_window": False, "sliding_window": 3}, [None] * 2),
    "gemma2": ("Gemma2Config", {"sliding_window": 4, "layer_types": LAYER_TYPES, "head_dim": 4},
               [4, None]),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 3, "layer_types": LAYER_TYPES, "head_dim": 4},
               [3, None]),
    "gpt-oss": ("GptOssConfig", {"sliding_window": 3, "layer_types": LAYER_TYPES, "head_dim": 4,
                                 "num_local_experts": 2, "num_experts_per_tok": 1}, [3, None]),
    "modernbert": ("ModernBertConfig", {"local_attention": 6, "global_attn_every_n_layers": 2, "num_key_value_heads": 2,
                                        "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2},
                   [None, 4]),
}  # fmt: skip
SMALL = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "intermediate_size": 12, "pad_token_id": 0}  # fmt: skip


def small_model(name, options):
    config = getattr(transformers, name)(**SMALL | options)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager")
    if hasattr(model, "set_experts_implementation") and "num_local_experts" in options:
        model.set_experts_implementation("eager")
    return double(model)


@pytest.mark.parametrize("family", WINDOWS)
def test_windows_of_modules_alone(family):
    """They are as wide as in the running model, on sequences longer than any that was tried."""
    name, options, windows = WINDOWS[family]
    model = small_model(name, options)
    ids = torch.arange(12).reshape(1, -1) + 3
    calls = record(model, attention_modules(model), input_ids=ids)
    found = [from_module(call.module) for call in calls]
    assert [f.window for f in found] == windows
    for f, call in zip(found, calls, strict=True):
        fn = captured(call)
        torch.testing.assert_close(f(fn.X), fn(fn.X).detach(), rtol=1e-5, atol=1e-5)


def test_a_window_that_nobody_makes_is_refused():
    class WindowedAttention(OwnAttention):
        config = transformers.MistralConfig(**SMALL, sliding_window=3)

    with pytest.raises(ValueError, match="window"):
        from_module(double(WindowedAttention()))
    module = double(OwnAttention())
    module.window_size = 4
    with pytest.raises(ValueError, match="window_size"):
        from_module(module)


def test_gates_of_qwen3_next():
    options = {"head_dim": 4, "layer_types": ["full_attention"] * 2, "num_experts": 0,
               "decoder_sparse_step": 3}  # fmt: skip
    model = small_model("Qwen3NextConfig", options)
    ids = torch.arange(7).reshape(1, -1) + 3
    calls = record(model, attention_modules(model), input_ids=ids)
    assert len(calls) == 2
    for call in calls:
        fn = captured(call)
        f = from_module(call.module)
        assert f.gate.shape == (2, 4, 8) and f.causal
        moved = 2 * fn.X
        torch.testing.assert_close(f(moved), fn(moved).detach(), rtol=1e-5, atol=1e-5)
        values = [local_lipschitz(map, fn.X, tol=1e-10).value for map in (f, fn)]
        torch.testing.assert_close(*values, rtol=1e-5, atol=0)


class Hidden(nn.Module):
    """Attention whose mask and relative bias no argument and no attribute tells of."""

    num_heads = 4

    def __init__(self, kind, output_bias=0.0):
        super().__init__()
        self.kind = kind
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(16, 16))
        self.double().eval().o_proj.bias.data += output_bias

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(-1, (4, 4)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        n = x.shape[-2]
        scores = q @ k.mT / 2
        apart = torch.arange(n)[:, None] - torch.arange(n)
        if self.kind == "bias":
            scores = scores - 0.1 * apart.abs()
        else:
            hidden = apart < 0 if self.kind == "causal" else apart.abs() > 2
            scores = scores.masked_fill(hidden, -torch.inf)
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("tokens", ["zeros", "ones", "small", "drawn"])
@pytest.mark.parametrize("kind", ["causal", "window", "bias"])
@pytest.mark.parametrize("output_bias", [0.0, 1e7])
def test_no_tokens_hide_what_a_module_does(kind, tokens, output_bias):
    """σ at equal tokens, at tokens small beside the biases, and beside a large bias of the output."""
    torch.manual_seed(0)
    module = Hidden(kind, output_bias)
    drawn = torch.randn(1, 8, 16, dtype=torch.float64)
    X = {"zeros": 0 * drawn, "ones": 0 * drawn + 1, "small": 1e-9 * drawn, "drawn": drawn}[tokens]
    table = measure(nn.Sequential(module).eval(), X, tol=1e-8)
    J = torch.autograd.functional.jacobian(lambda x: module(x[None])[0], X[0]).reshape(128, 128)
    assert table["sigma"].tolist() == pytest.approx(
        [torch.linalg.matrix_norm(J, 2).item()], rel=1e-6
    )


def test_equal_tokens_still_show_who_sees_whom():
    torch.manual_seed(0)
    assert from_module(Hidden("causal"), torch.zeros(1, 8, 16, dtype=torch.float64)).causal
