"""The guard: a table of maps with their truth; what autodiff cannot be trusted with is refused."""

import contextlib
import itertools
import os
import random
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.functional import jacobian
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from lipcore import local_lipschitz
from seeded import drawn

D = 8
MANY = (10, 3, 4)  # of so many members only some are moved
IMAGES = (2, 3, 5, 4)
ERRORS = (ValueError, TypeError, RuntimeError)


MIX = drawn(D, D) / D**0.5
SCORES = drawn(D, D, seed=1) / D


def mixed(x):
    return x @ MIX.to(x)


def scores(x):
    return x @ SCORES.to(x) @ x.mT


def total(x):
    return x.sum((-2, -1), keepdim=True)


def scaled(x):
    """For ten members: each by its number."""
    return x * torch.arange(1, 11).to(x)[:, None, None]


# --- maps, written as people write them --------------------------------------------------------


def residual_in_place(x):
    h = mixed(x)
    h += x
    return h.tanh()


def scores_in_place(x):
    s = scores(x)
    s /= D**0.5
    s += torch.arange(s.shape[-1])
    P = s.softmax(-1)
    P *= 0.5  # softmax has saved what is overwritten here
    return P @ x


def scores_out_of_place(x):
    return 0.5 * (scores(x) / D**0.5 + torch.arange(x.shape[-2])).softmax(-1) @ x


