"""The guard: code that autodiff differentiates rightly passes, and what it does not is refused by its cause."""

import itertools

import pytest
import torch
from torch import nn
from torch.autograd.functional import jacobian
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from lipcore import local_lipschitz

D = 8


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


W = drawn(D, D) / D**0.5
SCORES = drawn(D, D, seed=1) / D


def dense(fn, x):
    """σ of one input by plain autograd, one row of the Jacobian after the other."""
    with sdpa_kernel(SDPBackend.MATH):
        J = jacobian(fn, x)
    return torch.linalg.matrix_norm(J.reshape(-1, x.numel()), 2).item()


def module(make):
    """A module in evaluation mode with weights of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return make().double().eval()


# --- code that is right, written as people write it -------------------------------------------------------


def residual_in_place(x):
    h = x @ W
    h += x
    return h.tanh()


def scores_in_place(x):
    scores = x @ SCORES @ x.mT
    scores /= D**0.5
    scores += torch.arange(scores.shape[-1])
    P = scores.softmax(-1)
    P *= 0.5  # softmax has saved what is overwritten here
    return P @ x


def slices(x):
    h = torch.zeros_like(x)
    h[..., : D // 2] = (x @ W)[..., : D // 2].sin()
    h[..., D // 2 :] = x[..., D // 2 :] ** 2
    h[..., 0, :] *= 3
    return h


def exponential_in_place(x):
    h = x.exp()
    h.mul_(2).clamp_(max=5)
    return h @ W


class OldFunction(torch.autograd.Function):
    """With a backward, and without forward mode."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


