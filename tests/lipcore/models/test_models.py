"""Layers read out of models, against the attention inside the running model and its autodiff."""

from __future__ import annotations

import dataclasses
import functools
import json

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs lipcore[book]")

from lab.models import LanguageModel, available, fetch, load  # noqa: E402
from lipcore import measure  # noqa: E402
from tiny_models import CONFIGS, ROPE, inputs_of, tiny_model  # noqa: E402

#: Every option that changes attention: the family of a tiny model, and what its config has besides.
KINDS = {
    "bert": ("bert", {}),
    "bert as decoder": ("bert", {"is_decoder": True}),
    "gpt2": ("gpt2", {}),
    "gpt2, scaled": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2, both ways": ("gpt2", {"is_causal": False}),
    "llama": ("llama", {}),
    "llama, yarn": ("llama-yarn", {}),
    "llama, linear": ("llama", {"rope_parameters": ROPE | {"rope_type": "linear"}}),
    "llama, biases": ("llama", {"attention_bias": True}),
    "llama, both ways": ("llama", {"is_causal": False}),
}
SENTENCE = "attention moves every token to a mean of values."


@functools.cache
def tiny(kind: str) -> LanguageModel:
    family, options = KINDS[kind]
    name, sizes = CONFIGS[family]
    config = getattr(transformers, name)(**sizes | options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModel.from_config(config, attn_implementation="eager")
        for parameter in model.parameters():  # biases and gains too, which start as zeros and ones
            parameter.data.normal_(0.1, 0.3)
    return LanguageModel(model.double(), name=kind, folder=None)


def random_ids(model, *shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.vocab_size, shape, generator=generator)


@pytest.fixture
def all_in_double(monkeypatch):
    """Llama's softmax and angles are in float32 whatever the weights: here they are not."""
    softmax = torch.nn.functional.softmax
    plain = lambda scores, dim, dtype=None: softmax(scores, dim=dim)  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "softmax", plain)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def attention_of(model, layer):
    """The library's module, its output projection, and the first projection of its tokens."""
    running = model.model
    if model.architecture == "BERT":
        module = running.encoder.layer[layer].attention
        return module, module.output.dense, module.self.query
    if model.architecture == "GPT-2":
        module = running.h[layer].attn
        return module, module.c_proj, module.c_attn
    module = running.layers[layer].self_attn
    return module, module.o_proj, module.q_proj


def check_layer(model, layer, ids, tolerance=1e-10):
    """What enters the attention inside the running model, its joined heads, and what leaves it."""
    _, leave, entry = attention_of(model, layer)
    seen = []
    handles = [
        module.register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
        for module in (entry, leave)
    ]
    with torch.no_grad():
        model.model(input_ids=ids)
    for handle in handles:
        handle.remove()
    (entering, _), (joined, leaving) = seen
    X = model.hidden_states(layer, ids)
    heads = model.attention(layer, output_projection=False)(X)
    pairs = ((X, entering), (heads, joined), (model.attention(layer)(X), leaving))
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def library_attention(model, layer, n):
    """The library's own module (eager) as a map (batch, n, d) → same."""
    mask = torch.full((n, n), -torch.inf, dtype=model.model.dtype).triu(1)[None, None]
    mask = mask if model.causal else None
    module, _, _ = attention_of(model, layer)
    if model.architecture == "BERT":
        return lambda X: module.output.dense(module.self(X, attention_mask=mask)[0])
    if model.architecture == "GPT-2":
        return lambda X: module(X, attention_mask=mask)[0]

    def attend(X):
        angles = model.model.rotary_emb(X, torch.arange(n)[None])
        return module(X, position_embeddings=angles, attention_mask=mask)[0]

    return attend


def check_jacobian(model, layer, ours=None, n=6):
    """The layer, its Jacobian and its transpose against autodiff through the library's module."""
    X = model.hidden_states(layer, random_ids(model, 2, n))
    ours = model.attention(layer) if ours is None else ours
    theirs = library_attention(model, layer, n)
    H, G = torch.randn(2, *X.shape, generator=torch.Generator().manual_seed(1), dtype=X.dtype)
    for found, expected in (
        (ours(X), theirs(X)),
        (ours.jacobian(X).matvec(H), torch.func.jvp(theirs, (X,), (H,))[1]),
        (ours.jacobian(X).rmatvec(G), torch.func.vjp(theirs, X)[1](G)[0]),
    ):
        assert (found - expected).norm() < 1e-10 * expected.norm()


@pytest.mark.usefixtures("all_in_double")
class TestAgainstTheLibrary:
    @pytest.mark.parametrize("kind", KINDS)
    def test_every_layer(self, kind):
        model = tiny(kind)
        for layer in range(model.n_layers):
            check_layer(model, layer, random_ids(model, 3, 11))
            check_jacobian(model, layer)

    @pytest.mark.parametrize("name", ("minilm", "smollm2"))
    def test_real_weights(self, name):
        model = load(name, dtype=torch.float64)
        check_layer(model, 3, model.encode(SENTENCE * 3)[None])
        check_jacobian(model, 3)

    @pytest.mark.parametrize(("kind", "change"), (
        ("bert", {"query_bias": None}),
        ("bert as decoder", {"causal": False}),
        ("gpt2", {"scale": 1.0}),
        ("llama", {"rotary": None}),
    ))  # fmt: skip
    def test_a_layer_that_lacks_something_does_not_pass(self, kind, change):
        model = tiny(kind)
        with pytest.raises(AssertionError):
            check_jacobian(model, 1, dataclasses.replace(model.attention(1), **change))

    @pytest.mark.parametrize("kind", ("bert", "llama"))
    def test_heads_add_up_to_the_layer(self, kind):
        model = tiny(kind)
        X = model.hidden_states(1, random_ids(model, 2, 7))
        whole = model.attention(1)
        total = sum(model.attention(1, head=head)(X) for head in range(model.heads))
        bias = 0 if whole.output_bias is None else whole.output_bias
        torch.testing.assert_close(total + bias, whole(X))


