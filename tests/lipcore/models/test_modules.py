"""Attention layers read out of modules, against what the modules put out, or refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lipcore import capture, from_module, local_lipschitz, measure
from lipcore.models.capture import captured, record
from lipcore.models.modules import read
from lipcore.models.structure import attention_modules
from seeded import drawn


def double(module):
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=i) / 2)
    return module.double().eval()


def assert_same(f, module, X, *args, **inputs):
    """The layer is the module, far away from where it was read, and has its Jacobian."""
    fn, tokens = capture(module, "", X, *args, **inputs)
    torch.testing.assert_close(f(3 * tokens), fn(3 * tokens), rtol=1e-6, atol=1e-6)
    sigmas = [local_lipschitz(map, tokens, tol=1e-10).value for map in (f, fn)]
    torch.testing.assert_close(*sigmas, rtol=1e-6, atol=0)


@pytest.mark.parametrize("options", (
    {"batch_first": True}, {"batch_first": False}, {"batch_first": True, "bias": False}
), ids=str)  # fmt: skip
def test_multihead_attention(options):
    module = double(nn.MultiheadAttention(8, 2, **options))
    f = from_module(module)
    assert (f.heads, f.d, f.output_dim) == (2, 8, 8)
    X = drawn(5, 3, 8)
    assert_same(f, module, X, X, X)


MASKS = {
    "causal and padding": {
        "attn_mask": torch.ones(3, 3, dtype=torch.bool).triu(1),
        "key_padding_mask": torch.tensor([[False] * 3, [False, False, True]]),
    },
    "numbers for each sequence and head": {"attn_mask": drawn(4, 3, 3)},
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_multihead_attention(name):
    module = double(nn.MultiheadAttention(8, 2, batch_first=True))
    X = drawn(2, 3, 8)
    f = from_module(module, X, X, X, **MASKS[name])
    assert f.bias is None or f.bias.shape == (2, 2, 3, 3)
    assert_same(f, module, X, X, X, **MASKS[name])


class OwnAttention(nn.Module):
    """One's own attention: a fused projection, ordered by head, and what no attribute tells."""

    def __init__(self, heads=2, scale=None, window=None, cap=None, clip=0.0, added=None):
        super().__init__()
        self.num_heads, self.scale, self.window_size = heads, scale, window
        self.hidden = cap, clip, added
        self.to_qkv = nn.Linear(8, 24)
        self.proj = nn.Linear(8, 8)

    def forward(self, x):
        cap, clip, added = self.hidden
        q, k, v = self.to_qkv(x).unflatten(-1, (self.num_heads, 3, -1)).movedim(-2, 0)
        scores = torch.einsum("...ihk,...jhk->...hij", q, k) * (self.scale or 0.5)
        places = torch.arange(x.shape[-2])
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        scores = scores if added is None else scores + added(places[:, None] - places)
        mixed = torch.einsum("...hij,...jhk->...ihk", scores.softmax(-1), v).flatten(-2)
        return self.proj(mixed) + clip * torch.relu(x.abs() - 1)


def test_ones_own_attention():
    module = double(OwnAttention(scale=0.3))
    assert_same(from_module(module), module, drawn(2, 5, 8))


def crossed():
    layer = double(nn.TransformerDecoderLayer(8, 2, 12, batch_first=True))
    return capture(layer, "multihead_attn", drawn(2, 3, 8), drawn(2, 3, 8, seed=1))[0]


def multihead(**options):
    return double(nn.MultiheadAttention(8, 2, batch_first=True, **options))