def slices(x):
    h = torch.zeros_like(x)
    h[..., : D // 2] = mixed(x)[..., : D // 2].sin()
    h[..., D // 2 :] = x[..., D // 2 :] ** 2
    h[..., 0, :] *= 3
    return h


def exponential_in_place(x):
    h = x.exp()
    h.mul_(2).clamp_(max=5)
    return mixed(h)


def upcast_softmax(x):
    return scores(x).float().softmax(-1).to(x.dtype) @ x


def kinks_and_oscillations(x):
    """No finite difference is right to 1e-3 after a softmax in float32."""
    h = (8 * upcast_softmax(x) @ drawn(D, 256, seed=5).to(x)).sin().relu()
    return h @ drawn(256, D, seed=50).to(x) / 16


def gradient_inside(x):
    return torch.func.vmap(torch.func.grad(lambda y: mixed(y).tanh().sum()))(x)


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


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx, g):
        return g


class Untransposed(torch.autograd.Function):
    """Its backward multiplies with the matrix, not with its transpose."""

    @staticmethod
    def forward(ctx, x):
        return mixed(x)

    @staticmethod
    def backward(ctx, g):
        return mixed(g)


class Tripled(torch.autograd.Function):
    """Three times the gradient, backwards and backwards again."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return 3 * g


class NoRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()


def partly_without(x):
    with torch.no_grad():
        s = scores(x)
    return s.softmax(-1) @ x


def number_taken_out(x):
    norms = x.norm(dim=(-2, -1)).tolist()
    return x * torch.tensor(norms, dtype=x.dtype)[:, None, None]


def seeded(x):
    torch.manual_seed(0)
    return F.dropout(x, 0.5)


def counting():
    calls = itertools.count(1)
    return lambda x: x * (1 + next(calls) % 2)


def shared_generator():
    generator = torch.Generator().manual_seed(0)
    return lambda x: x * torch.rand(x.shape, generator=generator, dtype=x.dtype)


def of(m, call=lambda m, x: m(x)):
    """A map that is no module, but calls one."""
    return lambda x: call(m, x)


def attend(m, x, **options):
    return m(x, x, x, need_weights=False, **options)[0]


def attend_causally(m, x):
    return attend(m, x, attn_mask=torch.ones(len(x), len(x), dtype=torch.bool).triu(1))


def attention():
    return nn.MultiheadAttention(D, 2).eval()


def conv(channels):
    return nn.Conv2d(3, channels, 3, padding=1).eval()


def encoder_layer():
    return nn.TransformerEncoderLayer(D, 2, 16, batch_first=True).eval()


def across(m, x):
    return m(x.mT).mT


def counting_calls(m, x):
    y = across(m, x)
    m.num_batches_tracked += 1
    return y


def other_dtype():
    is_single = torch.get_default_dtype() == torch.float32
    return nn.Linear(D, D, dtype=torch.float64 if is_single else torch.float32).eval()


def straight(quantised):
    """A straight-through estimator: the value of one map, the derivative of the identity."""
    return lambda x: x + (quantised(x) - x).detach()


def hot(x):
    """One where a token is largest, with the derivative of its softmax."""
    soft = x.softmax(-1)
    return F.one_hot(x.argmax(-1), x.shape[-1]).to(x) + soft - soft.detach()


def expert_without_gradient(x):
    """Large members take a way that autodiff does not see."""
    large = x.norm(dim=(-2, -1), keepdim=True) > 30
    return torch.where(large, x.detach(), mixed(x))


class BackwardOfLarge(torch.autograd.Function):
    """Its backward is wrong for large entries only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return torch.where(ctx.saved_tensors[0].abs() > 20, g, 2 * g)


def hooked(x):
    y = mixed(x)
    if y.requires_grad:
        y.register_hook(lambda g: 1.0005 * g)
    return y


def linear(call):
    """A function of X and of weights of X's own dtype, so that it takes no other."""
    W = torch.randn(D, D) / D**0.5
    return lambda x: call(x, x @ W)


def random_slope(draw):
    X = drawn(3, 4, D, seed=4)
    return lambda x: x + (x - X.to(x)) * draw()


class Keeping(nn.Module):
    """Keeps something from call to call."""

    def __init__(self, keep, kept=None, linear=False):
        super().__init__()
        self.keep, self.kept = keep, kept
        self.linear = nn.Linear(D, D) if linear else nn.Identity()
        self.register_buffer("past", None)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        return self.linear(self.keep(self, x))


def growing(m, x):
    """Keys and values of earlier calls stay."""
    m.past = x if m.past is None else torch.cat([m.past, x], -2)
    return (x @ m.past.mT).softmax(-1) @ m.past


def first_kept(m, x):
    """Those of the first call stay for ever."""
    m.kept = x if m.kept is None else m.kept
    return (x @ m.kept.mT).softmax(-1) @ m.kept


def counted(m, x):
    m.kept = (m.kept or 0) + 1
    return x.sin()


def every_other(m, x):
    m.kept = not m.kept
    return x.sin() if m.kept else x.cos()


def count_before(m, x):
    """Changed from outside, before the module runs."""
    m.count += 1
    return m(x)


def appended(past):
    return lambda x: (past.append(1), x.sin())[1]


def lazy(m, x):
    """A mask made once."""
    m.kept = {} if m.kept is None else m.kept
    mask = m.kept.setdefault(x.shape[-2], torch.ones(x.shape[-2], x.shape[-2]).tril().bool())
    return scores(x).masked_fill(~mask, -torch.inf).softmax(-1) @ x


def autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = x.float() @ MIX.float()
    return y.to(x)


class AutocastInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return x + 0.1 * (x.float() @ self.linear.weight.float()).to(x)


def routed(x):
    """To one of two experts, token by token, weighted by its share."""
    share, expert = (x[..., :2]).softmax(-1).max(-1, keepdim=True)
    return share * torch.where(expert == 0, mixed(x), x.sin())


def loud(X):
    """One member in the middle is much larger."""
    return X * (1 + 49.0 * (torch.arange(len(X)) == 3)).to(X)[:, None, None]


def padded(X):
    """Some tokens are zero."""
    return torch.cat([X[:, :-2], 0 * X[:, -2:]], 1)


def equal(X):
    return X[:, :1].expand_as(X).contiguous()


class Map(NamedTuple):
    """``refused`` is the cause or the cure that the refusal names, and ``truth`` does the same."""

    make: Callable
    refused: str = ""
    shape: tuple[int, ...] = (2, 3, D)
    truth: Callable | None = None
    layout: str = "NLE"
    event_dims: int = 2
    close: float = 1e-9
    place: Callable = lambda X: X
    said: bool = False


def wrong(make, refused="fn", shape=(3, 4, D), **options):
    return Map(make, refused, shape, **options)


MAPS = {
    "in place, a residual": Map(lambda: residual_in_place),
    "in place, scores": Map(lambda: scores_in_place, truth=scores_out_of_place),
    "in place, slices": Map(lambda: slices),
    "in place, what was saved": Map(
        lambda: exponential_in_place, truth=lambda x: mixed((2 * x.exp()).clamp(max=5))),
    "in place, its argument": Map(lambda: lambda x: x.mul_(total(x)), truth=lambda x: x * total(x)),
    "LSTM": Map(lambda: of(nn.LSTM(D, D, batch_first=True).eval(), lambda m, x: m(x)[0])),
    "GRU": Map(lambda: of(nn.GRU(D, D, batch_first=True).eval(), lambda m, x: m(x)[0])),
    "checkpoint": Map(lambda: lambda x: checkpoint(residual_in_place, x, use_reentrant=False)),
    "differentiable once": Map(lambda: DifferentiableOnce.apply),
    "encoder layer": Map(encoder_layer),
    "encoder": Map(lambda: nn.TransformerEncoder(encoder_layer(), 2).eval()),
    "fused attention": Map(
        lambda: lambda x: F.scaled_dot_product_attention(x, mixed(x), x, is_causal=True)),
    "layer norm": Map(lambda: nn.LayerNorm(D).eval()),
    "batch norm, evaluated": Map(lambda: of(nn.BatchNorm1d(D).eval(), across)),
    "kinks": Map(lambda: lambda x: mixed(mixed(x).relu())),
    "kinks and oscillations": Map(lambda: kinks_and_oscillations, close=1e-5, said=True),
    "a branch": Map(lambda: lambda x: x.sin() if float(x.sum()) > -1e9 else x),
    "compiled": Map(
        lambda: torch.compile(residual_in_place, backend="eager"), truth=residual_in_place),
    "softmax in float32": Map(lambda: upcast_softmax, close=1e-5, said=True),
    "constant": Map(lambda: lambda x: torch.ones_like(x)),
    "shifted": Map(lambda: lambda x: x + 7),
    "saturated": Map(lambda: lambda x: (1e3 * x).tanh() + 7),
    "derivatives inside": Map(lambda: gradient_inside),
    "one number of each member": Map(lambda: lambda x: x.square().sum((-2, -1))),
    "one number": Map(lambda: lambda x: x.sin().sum(), shape=(3, D)),
    "tiny outputs": Map(lambda: lambda x: 1e-200 * mixed(x).sin()),
    "batch in the middle": Map(lambda: of(attention(), attend), layout="LNE"),
    "channels": Map(lambda: conv(3), shape=IMAGES, event_dims=3),
    "batch as one input": Map(lambda: lambda x: x - x.mean(0), event_dims=3),
    "sharp scores": Map(lambda: lambda x: (30 * scores(x)).softmax(-1) @ x, close=1e-8),
    "a wide network": Map(
        lambda: lambda x: ((x @ drawn(D, 4096, seed=6).to(x)).relu() @ drawn(4096, D, seed=7).to(x))),
    "one dtype only": Map(lambda: linear(lambda x, y: y.tanh() + x)),
    "one dtype only, wide": Map(
        lambda: linear(lambda x, y: torch.cat([y, x, y + x], -1).relu() @ drawn(3 * D, D).to(x))),
    "large tokens": Map(lambda: lambda x: F.layer_norm(x, (D,)), place=lambda X: X + 1e3),
    "many tokens alike": Map(lambda: lambda x: scores(x).softmax(-1) @ x, place=equal),
    "zeros": Map(lambda: lambda x: mixed(x).tanh(), place=lambda X: 0 * X),
    "flat at zero": Map(
        lambda: lambda x: x**3 + total(x).square(), place=lambda X: X * torch.tensor([0.0, 1])[:, None, None]),
    "tiny": Map(lambda: lambda x: F.normalize(x, dim=-1) * 1e-6, place=lambda X: 1e-6 * X),
    "huge": Map(lambda: lambda x: F.normalize(x, dim=-1), place=lambda X: 1e6 * X),
    "a steep norm at padding": Map(
        lambda: lambda x: F.layer_norm(x, (D,), eps=1e-12) / 1e6, shape=(2, 4, D), place=padded),
    "routed": Map(lambda: routed),
    "sorted": Map(lambda: lambda x: x.sort(-1).values * torch.arange(D).to(x)),
    "largest": Map(lambda: lambda x: mixed(x).amax(-2, keepdim=True)),
    "rounded": Map(lambda: lambda x: x.round()),
    "a mask without gradient": Map(
        lambda: lambda x: torch.no_grad()(lambda y: (y > 0).to(y))(x) * x),
    "a mask made once": Map(lambda: Keeping(lazy).eval()),
    "float32 throughout": Map(lambda: lambda x: mixed(x.float()).sin().to(x), close=1e-5, said=True),
    "one number in float32": Map(
        lambda: lambda x: x.float().square().sum((-2, -1)).to(x), close=1e-5, said=True),
    # --- the batch is elsewhere, or is none ---
    "sequences first": wrong(lambda: of(attention(), attend), "LNE"),
    "sequences first, causal": wrong(lambda: of(attention(), attend_causally), "LNE"),
    "mean over the batch": wrong(lambda: lambda x: x - x.mean(0), "event_dims=3"),
    "batch turned": wrong(lambda: lambda x: x.roll(1, 0), "event_dims=3"),
    "batch lost": wrong(lambda: lambda x: x.sum(0), "event_dims=3"),
    "channels as a batch": wrong(lambda: conv(3), "event_dims=3", IMAGES),
    "more channels": wrong(lambda: conv(4), "event_dims=3", IMAGES),
    "one member into another": wrong(
        lambda: lambda x: torch.cat([x[:1] + x[2:], x[1:]]), "influence"),
    "one pair among many": wrong(
        lambda: lambda x: torch.cat([x[:-1], x[-1:] + x[3:4]]), "influence", MANY),
    "independent only in pairs": wrong(lambda: lambda x: x + x.roll(2, 0) / 9, "influence", MANY),
    "hidden mean": wrong(lambda: lambda x: x - x.mean(0).detach(), "influence"),
    "hidden mean of many": wrong(lambda: lambda x: x - x.mean(0).detach(), "influence", MANY),
    "a little influence": wrong(lambda: lambda x: x + 8e-4 * x.mean(0), "influence"),
    "hardly any influence": wrong(lambda: lambda x: x + 1e-7 * x.mean(0), "influence"),
    # --- a part is hidden from autodiff ---
    "no_grad": wrong(lambda: torch.no_grad()(mixed), "no_grad"),
    "no_grad around scores": wrong(lambda: partly_without, "no_grad"),
    "inference mode": wrong(lambda: torch.inference_mode()(mixed), "inference_mode"),
    "detached scores": wrong(lambda: lambda x: scores(x).detach().softmax(-1) @ x, "detach"),
    "detached, many members": wrong(lambda: lambda x: x + x.detach().sin(), "detach", MANY),
    "detached, a number of members": wrong(
        lambda: lambda x: scaled(x) + x.detach(), "detach", MANY),
    "detached kinks and oscillations": wrong(
        lambda: lambda x: kinks_and_oscillations(x) + kinks_and_oscillations(x.detach()), "detach"),
    "detached norm of a long input": wrong(
        lambda: lambda x: x * total(x * x).sqrt().detach(), "detach", (2, 512, 64)),
    "data": wrong(lambda: lambda x: x + x.data.sin(), "data"),
    "a number taken out": wrong(lambda: number_taken_out, "tolist"),
    "NumPy": wrong(lambda: lambda x: torch.from_numpy(2 * x.detach().numpy()), "detach"),
    "straight through": wrong(lambda: StraightThrough.apply, "round"),
    "backward that is wrong": wrong(lambda: Untransposed.apply, "backward"),
    "a little detached": wrong(lambda: lambda x: x + 9e-3 * x.detach(), "detach"),
    "less detached": wrong(lambda: lambda x: x + 9e-4 * x.detach(), "detach"),
    "hardly detached": wrong(lambda: lambda x: x + 3e-5 * x.detach(), "detach"),
    "a little detached, one dtype only": wrong(
        lambda: linear(lambda x, y: y + 9e-3 * y.detach()), "detach"),
    "detached in a small token": wrong(
        lambda: lambda x: torch.cat([x[:, :3], 1e-6 * (x[:, 3:] + x[:, 3:].detach())], 1), "detach"),
    "backward of a small token": wrong(
        lambda: lambda x: torch.cat([x[:, :3], 1e-6 * Tripled.apply(x[:, 3:])], 1), "backward"),
    "detached beside a large constant": wrong(lambda: lambda x: 1e14 + x + x.detach(), "constant"),
    "gradients scaled by a hook": wrong(lambda: hooked, "backward"),
    "one member detached": wrong(
        lambda: lambda x: x * x.norm(dim=(-2, -1), keepdim=True).clamp(min=50).detach(),
        "detach", (8, 3, D), place=loud),
    "one member's expert": wrong(lambda: expert_without_gradient, "detach", (8, 3, D), place=loud),
    "one member clamped": wrong(
        lambda: straight(lambda x: x.clamp(-20, 20)), "detach", (8, 3, D), place=loud),
    "one member's backward": wrong(
        lambda: BackwardOfLarge.apply, "backward", (8, 3, D), place=loud),
    "one member rounded": wrong(
        lambda: lambda x: torch.where(x.norm(dim=(-2, -1), keepdim=True) > 30,
            StraightThrough.apply(x), x), "round", (8, 3, D), place=loud),
    "fake quantiser": wrong(lambda: straight(lambda x: 0.05 * (x / 0.05).round())),
    "sign, straight through": wrong(lambda: straight(torch.sign)),
    "one hot": wrong(lambda: hot),
    # --- no derivative at X ---
    "|x| at 0": wrong(lambda: torch.abs, "kink", place=lambda X: 0 * X),
    "norm at 0": wrong(lambda: lambda x: x.norm(dim=-1, keepdim=True), "kink", place=padded),
    "sum of sizes at 0": wrong(lambda: lambda x: x.abs().sum((-2, -1)), "kink", place=padded),
    "largest of two equal": wrong(lambda: lambda x: x.amax(-2, keepdim=True), "kink", place=equal),
    "relu at 0": wrong(lambda: torch.relu, "kink", place=padded),
    "leaky relu at 0": wrong(lambda: F.leaky_relu, "kink", place=padded),
    "maximum of two equal": wrong(lambda: lambda x: x.max(x.roll(1, -2)), "kink", place=equal),
    "distances of equal tokens": wrong(
        lambda: lambda x: torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist"),
        place=equal),
    "one kink among many": wrong(
        lambda: lambda x: x + x.abs() / 9, "kink", (2, 40, D),
        place=lambda X: X * (torch.arange(40) != 7).to(X)[:, None]),
    "root at 0": wrong(lambda: lambda x: x.square().sum(-1, keepdim=True).sqrt(), place=padded),
    "relu at 0, in a small token": wrong(
        lambda: lambda x: torch.cat([x[:, :1], 1e-6 * x[:, 1:].relu()], 1), "kink", place=padded),
    "|x| at 0, in a small token": wrong(
        lambda: lambda x: torch.cat([x[:, :1], 1e-6 * (x + x.abs())[:, 1:]], 1), place=padded),
    # --- fewer digits than the dtype has ---
    "autocast": wrong(lambda: autocast, "bfloat16"),
    "autocast, in a module": wrong(lambda: AutocastInside().eval(), "bfloat16"),
    "half precision": wrong(lambda: lambda x: mixed(x.half()).to(x), "float16"),
    "a little half precision": wrong(lambda: lambda x: x + 0.1 * mixed(x).half().to(x), "float16"),
    "no rule": wrong(lambda: NoRule.apply, "backward"),
    "checkpoint, reentrant": wrong(
        lambda: lambda x: checkpoint(residual_in_place, x, use_reentrant=True), "use_reentrant"),
    # --- chance and state ---
    "dropout": wrong(lambda: lambda x: F.dropout(x, 0.1), "chance"),
    "dropout module": wrong(lambda: of(nn.Dropout(0.1)), r"\.eval\(\)"),
    "seed set inside": wrong(lambda: seeded, "seed"),
    "seed set, nothing drawn": wrong(lambda: lambda x: (torch.manual_seed(1), x)[1], "seed"),
    "generator of its own": wrong(shared_generator, "chance"),
    "state between calls": wrong(counting, "same output"),
    "random": wrong(lambda: lambda x: x * (1 + (random.random() < 0.95)), "chance"),
    "random of NumPy": wrong(lambda: lambda x: x * np.random.rand(), "chance"),  # noqa: NPY002
    "generator of NumPy": wrong(
        lambda: random_slope(np.random.default_rng(0).standard_normal), "chance"),
    "generator of Python": wrong(lambda: random_slope(random.Random(0).random), "same output|chance"),
    "the system's chance": wrong(lambda: random_slope(lambda: os.urandom(1)[0]), "same output"),
    "the time": wrong(lambda: random_slope(lambda: time.perf_counter_ns() % 1009), "same output"),
    "a cache that grows": wrong(lambda: Keeping(growing).eval(), "past"),
    "a cache that stays": wrong(lambda: Keeping(first_kept).eval(), "same output"),
    "a counter": wrong(lambda: Keeping(counted).eval(), "kept"),
    "every other call": wrong(lambda: Keeping(every_other).eval(), "kept"),
    "changed before it runs": wrong(
        lambda: of(Keeping(lambda m, x: x.sin()).eval(), count_before), "count"),
    "a list": wrong(lambda: appended([])),
    "buffer": wrong(lambda: of(nn.BatchNorm1d(D).eval(), counting_calls), "num_batches_tracked"),
    "batch norm in training": wrong(lambda: of(nn.BatchNorm1d(D), across), r"\.eval\(\)"),
    "mode changed inside": wrong(
        lambda: of(conv(3), lambda m, x: m(x) + 0 * bool(m.train())), "training", (3, 3, 4)),
    "training": wrong(lambda: nn.Dropout(0.5), "evaluation"),
    "method of a training module": wrong(lambda: nn.Dropout(0.5).forward, "evaluation"),
    "training inside": wrong(
        lambda: nn.Sequential(nn.Linear(D, D)).eval().append(nn.Dropout()), "evaluation"),
    # --- no map of such tensors ---
    "another dtype": wrong(lambda: of(other_dtype()), "dtype"),
    "another dtype out": wrong(lambda: lambda x: x.bfloat16(), "fn"),
    "a tuple": wrong(lambda: lambda x: (x, x), "wrap it"),
    "nested": wrong(lambda: lambda x: torch.nested.as_nested_tensor(list(x)), "pad it"),
    "wrong shape": wrong(lambda: lambda x: x @ x, "fits"),
    "not a map": wrong(lambda: 3, "callable"),
    "not finite": wrong(lambda: lambda x: x / 0, "finite"),
}  # fmt: skip
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
QUIET = pytest.mark.filterwarnings(
    "ignore:.*nested tensor.*:UserWarning", "ignore:None of the inputs", "ignore:Converting"
)


def built(name, dtype):
    """The map, with weights of this dtype that are always the same, and X."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            X = MAPS[name].place(drawn(*MAPS[name].shape, seed=4))
            return MAPS[name].make(), X.to(dtype)
    finally:
        torch.set_default_dtype(before)


def sigmas(fn, X, layout, event_dims):
    """σ of each member by plain autograd, one row of the Jacobian after the other."""
    if layout == "LNE":
        maps = [(lambda y: fn(y[:, None])[:, 0], x) for x in X.transpose(0, 1)]
    elif event_dims == X.ndim:
        maps = [(fn, X)]
    else:
        maps = [(lambda y: fn(y[None])[0], x) for x in X]
    with sdpa_kernel(SDPBackend.MATH):
        dense = [jacobian(f, x).reshape(-1, x.numel()) for f, x in maps]
    return [torch.linalg.matrix_norm(J, 2).item() for J in dense]


def state(fn):
    """The seed, and all that a call could change of the modules in a map."""
    parts = [fn, *(cell.cell_contents for cell in getattr(fn, "__closure__", None) or ())]
    modules = [m for part in parts if isinstance(part, nn.Module) for m in part.modules()]
    tensors = [x.clone() for m in modules for x in m.state_dict().values()]
    gradients = [p.grad for m in modules for p in m.parameters()]
    return torch.get_rng_state(), tensors, [m.training for m in modules], gradients


@contextlib.contextmanager
def unchanged(fn):
    before = state(fn)
    yield
    after = state(fn)
    assert torch.equal(before[0], after[0]) and before[2:] == after[2:]
    assert all(map(torch.equal, before[1], after[1]))


@QUIET
@DTYPES
@pytest.mark.parametrize("name", [name for name, one in MAPS.items() if not one.refused])
def test_ordinary_code_is_measured_rightly(name, dtype):
    case = MAPS[name]
    fn, X = built(name, dtype)
    options = {"layout": case.layout, "event_dims": case.event_dims}
    truth = sigmas(case.truth or fn, X, **options)
    is_single = dtype == torch.float32
    with unchanged(fn):
        found = local_lipschitz(fn, X, tol=1e-5 if is_single else 1e-10, **options)
    assert case.said == ("float32 inside" in found.remark)
    close = 2e-3 if is_single else case.close
    if found.probability is not None:
        rounding = 2e-3 if is_single or case.said else 1e-12  # of this truth
        for r, sigma in zip(found if found.value.ndim else [found], truth, strict=True):
            assert r.lower <= sigma * (1 + rounding) and r.upper >= sigma * (1 - rounding)
    assert found.value.reshape(-1).tolist() == pytest.approx(truth, rel=close, abs=1e-6)


@QUIET
@DTYPES
@pytest.mark.parametrize("name", [name for name, one in MAPS.items() if one.refused])
def test_code_that_misleads_autodiff_is_refused(name, dtype):
    """In one line that names the cause or the cure, and nothing is left changed."""
    fn, X = built(name, dtype)
    with unchanged(fn), pytest.raises(ERRORS, match=MAPS[name].refused) as caught:
        local_lipschitz(fn, X)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("fn")


@pytest.mark.parametrize(
    ("shape", "options"),
    [((2, 3, 4), {"event_dims": 4}), ((2, 3, 4), {"layout": "NCHW"}), ((2, 2), {"layout": "LNE"})],
)
def test_options_out_of_range(shape, options):
    with pytest.raises(ValueError, match=f"^{next(iter(options))}: "):
        local_lipschitz(torch.sin, drawn(*shape), **options)


def test_a_map_for_one_number_of_members():
    found = local_lipschitz(scaled, drawn(*MANY), tol=1e-10)
    assert found.value.tolist() == pytest.approx(list(range(1, 11)))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_called_without_gradients(context):
    """Derivatives would be zero in it, without a word."""
    X = drawn(2, 5, D)
    with context():
        found = local_lipschitz(residual_in_place, X, tol=1e-10).value
    assert found.tolist() == pytest.approx(sigmas(residual_in_place, X, "NLE", 2), rel=1e-9)


def test_outputs_that_hide_all_changes_are_said():
    """A map that is constant in float64 has σ = 1 by autodiff."""
    X = drawn(3, D)
    assert "unchecked" in local_lipschitz(lambda x: 1e17 + x + x.detach(), X).remark
    assert not local_lipschitz(torch.ones_like, X).remark


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_exported_module():
    """It says that it is in training mode, and cannot be told otherwise."""
    module, X = nn.Linear(D, D).double().eval(), drawn(3, D)
    exported = torch.export.export(module, (X,)).module()
    truth = torch.linalg.matrix_norm(module.weight.detach(), 2).item()
    assert local_lipschitz(exported, X, tol=1e-10).value.item() == pytest.approx(truth, rel=1e-9)
