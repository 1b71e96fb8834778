"""A submodule of a running model as a map: what enters it, where its batch is, what is held fixed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lipcore import capture, local_lipschitz, measure
from lipcore.models.structure import attention_modules, blocks, remarks


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def double(module):
    return module.double().eval()


def sigmas(fn, X):
    """The truth: the largest singular value of each member's dense Jacobian."""
    J = torch.autograd.functional.jacobian(fn, X)
    if X.ndim == 2:
        return torch.linalg.matrix_norm(J.flatten(2).flatten(0, 1), 2)
    norms = [torch.linalg.matrix_norm(J[i, :, :, i].flatten(2).flatten(0, 1), 2)
             for i in range(len(X))]  # fmt: skip
    return torch.stack(norms)


def assert_right(fn, X, truth=None):
    truth = sigmas(fn, X) if truth is None else truth
    found = local_lipschitz(fn, X, tol=1e-10)
    torch.testing.assert_close(found.value, truth, rtol=1e-6, atol=1e-12)
    assert bool((found.upper >= truth * (1 - 1e-9)).all())


class Residual(nn.Module):
    """Code as it is written: in place, with a mask that is made while it runs, and a cache."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.seen = 0

    def forward(self, hidden, scale=None, cache=None, *, mask=None):
        out = self.mix(hidden)
        if cache is not None:
            cache.append(out)
            out = out + sum(cache)
        if mask is not None:
            mask += 1.0
            out = out * mask
        return {"loss": out.mean(), "out": out if scale is None else scale * out}


class Around(nn.Module):
    """Changes in place what went into its child, and what came out."""

    def __init__(self, child=None):
        super().__init__()
        self.child = Residual() if child is None else child

    def forward(self, x, **options):
        h = x * 1.0
        out = self.child(h, **options)
        out = out["out"] if isinstance(out, dict) else out
        h += 5.0
        out += h
        return out


class TestWhatIsTaken:
    def test_inputs_and_output_are_those_of_the_run(self):
        model = double(Around())
        x = draw(2, 3, 4)
        fn, X = capture(model, "child", x)
        torch.testing.assert_close(X, x)
        torch.testing.assert_close(fn(X), model.child.mix(x))
        assert_right(fn, X)

    def test_a_value_that_is_changed_in_place_is_that_before_the_call(self):
        model = double(Around())
        mask = torch.ones(2, 3, 1, dtype=torch.float64)
        fn, X = capture(model, "child", draw(2, 3, 4), mask=mask)
        assert mask[0, 0, 0] == 1  # the caller's is not touched
        torch.testing.assert_close(fn(X), 2 * model.child.mix(X))

    def test_a_cache_is_new_at_every_call(self):
        model = double(Around())
        fn, X = capture(model, "child", draw(2, 3, 4), cache=[])
        torch.testing.assert_close(fn(X), 2 * model.child.mix(X))
        torch.testing.assert_close(fn(X), 2 * model.child.mix(X))

    def test_a_cache_object_is_new_at_every_call(self):
        class Cache:
            def __init__(self):
                self.kept = []

            def append(self, x):
                self.kept.append(x)

            def __iter__(self):
                return iter(self.kept)

        model = double(Around())
        fn, X = capture(model, "child", draw(2, 3, 4), cache=Cache())
        torch.testing.assert_close(fn(X), fn(X))

    @pytest.mark.filterwarnings("ignore:.past_key_values:FutureWarning")
    @pytest.mark.parametrize("with_graph", (False, True))
    @pytest.mark.parametrize("name", ("past_key_values", "cache"))
    def test_the_cache_of_the_caller_is_not_touched(self, name, with_graph):
        """Nor its length, nor σ of the next call; also one that autograd has made."""
        transformers = pytest.importorskip("transformers")
        sizes = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24}
        config = transformers.LlamaConfig(vocab_size=40, num_hidden_layers=1, **sizes)
        torch.manual_seed(0)
        model = transformers.LlamaModel(config).eval()
        with torch.set_grad_enabled(with_graph):
            cache = model(input_ids=torch.arange(5, 11)[None], use_cache=True).past_key_values
        inputs = {"input_ids": torch.tensor([[3, 4]]), name: cache, "use_cache": True}
        first, second = (measure(model, **inputs)["sigma"].tolist() for _ in range(2))
        assert first == second and cache.get_seq_length() == 6

    def test_the_first_tensor_varies_and_the_others_are_named(self):
        model = double(Residual())
        fn, X = capture(model, "", draw(2, 3, 4), draw(2, 3, 1, seed=1))
        assert repr(fn) == (
            "the model (Residual): hidden ↦ out, at fixed scale, at X of shape (2, 3, 4)"
        )
        other, scale = fn.at("scale")
        assert scale.shape == (2, 3, 1)
        assert_right(fn, X)
        assert_right(other, scale)
        with pytest.raises(ValueError, match=r"^name: "):
            fn.at("mask")

    def test_measuring_leaves_the_model_as_it_was(self):
        model = double(Around())
        before = copy.deepcopy(model.state_dict())
        fn, X = capture(model, "child", draw(2, 3, 4))
        local_lipschitz(fn, X)
        assert all(torch.equal(model.state_dict()[name], x) for name, x in before.items())
        modules = list(model.modules())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in modules)
        assert all(p.requires_grad and p.grad is None for p in model.parameters())


class MixesFirst(nn.Module):
    """Mixes along the first dimension, and adds a bias."""

    def __init__(self, bias):
        super().__init__()
        self.bias = bias

    def forward(self, x):
        return (x + x.mean(0, keepdim=True)).tanh() + self.bias


class TestWhereTheBatchIs:
    @pytest.mark.parametrize("batch_first", (True, False))
    def test_multihead_attention(self, batch_first):
        module = double(nn.MultiheadAttention(8, 2, batch_first=batch_first))
        x = draw(3, 5, 8) if batch_first else draw(5, 3, 8)
        fn, X = capture(module, "", x, x, x)
        assert X.shape == (3, 5, 8)
        assert fn.varied == ("query", "key", "value")
        assert_right(fn, X)

    @pytest.mark.parametrize("fill", (0.0, 1.0))
    @pytest.mark.parametrize("bias", (0.0, 1e13))
    def test_tokens_and_biases_hide_nothing(self, fill, bias):
        """Without a flag to say so: equal tokens would look independent, as would small moves beside a bias."""
        module = double(MixesFirst(bias))
        fn, X = capture(module, "", torch.full((5, 3, 8), fill, dtype=torch.float64))
        assert fn.layout == ("one input" if bias else "batch second")
        assert X.shape == ((15, 8) if bias else (3, 5, 8))

    def test_what_a_module_says_of_its_layout_comes_first(self):
        """Where each token sees itself alone, trying it out would allow either."""
        module = double(nn.MultiheadAttention(8, 2))
        x = draw(5, 3, 8)
        alone = ~torch.eye(5, dtype=torch.bool)
        _fn, X = capture(module, "", x, x, x, attn_mask=alone)
        assert X.shape == (3, 5, 8)

    @pytest.mark.parametrize("inference", (False, True))
    def test_the_same_memory_is_the_same_input(self, inference):
        module = double(nn.MultiheadAttention(8, 2, batch_first=True))
        with torch.inference_mode(inference):
            x = draw(3, 5, 8)
        fn, X = capture(module, "", x, x.view_as(x), x[:])
        assert fn.varied == ("query", "key", "value")
        assert_right(fn, X)

    def test_layout_that_nothing_tells(self):
        attention = double(nn.MultiheadAttention(8, 2))

        class Plain(nn.Module):
            def forward(self, x):
                return attention(x, x, x)[0]  # not a child: no attribute says batch_first

        fn, X = capture(Plain().eval(), "", draw(5, 3, 8))
        assert X.shape == (3, 5, 8)
        assert_right(fn, X)

    def test_one_sequence_without_a_batch(self):
        module = double(nn.MultiheadAttention(8, 2))
        x = draw(5, 8)
        fn, X = capture(module, "", x, x, x)
        assert X.shape == (5, 8)
        assert_right(fn, X)

    def test_members_that_influence_one_another_are_one_input(self):
        class Centre(nn.Module):
            def forward(self, x):
                return x - x.mean((0, 1), keepdim=True)

        fn, X = capture(Centre().eval(), "", draw(3, 6, 8))
        assert X.shape == (18, 8)
        assert "(3, 6, 8) is one input" in repr(fn)
        assert_right(fn, X)
        assert local_lipschitz(fn, X).value == pytest.approx(1.0)

    @pytest.mark.parametrize("parity", (0, 1))
    def test_an_influence_in_one_direction_is_seen(self, parity):
        class Onwards(nn.Module):
            def forward(self, x):
                out = x.clone()
                out[parity] = out[parity] + 0.5 * x[1 - parity]
                return out

        fn, _X = capture(Onwards().eval(), "", draw(2, 3, 4))
        assert fn.layout == "batch second"

    def test_images_have_the_batch_in_front(self):
        conv = double(nn.Conv2d(3, 3, 3, padding=1))
        x = draw(2, 3, 4, 5)
        fn, X = capture(conv, "", x)
        assert X.shape == (2, 12, 5)
        truth = [
            torch.autograd.functional.jacobian(conv, image[None]).reshape(60, 60) for image in x
        ]
        assert_right(fn, X, torch.linalg.matrix_norm(torch.stack(truth), 2))

    def test_encoder_layer_with_the_batch_second_and_padding(self):
        layer = double(nn.TransformerEncoderLayer(8, 2, 12))
        padding = torch.tensor([[False, False, False], [False, False, True]])
        x = draw(3, 2, 8)
        for name in ("", "self_attn"):
            fn, X = capture(layer, name, x, src_key_padding_mask=padding)
            assert X.shape == (2, 3, 8)
            assert_right(fn, X)
        alone, one = capture(layer, "self_attn", x[:2, 1:])  # without the padded token
        changed = X[1:].repeat(2, 1, 1)
        changed[1, 2] += 1.0  # nobody sees it, but what it is
        padded = fn(torch.stack([X[0], changed[1]]))[1]
        torch.testing.assert_close(padded[:2], alone(one)[0])


class TestCrossAttention:
    def test_with_respect_to_queries_and_to_memory(self):
        layer = double(nn.TransformerDecoderLayer(8, 2, 12, batch_first=True))
        x, memory = draw(2, 3, 8), draw(2, 5, 8, seed=1)
        fn, X = capture(layer, "multihead_attn", x, memory)
        assert (fn.varied, fn.fixed) == (("query",), ("key", "value"))
        assert_right(fn, X)
        of_memory, M = fn.at("key")
        assert of_memory.varied == ("key", "value")
        torch.testing.assert_close(M, memory)
        assert_right(of_memory, M)


class TestRefusals:
    def test_training_mode(self):
        with pytest.raises(ValueError, match=r"^model: .*\.eval"):
            capture(Around().double(), "child", draw(2, 3, 4))

    def test_unknown_name(self):
        with pytest.raises(ValueError, match="did you mean"):
            capture(double(Around()), "chld", draw(2, 3, 4))

    def test_module_that_does_not_run(self):
        model = double(Around())
        model.spare = nn.Linear(4, 4).double().eval()
        with pytest.raises(ValueError, match="spare"):
            capture(model, "spare", draw(2, 3, 4))

    def test_module_that_runs_twice(self):
        mix = nn.Linear(4, 4)
        model = double(nn.Sequential(mix, nn.Tanh(), mix))
        with pytest.raises(ValueError, match="0#1"):
            capture(model, "0", draw(2, 3, 4))
        _fn, X = capture(model, "0#1", draw(2, 3, 4))
        torch.testing.assert_close(X, mix(draw(2, 3, 4)).tanh())
        for wrong in ("0#2", "0#x", "0#-1"):
            with pytest.raises(ValueError, match=r"^name: "):
                capture(model, wrong, draw(2, 3, 4))

    def test_module_that_depends_on_more_than_its_inputs(self):
        class Counts(nn.Module):
            calls = 0

            def forward(self, x):
                self.calls += 1
                return x * self.calls

        with pytest.raises(ValueError, match="child"):
            capture(double(Around(Counts())), "child", draw(2, 3, 4))

    def test_no_tensor_in_or_out(self):
        class Ids(nn.Module):
            def forward(self, ids):
                return torch.nn.functional.one_hot(ids, 3).double()

        class Words(nn.Module):
            def forward(self, x):
                return "words"

        with pytest.raises(TypeError, match="enter"):
            capture(Ids().eval(), "", torch.ones(2, 3, dtype=torch.long))
        with pytest.raises(TypeError, match="out of"):
            capture(Words().eval(), "", draw(2, 3, 4))

    def test_another_shape(self):
        fn, _X = capture(double(Residual()), "", draw(2, 3, 4))
        with pytest.raises(ValueError, match=r"^X: "):
            fn(draw(3, 3, 4))


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.proj = nn.Linear(4, 4)


class FusedAttention(Fused):
    pass


class TestStructure:
    def test_names(self):
        attention = nn.ModuleDict({"to_q": nn.Linear(4, 4), "to_kv": nn.Linear(4, 8)})
        parts = {
            "wrapped": attention,
            "q": nn.Linear(4, 4),
            "fused": Fused(),
            "own": FusedAttention(),
        }
        model = nn.ModuleDict(parts | {"mlp": nn.Linear(4, 4)})
        assert attention_modules(model) == ["wrapped", "own"]

    def test_class_called_attention_with_nothing_inside(self):
        class MyAttention(nn.Module):
            def __init__(self):
                super().__init__()
                self.everything = nn.Linear(4, 4)

        class OuterAttention(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = MyAttention()

        assert attention_modules(nn.ModuleDict({"a": OuterAttention()})) == ["a.inner"]

    def test_remarks(self):
        query = {"query": nn.Linear(4, 4), "key": nn.Linear(4, 4), "value": nn.Linear(4, 4)}
        assert remarks(nn.ModuleDict(query)) == "without output projection"
        assert remarks(nn.ModuleDict(query | {"dense": nn.Linear(4, 4)})) == ""
        normed = nn.ModuleDict(query | {"LayerNorm": nn.LayerNorm(4), "dense": nn.Linear(4, 4)})
        assert remarks(normed) == "includes LayerNorm and what is added before it"
        of_heads = {"q_norm": nn.LayerNorm(2), "k_norm": nn.LayerNorm(2), "o": nn.Linear(4, 4)}
        assert remarks(nn.ModuleDict(query | of_heads)) == ""

    def test_blocks_hold_other_matrices(self):
        decoder = nn.TransformerDecoderLayer(8, 2, 12)
        model = nn.ModuleDict({"encoder": nn.ModuleList([Fused(), FusedAttention()]),
                               "layers": nn.ModuleList([decoder, nn.Linear(8, 8)])})  # fmt: skip
        assert blocks(model) == ["layers.0"]
        assert attention_modules(decoder) == ["self_attn", "multihead_attn"]