SIGNS = drawn(2, 5, 8).sign()  # at which nothing is clipped
REFUSED = {
    "keys of a bias": lambda: from_module(multihead(add_bias_kv=True)),
    "a key of zeros": lambda: from_module(multihead(add_zero_attn=True)),
    "keys of another width": lambda: from_module(multihead(kdim=6)),
    "cross-attention": lambda: read(crossed()),
    "no module": lambda: from_module(3),
    "no attention": lambda: from_module(nn.Linear(2, 2)),
    "capped scores": lambda: from_module(double(OwnAttention(cap=1.0))),
    "scale that nothing tells": lambda: from_module(double(OwnAttention(heads=4))),
    "differs only elsewhere": lambda: from_module(double(OwnAttention(clip=100.0)), SIGNS),
    "window of its own": lambda: from_module(double(OwnAttention(window=4))),
    "window that nobody makes": lambda: from_module(with_config(double(OwnAttention()))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused(name):
    with pytest.raises((ValueError, TypeError), match=r"^module: "):
        REFUSED[name]()


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
#: What a module alone does not know: whether it is causal, its positions, or what it attends to.
UNKNOWN = UNREAD | {"clip": 2, "mpt": 2, "falcon": 2}


def assert_reads(f, fn):
    """The layer agrees with the running module, at the tokens of the run and elsewhere."""
    for X in (fn.X, fn.X + 0.5 * drawn(*fn.X.shape).to(fn.X)):
        expected = fn(X).detach()
        scale = expected.abs().amax().item()
        torch.testing.assert_close(f(X), expected, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("family", RUNS)
def test_families(family):
    """What is read agrees; in single precision too, where the tolerance is 1e-5."""
    for kernel in ("eager",) if family in EAGER_ONLY else ("eager", "sdpa"):
        model = tiny_model(family, kernel).float()
        inputs = inputs_of(family)
        inputs = {k: v.float() if v.is_floating_point() else v for k, v in inputs.items()}
        unread = 0
        for call in record(model, attention_modules(model), **inputs):
            fn = captured(call)
            try:
                f = read(fn)
            except ValueError:
                unread += 1
                continue
            assert_reads(f, fn)
        assert unread == UNREAD[family]


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
        assert_reads(f, captured(call))
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
    "qwen2, unused": ("Qwen2Config", {"use_sliding_window": False, "sliding_window": 3},
                      [None, None]),
    "gemma2": ("Gemma2Config", {"sliding_window": 4, "layer_types": LAYER_TYPES, "head_dim": 4},
               [4, None]),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 3, "layer_types": LAYER_TYPES, "head_dim": 4},
               [3, None]),
    "gpt-oss": ("GptOssConfig", {"sliding_window": 3, "layer_types": LAYER_TYPES, "head_dim": 4,
                                 "num_local_experts": 2, "num_experts_per_tok": 1}, [3, None]),
    "modernbert": ("ModernBertConfig", {"local_attention": 6, "global_attn_every_n_layers": 2,
                                        "num_key_value_heads": 2, "pad_token_id": 0,
                                        "cls_token_id": 1, "sep_token_id": 2}, [None, 4]),
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
        assert_reads(f, captured(call))


def with_config(module):
    module.config = transformers.MistralConfig(**SMALL, sliding_window=3)
    return module


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
        assert_reads(f, fn)
        values = [local_lipschitz(map_, fn.X, tol=1e-10).value for map_ in (f, fn)]
        torch.testing.assert_close(*values, rtol=1e-5, atol=0)


ADDED = {
    "causal": lambda apart: torch.where(apart < 0, -torch.inf, 0.0),
    "window": lambda apart: torch.where(apart.abs() > 2, -torch.inf, 0.0),
    "bias": lambda apart: -0.1 * apart.abs(),
}
TOKENS = {"zeros": 0 * SIGNS, "ones": 0 * SIGNS + 1, "small": 1e-9 * SIGNS, "drawn": drawn(2, 5, 8)}


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("kind", ADDED)
@pytest.mark.parametrize("output_bias", [0.0, 1e7])
def test_no_tokens_hide_what_a_module_does(kind, tokens, output_bias):
    """At equal tokens, at tokens small beside the biases, and beside a large bias of the output."""
    module, X = double(OwnAttention(added=ADDED[kind])), TOKENS[tokens]
    module.proj.bias.data += output_bias
    table = measure(nn.Sequential(module).eval(), X, tol=1e-8)
    dense = [torch.func.jacrev(lambda x: module(x[None])[0])(x) for x in X]
    truth = [torch.linalg.matrix_norm(J.reshape(40, 40), 2).item() for J in dense]
    assert table["sigma"].tolist() == pytest.approx(truth, rel=1e-6)
    if kind == "causal" and not output_bias:
        assert from_module(module, X).causal