@pytest.mark.parametrize("kind", KINDS)
def test_what_enters_the_layers(kind):
    """It lies in the image of the norm, and the model runs whole afterwards."""
    model = tiny(kind)
    ids = random_ids(model, 2, 7)
    before = model.model(ids).last_hidden_state
    every = model.all_hidden_states(ids)
    assert torch.equal(model.model(ids).last_hidden_state, before)
    for layer, X in enumerate(every):
        assert torch.equal(model.all_hidden_states(ids, up_to=layer)[-1], X)
        norm = model.norm(layer)
        unit = (X - norm.bias) / norm.gain
        torch.testing.assert_close(unit.square().mean(-1), 0 * unit[..., 0] + 1, rtol=0, atol=5e-3)
        if norm.kind == "layer":
            torch.testing.assert_close(unit.mean(-1), 0 * unit[..., 0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ("minilm", "smollm2", "gpt2-random"))
def test_sizes_are_those_of_the_registry(name):
    state = torch.random.get_rng_state()
    model = load(name)
    assert torch.equal(torch.random.get_rng_state(), state)
    row = next(row for row in available() if row["name"] == name)
    assert (row["layers"], row["d"], row["heads"]) == (model.n_layers, model.d, model.heads)
    assert row["architecture"] == model.model.config.model_type
    assert row["sha256"] == model.sha256


def test_bert_made_a_decoder():
    model = load("minilm", decoder=True)
    assert model.causal and not load("minilm").causal
    check_layer(model, 1, random_ids(model, 2, 9), tolerance=1e-5)


@pytest.mark.parametrize(("name", "ends"), (("minilm", ([101], [102])), ("smollm2", ([], []))))
def test_tokens(name, ends):
    model = load(name)
    assert model.decode(model.encode(SENTENCE)) == SENTENCE
    assert model.special_tokens() == ends
    ids = model.encode("word " * 2000)
    assert len(ids) >= 2000 and ids.dtype == torch.int64 and model.encode("").shape == (0,)


@pytest.mark.parametrize("family", ("bert", "llama", "t5"))
def test_a_folder_with_any_architecture(family, tmp_path):
    tiny_model(family).float().save_pretrained(tmp_path)
    loaded = load(tmp_path, dtype=torch.float64)
    assert isinstance(loaded, LanguageModel) == (family in ("bert", "llama"))
    table = measure(loaded, **inputs_of(family), layers=0)
    expected = measure(tiny_model(family).float().double(), **inputs_of(family), layers=0)
    assert table["sigma"].tolist() == pytest.approx(expected["sigma"].tolist(), rel=1e-5)


class TestBadInput:
    def test_what_cannot_be_loaded(self, tmp_path):
        with pytest.raises(ValueError, match="minilm"):
            load("bert-large")
        with pytest.raises(ValueError, match=r"config\.json"):
            load(tmp_path)
        for content in ("not json", "{}", '{"model_type": "nothing"}', '{"model_type": "t5"}'):
            (tmp_path / "config.json").write_text(content)
            with pytest.raises(ValueError, match="name"):
                load(tmp_path)

    def test_rope_that_depends_on_the_length_is_not_read(self, tmp_path):
        tiny_model("llama").save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 50.0}
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert not isinstance(load(tmp_path), LanguageModel)

    def test_missing_weights(self, tmp_path):
        from safetensors.torch import load_file, save_file

        weights = load_file(fetch("minilm") / "model.safetensors")
        del weights["encoder.layer.1.attention.self.query.weight"]
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        (tmp_path / "config.json").write_text((fetch("minilm") / "config.json").read_text())
        with pytest.raises(ValueError, match=r"encoder\.layer\.1"):
            load(tmp_path)

    def test_options(self):
        with pytest.raises(ValueError, match="decoder"):
            load("gpt2-random", decoder=True)
        with pytest.raises(TypeError, match="dtype"):
            load("minilm", dtype=torch.float16)
        with pytest.raises(IndexError, match="layer"):
            tiny("bert").norm(2)
        with pytest.raises(IndexError, match="head"):
            tiny("bert").attention(1, head=2)

    def test_token_ids(self):
        hidden_states = tiny("bert").hidden_states
        for ids in ([1, 2], *map(torch.tensor, ([1.0], [1, 50], [-1, 3], [], [[[1]]]))):
            with pytest.raises((ValueError, TypeError), match="token_ids"):
                hidden_states(1, ids)
        with pytest.raises(ValueError, match="n: "):
            hidden_states(1, torch.ones(17, dtype=torch.long))