class DifferentiableOnce(torch.autograd.Function):
    """With forward mode, and a backward that cannot be differentiated again."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx, h):
        return h * ctx.saved_tensors[0].cos()


def upcast_softmax(x):
    scores = (x @ SCORES @ x.mT).float().softmax(-1)
    return scores.to(x.dtype) @ x


RIGHT = {
    "in place, a residual": lambda: residual_in_place,
    "in place, scores": lambda: scores_in_place,
    "in place, slices": lambda: slices,
    "in place, what was saved": lambda: exponential_in_place,
    "LSTM": lambda: (lambda m: lambda x: m(x)[0])(module(lambda: nn.LSTM(D, D, batch_first=True))),
    "GRU": lambda: (lambda m: lambda x: m(x)[0])(module(lambda: nn.GRU(D, D, batch_first=True))),
    "checkpoint": lambda: lambda x: checkpoint(residual_in_place, x, use_reentrant=False),
    "function of the old kind": lambda: OldFunction.apply,
    "differentiable once": lambda: DifferentiableOnce.apply,
    "encoder layer": lambda: module(lambda: nn.TransformerEncoderLayer(D, 2, 16, batch_first=True)),
    "encoder": lambda: module(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 16, batch_first=True), 2)
    ),
    "fused attention": lambda: lambda x: F.scaled_dot_product_attention(x, x @ W, x, is_causal=True),
    "layer norm": lambda: module(lambda: nn.LayerNorm(D)),
    "batch norm, evaluated": lambda: (lambda m: lambda x: m(x.mT).mT)(module(lambda: nn.BatchNorm1d(D))),
    "kinks": lambda: lambda x: (x @ W).relu() @ W,
    "a branch": lambda: lambda x: x.sin() if float(x.sum()) > -1e9 else x,
    "compiled": lambda: torch.compile(residual_in_place, backend="eager"),
    "softmax in float32": lambda: upcast_softmax,
    "constant": lambda: lambda x: torch.ones_like(x),
    "saturated": lambda: lambda x: (1e3 * x).tanh() + 7,
    "derivatives inside": lambda: lambda x: torch.func.vmap(
        torch.func.grad(lambda y: (y @ W).tanh().sum())
    )(x),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*nested tensor.*:UserWarning")
@pytest.mark.parametrize("name", RIGHT)
def test_ordinary_code_is_measured_rightly(name):
    fn = RIGHT[name]()
    X = drawn(3, 6, D, seed=4)
    found = local_lipschitz(fn, X, tol=1e-10).value
    reference = residual_in_place if name == "compiled" else fn
    if name == "in place, what was saved":  # which plain autograd cannot do
        reference = lambda x: (2 * x.exp()).clamp(max=5) @ W  # noqa: E731
    if name == "in place, scores":
        reference = lambda x: 0.5 * ((x @ SCORES @ x.mT) / D**0.5 + torch.arange(6)).softmax(-1) @ x  # noqa: E731
    expected = [dense(lambda y: reference(y[None])[0], x) for x in X]
    precise = 1e-5 if name == "softmax in float32" else 1e-9
    assert found.tolist() == pytest.approx(expected, rel=precise, abs=1e-12)


@pytest.mark.filterwarnings("ignore:.*nested tensor.*:UserWarning")
@pytest.mark.parametrize("name", sorted(set(RIGHT) - {"softmax in float32"}))
def test_ordinary_code_in_single_precision(name, monkeypatch):
    """No false alarm, and σ to single precision; LSTMs run in kernels without forward mode."""
    fn = RIGHT[name]()
    X = drawn(3, 6, D, seed=4)
    expected = local_lipschitz(fn, X, tol=1e-6).value
    closure = [c.cell_contents for c in getattr(fn, "__closure__", None) or ()]
    for part in [fn, *closure]:
        if isinstance(part, nn.Module):
            part.float()
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "W", W.float())
        patch.setitem(globals(), "SCORES", SCORES.float())
        found = local_lipschitz(fn, X.float(), tol=1e-4).value
    assert found.tolist() == pytest.approx(expected.tolist(), rel=2e-3, abs=1e-6)


# --- code that is refused, each by its cause ---------------------------------------------------------------


@torch.no_grad()
def without_gradients(x):
    return x @ W


@torch.inference_mode()
def in_inference_mode(x):
    return x @ W


def partly_without(x):
    with torch.no_grad():
        scores = x @ SCORES @ x.mT
    return scores.softmax(-1) @ x


def detached_scores(x):
    return (x @ SCORES @ x.mT).detach().softmax(-1) @ x


def seeded(x):
    torch.manual_seed(0)
    return F.dropout(x, 0.5)


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx, g):
        return g


class Untransposed(torch.autograd.Function):
    """Its backward multiplies with W, not with the transpose of W."""

    @staticmethod
    def forward(ctx, x):
        return x @ W

    @staticmethod
    def backward(ctx, g):
        return g @ W


class NoRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()


def counting():
    calls = itertools.count(1)
    return lambda x: x * (1 + next(calls) % 2)


def shared_generator():
    generator = torch.Generator().manual_seed(0)
    return lambda x: x * torch.rand(x.shape, generator=generator, dtype=x.dtype)


def sequences_first():
    m = module(lambda: nn.MultiheadAttention(D, 2))
    return lambda x: m(x, x, x, need_weights=False)[0]


def causal_sequences_first():
    m = module(lambda: nn.MultiheadAttention(D, 2))
    mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
    return lambda x: m(x, x, x, attn_mask=mask, need_weights=False)[0]


def behind_a_lambda(make, through=lambda m, x: m(x)):
    m = module(make).train()
    return lambda x: through(m, x)


REFUSED = {
    "batch in the middle": (sequences_first, ValueError, "layout='LNE'"),
    "batch in the middle, causal": (causal_sequences_first, ValueError, "layout='LNE'"),
    "mean over the batch": (lambda: lambda x: x - x.mean(0), ValueError, "event_dims=3"),
    "batch turned": (lambda: lambda x: x.roll(1, 0), ValueError, "event_dims=3"),
    "one member into another": (
        lambda: lambda x: torch.cat([x[:1] + x[2:], x[1:]]),
        ValueError,
        "influence",
    ),
    "batch statistics without gradients": (
        lambda: lambda x: x - x.mean(0).detach(),
        ValueError,
        "influence",
    ),
    "no_grad": (lambda: without_gradients, ValueError, "no_grad"),
    "no_grad around scores": (lambda: partly_without, ValueError, "no_grad"),
    "inference mode": (lambda: in_inference_mode, ValueError, "inference_mode"),
    "detached scores": (lambda: detached_scores, ValueError, "detach"),
    "data": (lambda: lambda x: x + x.data.sin(), ValueError, r"\(data\)"),
    "a number taken out": (
        lambda: (
            lambda x: x * torch.tensor(x.norm(dim=(-2, -1)).tolist(), dtype=x.dtype)[:, None, None]
        ),
        ValueError,
        "tolist",
    ),
    "NumPy": (
        lambda: lambda x: torch.from_numpy(x.detach().numpy() @ W.numpy()),
        ValueError,
        "numpy",
    ),
    "straight through": (lambda: StraightThrough.apply, ValueError, "round"),
    "backward that is wrong": (lambda: Untransposed.apply, ValueError, "backward"),
    "no rule": (lambda: NoRule.apply, NotImplementedError, "backward"),
    "checkpoint, reentrant": (
        lambda: lambda x: checkpoint(residual_in_place, x, use_reentrant=True),
        NotImplementedError,
        "use_reentrant=False",
    ),
    "dropout": (lambda: lambda x: F.dropout(x, 0.1), ValueError, "chance"),
    "dropout module": (lambda: behind_a_lambda(lambda: nn.Dropout(0.1)), ValueError, r"\.eval\(\)"),
    "seed set inside": (lambda: seeded, ValueError, "seed"),
    "seed set, nothing drawn": (lambda: lambda x: (torch.manual_seed(1), x)[1], ValueError, "seed"),
    "generator of its own": (shared_generator, ValueError, "same output"),
    "state between calls": (counting, ValueError, "same output"),
    "batch norm in training": (
        lambda: behind_a_lambda(lambda: nn.BatchNorm1d(D), lambda m, x: m(x.mT).mT),
        ValueError,
        r"\.eval\(\)",
    ),
    "another dtype": (
        lambda: (lambda m: lambda x: m(x))(nn.Linear(D, D).eval()),
        TypeError,
        "dtype",
    ),
    "a tuple": (lambda: lambda x: (x, x), TypeError, "wrap it"),
    "nested": (
        lambda: lambda x: torch.nested.as_nested_tensor(list(x)),
        TypeError,
        r"^fn\(X\): .*pad it",
    ),
    "wrong shape": (lambda: lambda x: x @ W[:3], RuntimeError, "fits"),
}


@pytest.mark.filterwarnings("ignore:.*nested tensor.*:UserWarning", "ignore:None of the inputs")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", REFUSED)
def test_code_that_misleads_autodiff_is_refused(name, dtype, monkeypatch):
    """In one line, which names the cause, in both precisions."""
    make, error, message = REFUSED[name]
    fn = make()
    X = drawn(3, 6, D, seed=4).to(dtype)
    if dtype == torch.float32:
        monkeypatch.setitem(globals(), "W", W.float())
        monkeypatch.setitem(globals(), "SCORES", SCORES.float())
        for part in [c.cell_contents for c in getattr(fn, "__closure__", None) or ()]:
            if isinstance(part, nn.Module):
                part.double() if name == "another dtype" else part.float()
    with pytest.raises(error, match=message) as caught:
        local_lipschitz(fn, X)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("fn")


# --- what is offered instead, and what is left as it was ----------------------------------------------------


def test_batch_in_the_middle():
    fn = sequences_first()
    X = drawn(6, 3, D)
    found = local_lipschitz(fn, X, layout="LNE", tol=1e-10)
    expected = [dense(lambda y: fn(y[:, None])[:, 0], x) for x in X.transpose(0, 1)]
    assert found.value.tolist() == pytest.approx(expected, rel=1e-9)
    assert found.right.shape == (3, 6, D)


def test_channels_are_no_batch():
    m = module(lambda: nn.Conv2d(3, 3, 3, padding=1))
    X = drawn(2, 3, 5, 4)
    with pytest.raises(ValueError, match="event_dims=3"):
        local_lipschitz(m, X)
    found = local_lipschitz(m, X, event_dims=3, tol=1e-10)
    assert found.value.tolist() == pytest.approx(
        [dense(lambda y: m(y[None])[0], x) for x in X], rel=1e-9
    )
    wider = module(lambda: nn.Conv2d(3, 4, 3))
    with pytest.raises(ValueError, match="event_dims=3"):
        local_lipschitz(wider, X)


def test_the_whole_batch_as_one_input():
    X = drawn(3, 6, D)
    found = local_lipschitz(lambda x: x - x.mean(0), X, event_dims=3, tol=1e-10)
    assert found.value.shape == () and float(found) == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"event_dims": 4}, "^event_dims: "),
        ({"layout": "NCHW"}, "^layout: "),
        ({"layout": "LNE", "of": (2, 2)}, "^layout: "),
    ],
)
def test_options_out_of_range(options, message):
    X = drawn(*options.pop("of", (2, 3, 4)))
    with pytest.raises(ValueError, match=message):
        local_lipschitz(torch.sin, X, **options)


def test_one_pair_among_many_members_is_seen():
    """The last member looks at the first: two members stand for all, but not where they are not alone."""

    def fn(x):
        return torch.cat([x[:-1], x[-1:] + 0.1 * x[3:4]])

    with pytest.raises(ValueError, match="influence"):
        local_lipschitz(fn, drawn(10, 3, 4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_is_hidden_is_seen_among_many_members(dtype):
    """The first and the last are moved alone; J and its transpose belong together here."""
    X = drawn(10, 3, 4).to(dtype)
    with pytest.raises(ValueError, match="detach"):
        local_lipschitz(lambda x: x + x.detach().sin(), X)
    with pytest.raises(ValueError, match="influence"):
        local_lipschitz(lambda x: x - x.mean(0).detach(), X)


def test_members_that_are_independent_only_in_pairs():
    """Of two members each would be moved onto itself: the values say that two are not all."""
    with pytest.raises(ValueError, match="influence"):
        local_lipschitz(lambda x: x + 0.1 * x.roll(2, 0), drawn(10, 3, 4))


def test_no_false_alarm_where_differences_cannot_be_trusted():
    """Kinks and quick oscillations after a softmax in float32: no finite difference is right to 1e-3."""
    V, U = drawn(D, 256, seed=5), drawn(256, D, seed=50) / 16

    def fn(x):
        return (8 * upcast_softmax(x) @ V).sin().relu() @ U

    X = drawn(3, 6, D, seed=4)
    found = local_lipschitz(fn, X, tol=1e-8).value
    assert found.tolist() == pytest.approx([dense(fn, x) for x in X], rel=1e-4)
    with pytest.raises(ValueError, match="detach"):
        local_lipschitz(lambda x: fn(x) + fn(x.detach()), X)


def test_a_map_for_one_number_of_members():
    scales = torch.arange(1.0, 11).double()[:, None, None]
    found = local_lipschitz(lambda x: scales * x, drawn(10, 3, 4), tol=1e-10)
    assert found.value.tolist() == pytest.approx(list(range(1, 11)))
    with pytest.raises(ValueError, match="detach"):
        local_lipschitz(lambda x: scales * x + x.detach(), drawn(10, 3, 4))


@pytest.mark.parametrize("n", [64, 512])
def test_a_norm_taken_out_is_seen_in_long_inputs(n):
    """A part of rank one, which a random direction alone would hardly meet."""
    with pytest.raises(ValueError, match="detach"):
        local_lipschitz(
            lambda x: x * x.norm(dim=(-2, -1), keepdim=True).detach(), drawn(2, n, 64).float()
        )


class Watched(nn.Module):
    """Batch normalisation in training, and a buffer that counts."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(D)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.norm(x.mT).mT


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_changed(training):
    m = Watched().double().train(training)
    m.norm(drawn(2, D, 3))
    before = {name: x.clone() for name, x in m.state_dict().items()}
    chance = torch.get_rng_state()
    with pytest.raises(ValueError, match="buffer"):
        local_lipschitz(lambda x: m(x), drawn(3, 6, D))
    for name, x in m.state_dict().items():
        assert torch.equal(x, before[name]), name
    assert m.training is training and all(p.grad is None for p in m.parameters())
    assert torch.equal(torch.get_rng_state(), chance)


def test_a_mode_changed_inside_is_put_back():
    m = module(lambda: nn.Sequential(nn.Linear(D, D)))
    with pytest.raises(ValueError, match="changes its mode"):
        local_lipschitz(lambda x: m(x) + 0 * x * bool(m.train()), drawn(3, D))
    assert not any(part.training for part in m.modules())


def test_chance_and_gradients_are_left_alone():
    m = module(lambda: nn.TransformerEncoderLayer(D, 2, 16, batch_first=True))
    chance = torch.get_rng_state()
    local_lipschitz(m, drawn(2, 5, D))
    with pytest.raises(ValueError, match="chance"):
        local_lipschitz(lambda x: F.dropout(x, 0.5), drawn(2, 5, D))
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(p.grad is None for p in m.parameters())


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_called_without_gradients(context):
    with context():
        found = local_lipschitz(residual_in_place, drawn(2, 5, D), tol=1e-10).value
    expected = [dense(residual_in_place, x) for x in drawn(2, 5, D)]
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
