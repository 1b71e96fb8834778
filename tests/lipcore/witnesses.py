"""Inputs at which the bounds of ``lipcore.bounds`` are near the truth, and formulas by the letter.

A witness holds a bound against one number: a truth that an upper bound may not be below, one that a
lower bound may not be above, or what the formula gives when it is typed again in plain arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lab import l2, rivals
from lipcore import Attention, bounds
from lipcore.adversarial import eigenvector_inputs
from lipcore.bounds import Normalisation, ball, causal, normalise, normalised

F64 = torch.float64
EYE = torch.eye(2, dtype=F64)
ONE = EYE[:1, :1]
TURN = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=F64)
SHEAR = torch.tensor([[1.0, 5.0], [0.0, 1.0]], dtype=F64)


@dataclass(frozen=True, eq=False)
class Witness:
    """``kind``: "upper" (call ≥ value), "lower" (call ≤ value), "exact" or "letter" (equal)."""

    kind: str
    name: str
    call: Callable[[], Tensor | float]
    value: float | Tensor
    family: str | None = None

    def red(self, found: Tensor) -> bool:
        if self.kind in ("exact", "letter"):
            return not bool(((found - self.value).abs() <= 1e-7 * (1 + abs(self.value))).all())
        below = self.value - found if self.kind == "upper" else found - self.value
        return not bool((below <= 2e-8 * (1 + abs(self.value))).all())

    def stronger(self, found: Tensor, before: Tensor) -> bool:
        """Whether a mutant says more than the bound does."""
        gain = found - before if self.kind == "lower" else before - found
        gain = gain.abs() if self.kind in ("exact", "letter") else gain
        least = 2e-8 if self.kind in ("upper", "lower") else 1e-7
        return bool((gain > least * (1 + before.abs())).any())

    def found(self) -> Tensor:
        return torch.as_tensor(self.call(), dtype=F64)


def tensor(*rows) -> Tensor:
    return torch.tensor(rows, dtype=F64)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def norm2(M: Tensor) -> float:
    return torch.linalg.matrix_norm(M, 2).item()


def called(name: str, place=None) -> Callable:
    """The function as it is now, which a test may have changed."""
    places = [place] if place else [bounds, causal, normalised, rivals, l2]
    return next(getattr(place, name) for place in places if hasattr(place, name))


def of(kind: str, name: str, value: float | Tensor, **sizes) -> Witness:
    """Of a bound that returns its logarithm; ``value`` is the logarithm of the other side."""
    family = sizes.get("family")
    return Witness(kind, name, lambda: called(name)(log=True, **sizes), value, family)


def plain(kind: str, name: str, value: float | Tensor, *args, place=None, **sizes) -> Witness:
    """Of a function that returns the number itself."""
    return Witness(kind, name, lambda: called(name, place)(*args, **sizes), value)


# --- two tokens on a line ------------------------------------------------------------------------


def on_a_line(truth, a: float, n: int | None) -> float:
    """log of the largest constant of two tokens t and 1, masses of any odds, for A = a, V = 1."""
    t = torch.linspace(-1, 1, 41, dtype=F64)
    odds = torch.linspace(-2, 2 * abs(a) + 4, 13, dtype=F64)
    if n is not None:
        copies = torch.unique((n * torch.sigmoid(-odds)).round().clamp(min=1, max=max(n // 2, 1)))
        odds = (n - copies).log() - copies.log()
    log_masses = torch.nn.functional.logsigmoid(torch.stack([-odds, odds], dim=-1))
    X = torch.stack([t, torch.ones_like(t)], dim=-1)
    X = X[:, None].expand(-1, len(odds), -1).reshape(-1, 2, 1)
    found = truth.of_head(a * ONE, ONE, X, log_masses.repeat(len(t), 1))
    return found.max().log().item()


def rare_leader(a: float, s: float = 3.0) -> float:
    """log of one entry of the Jacobian: Diracs ±1, A = −a, s e^{2a} tokens a leader."""
    return a + math.log(math.sqrt(s) / (1 + s) * (1 + 2 * a * s / (1 + s)))


def on_the_line(truth) -> list[Witness]:
    every = []
    for a in (-6.0, -1.0, 0.05, 0.2):
        for n in (None, 2, 10**6):
            reached = on_a_line(truth, a, n)
            sizes = {"radius": 1.0, "norm_a": abs(a), "norm_v": 1.0}
            head = {"radius": 1.0, "A": a * ONE, "norm_v": 1.0}
            own = {"radius": 1.0, "A": a * ONE, "V": ONE, "n": n}
            every.append(of("upper", "best_upper", reached, **own))
            if n is None:
                for name in ("unified_upper", "unified_upper_sharp"):
                    every.append(of("upper", name, reached, **sizes))
                every.append(of("upper", "unified_upper_rate", reached, **head))
                continue
            for name in ("unified_upper", "unified_upper_sharp", "torn_upper"):
                every.append(of("upper", name, reached, n=n, **sizes))
            every.append(of("upper", "unified_upper_rate", reached, n=n, **head))
    return every


def far_out() -> list[Witness]:
    """Sizes at which an exponent, or a power of a, is all that counts."""
    every = []
    for a in (30.0, 1e3, 1e12):
        reached = rare_leader(a) - 1e-9 * a
        sizes = {"radius": 1.0, "norm_a": a, "norm_v": 1.0}
        head = {"radius": 1.0, "A": -a * ONE, "norm_v": 1.0}
        own = {"radius": 1.0, "A": -a * ONE, "V": ONE}
        every += [of("upper", "unified_upper", reached, **sizes)]
        every += [of("upper", "unified_upper_sharp", reached, **sizes)]
        every += [of("upper", "unified_upper_rate", reached, **head)]
        every += [of("upper", "best_upper", reached, **own)]
        if a < 300:
            n = 1 + round(3 * math.exp(2 * a))
            every += [of("upper", "unified_upper", reached, n=n, **sizes)]
            every += [of("upper", "unified_upper_sharp", reached, n=n, **sizes)]
            every += [of("upper", "unified_upper_rate", reached, n=n, **head)]
            every += [of("upper", "best_upper", reached, n=n, **own)]
        # the first token −1, all others 1: the columns of token 1, an integral for n → ∞
        first = a + math.log(1 + 2 * a + 4 * a * a / 3) / 2 - 1e-9 * a
        if a < 300:
            every += [of("upper", "masked_upper", first, n=10**400, **sizes)]
        every += [of("upper", "masked_upper_moments", first, **sizes)]
        every += [of("upper", "masked_upper_rate", first, **head)]
        every += [of("upper", "best_upper", first, causal=True, **own)]
        # a crowd torn between two tokens
        torn = math.log(a / math.sqrt(2)) + math.log(10**4 - 2) / 2
        if a > 100:
            crowd = {"n": 10**4, "radius": 1.0}
            every += [of("upper", "torn_upper", torn, **{**sizes, **crowd})]
            every += [of("upper", "unified_upper_sharp", torn, **{**sizes, **crowd})]
            plane = {"A": -a * EYE, "V": EYE, **crowd}
            every += [of("upper", "best_upper", torn, causal=a > 1e6, **plane)]
    a = 1e200
    torn = math.log(a / math.sqrt(2)) + math.log(10**4 - 2) / 2
    size = {"n": 10**4, "radius": 1.0, "norm_a": a, "norm_v": 1.0}
    return [*every, of("upper", "torn_upper", torn, **size)]


# --- column sums, and the score gap --------------------------------------------------------------


def column_sums() -> list[Witness]:
    """One token at y, the others at the score gap's u: what y collects, its own vote included."""
    every = []
    for A in (EYE, -EYE):
        size, u = bounds.score_gap(A)
        y = A @ u / (A @ u).norm()
        for square in (0.1, 4.0):
            x = math.sqrt(square) * u
            y_ = math.sqrt(square) * y
            lead = ((A @ x) @ (y_ - x)).item()
            back = ((A @ y_) @ (x - y_)).item()
            for n in (2, 9, 2 + int(10 * math.exp(lead))):
                p = 1 / (1 + (n - 1) * math.exp(-lead))
                own = 1 / (1 + (n - 1) * math.exp(back))
                sizes = (n, math.log(square), size * square)
                value = math.log((n - 1) * p + own)
                every.append(plain("upper", "log_column_sum", value, *sizes, place=ball))
    return every


def largest_gap(A: Tensor, c: Tensor) -> float:
    """max ‖Ax + c‖ − (Ax + c)·x over the disc, on a grid."""
    angle = torch.linspace(0, 2 * math.pi, 1001, dtype=F64)[:, None]
    r = torch.linspace(0, 1, 101, dtype=F64)
    x = torch.stack([r * angle.cos(), r * angle.sin()], dim=-1)
    y = x @ A.mT + c
    return (y.norm(dim=-1) - (x * y).sum(-1)).max().item()


def gaps() -> list[Witness]:
    exact = [(EYE, 0.25), (-EYE, 2.0), (TURN, 1.0)]
    found = []
    for A, value in exact:
        found.append(plain("exact", "score_gap_upper", value, A))
        found.append(Witness("exact", "score_gap", lambda A=A: bounds.score_gap(A)[0], value))
    for A in (SHEAR, draw(2, 2), draw(2, 2, seed=1)):
        value = largest_gap(A, torch.zeros(2, dtype=F64))
        found.append(plain("upper", "score_gap_upper", value, A))
        lower = value * (1 + 1e-4)
        found.append(Witness("lower", "score_gap", lambda A=A: bounds.score_gap(A)[0], lower))
        for seed in (2,) if A is SHEAR else ():
            c = draw(2, seed=seed)
            value = largest_gap(A, c)
            found.append(plain("upper", "score_gap_upper", value, A, c))
    wide = torch.zeros(7, 7, dtype=F64)
    wide[0, 1] = 3.0
    found.append(plain("exact", "score_gap_upper", 9 * math.sqrt(3) / 4, wide))
    for A, value in ((torch.diag(tensor(4.0, -0.1)), 0.5), (-3 * EYE, 3.0), (TURN, 0.0)):
        found.append(Witness("exact", "eigen_gamma", lambda A=A: bounds.eigen_gamma(A)[0], value))
    return found


# --- rows ----------------------------------------------------------------------------------------


def rows() -> list[Witness]:
    """The largest over two levels, on a grid."""
    w = torch.linspace(0, 1, 20_001, dtype=F64)
    found = []
    for a in (0.1, 0.6, 3.0):
        high = 1 + 2 * a * (1 - w)
        low = 1 - 2 * a * w
        kappa = math.exp(2 * a)
        short = (w * w * high**2 + (1 - w) ** 2 * low**2).max().item()
        long = ((1 - w + w / kappa) * (w * high**2 + (1 - w) * low**2 / kappa)).max().item()
        found.append(of("exact", "torn_peak", math.log(short), a=a))
        found.append(of("exact", "two_dirac_peak", math.log(long), a=a))
        for q in (2.0, 2.7, 6.0):
            moment = (w * high**q + (1 - w) * low.abs() ** q).max().log().item() / q
            found.append(of("exact", "row_moment", moment, a=a, q=q))
        found.append(of("exact", "row_moment", math.log1p(2 * a), a=a, q=math.inf))
    return found


# --- causal attention ----------------------------------------------------------------------------


def with_a_mask() -> list[Witness]:
    still = {"radius": 1.0, "norm_a": 0.0, "norm_v": 3.0}
    hardy = math.log(3) + math.log(bounds.causal_average_norm(10**300)) - 1e-4
    none = {"A": 0 * ONE, "V": 3 * ONE, "radius": 1.0, "causal": True}
    k = (math.log(2000) + 0.5772156649015329 + 6 * math.log(2)) ** 2
    average = torch.ones(5, 5, dtype=F64).tril() / torch.arange(1, 6, dtype=F64)[:, None]
    found = [
        Witness("exact", "causal_average", lambda: bounds.causal_average(5).dense(), average),
        Witness("exact", "causal_average", lambda: bounds.causal_average(5).T.dense(), average.mT),
        of("upper", "masked_upper", hardy, n=10**300, **still),
        of("upper", "masked_upper_moments", hardy, **still),
        of("upper", "masked_upper_rate", hardy, A=0 * ONE, radius=1.0, norm_v=3.0),
        of("upper", "best_upper", hardy, **none),
        of("letter", "best_upper", math.log(3), n=1, **none),
        plain("letter", "causal_average_norm", 2 / math.sqrt(1 + 4 * math.pi**2 / k), 2000),
    ]
    return found


# --- lower bounds, at the inputs for which they are stated ---------------------------------------


def two_tokens(truth, A: Tensor, V: Tensor, pair: Tensor, n: int) -> float:
    """log of the constant where the first token comes once and the second n − 1 times."""
    log_masses = tensor([-math.log(n), math.log1p(-1 / n)])
    own = truth.of_head(A, V, pair[None], log_masses).item()
    return math.log(own)


def lower_bounds(truth) -> list[Witness]:
    found = []
    across = tensor([0.0, 1.0])
    for a in (0.2, 4.0):
        for n in (2, 9, 3000):
            sizes = {"n": n, "radius": 1.0}
            A = torch.diag(tensor(-a, 0.0))
            pair = eigenvector_inputs(A, 2, 1.0)
            for V, vu in ((EYE, 1.0), (across.flip(1), 1.0), (across, 0.0)):
                reached = two_tokens(truth, A, V, pair, n)
                found.append(of("lower", "refined_lower", reached, gamma=a, norm_vu=vu, **sizes))
                found.append(of("lower", "score_gap_lower", reached, A=A, V=V, **sizes))
                found.append(
                    of("lower", "adversarial_lower", reached, gamma=a, norm_v=1.0, **sizes)
                )
                first = torch.ones(n, 2, dtype=F64) * tensor([1.0, 0.0])
                first[0] = -first[0]
                if n <= 9:
                    reached = truth.of_head(A, V, first[None], causal=True).log().item()
                    found.append(of("lower", "masked_lower", reached, gamma=a, norm_v=1.0, **sizes))
    for n in (2, 7):  # what the last token, at the origin, does to itself
        A, V = 8 * SHEAR / norm2(SHEAR), tensor([1.0, 0.4], [0.0, 0.7])
        X = bounds.construction_inputs("own", A, n, 2.0, V=V)
        J = Attention.from_matrices(A, V).jacobian(X).dense()[-2:, -2:]
        found.append(
            of(
                "lower",
                "construction_lower",
                math.log(norm2(J)),
                family="own",
                A=A,
                V=V,
                n=n,
                radius=2.0,
            )
        )
    found.append(
        of("letter", "construction_lower", math.log(4), family="own", A=EYE, V=EYE, radius=2.0)
    )
    none = {"A": 0 * EYE, "V": SHEAR, "radius": 1.0}
    found.append(of("lower", "best_lower", math.log(norm2(SHEAR)), **none))
    return found + constructions(
        truth, 8 * SHEAR / norm2(SHEAR), tensor([1.0, 0.4], [0.0, 0.7]), 90
    )


def constructions(truth, A: Tensor, V: Tensor, n: int) -> list[Witness]:
    """What the crowd, the last tokens, is moved by: the part of the Jacobian that a proof reads."""
    head = {"A": A, "V": V, "n": n, "radius": 1.0}
    found = []
    for name in ("copies", "torn", "pulled"):
        X = bounds.construction_inputs(name, A, n, 1.0, V=V)
        tokens, counts = torch.unique_consecutive(X, dim=0, return_counts=True)

        def layer(Y, counts=counts):
            return torch.softmax(Y @ A.mT @ Y.mT + counts.log(), -1) @ Y @ V.mT

        J = truth.jacobians(layer, tokens[None])[0].unflatten(0, (len(tokens), -1))[-1]
        J = J.unflatten(1, (len(tokens), -1))  # (p, tokens, d)
        lead = A @ tokens[-1] / (A @ tokens[-1]).norm()
        moved = {
            "copies": J[:, 0],
            "torn": ((J[:, 0] - J[:, 1]) @ lead)[:, None] / math.sqrt(2),
            "pulled": (J[:, 0] @ lead)[:, None],
        }[name]
        value = math.log(norm2(moved)) + math.log(counts[-1] / counts[0]) / 2
        found.append(of("lower", "construction_lower", value, family=name, **head))
    return found


# --- layers --------------------------------------------------------------------------------------


def dense(layer: Attention, X: Tensor) -> float:
    return norm2(layer.jacobian(X).dense())


def layers() -> list[Witness]:
    """Heads without scores are averages: their bounds are joined exactly where they are in line."""
    found = []
    zero = torch.zeros(2, 3, 3, dtype=F64)
    three = torch.eye(3, dtype=F64)
    values = torch.stack([2 * three, three])
    X = torch.ones(4, 3, dtype=F64)
    outputs = (None, torch.cat([2 * three, three], dim=1), torch.cat([three, 0 * three], dim=1))
    for output in outputs:
        layer = Attention(zero, zero, values, output=output)
        reached = dense(layer, X)
        found.append(plain("upper", "best_upper", reached, attention=layer, n=4, radius=1.0))
        found.append(plain("upper", "local_upper", reached, layer, X))
        unit = Normalisation("rms", torch.ones(3), torch.zeros(3), 0.0)
        found.append(plain("upper", "normalised_upper", reached, layer, unit, n=4))
        found.append(plain("upper", "yudin2025_local_upper", reached, layer, X))
        published = math.sqrt(12) * reached
        found.append(plain("letter", "layer_upper", published, layer, n=4, radius=1.0))
    # a bias alone: every query looks at the same key
    alone = Attention(0 * ONE[None], ONE[None], ONE[None], tensor([1e3]), scale=1.0)
    leader = rare_leader(1e3) - 1e-6
    found.append(of("upper", "best_upper", leader, attention=alone, radius=1.0))
    # everyone sees the first token alone: columns sum to n
    first = torch.zeros(9, 9, dtype=torch.bool)
    first[:, 0] = True
    hidden = Attention.from_matrices(0 * EYE, 2 * EYE, mask=first)
    found.append(plain("upper", "best_upper", 6.0, attention=hidden, radius=1.0))
    # a window of three keys, or of three to each side: G(1) = 1.28125
    for has_mask, reach in ((True, 3), (False, 5)):
        near = Attention.from_matrices(-ONE, 2 * ONE, causal=has_mask, window=3)
        value = 2 * (math.sqrt(reach * 1.28125) + 1)
        found.append(plain("letter", "best_upper", value, attention=near, n=40, radius=1.0))
    found += layers_by_the_letter()
    return found


def layers_by_the_letter() -> list[Witness]:
    """One head with biases, rotary positions or a mask, and two heads, typed in plain arithmetic."""
    query, key, value = (draw(1, 2, 3, seed=seed) for seed in range(3))
    bias_q, bias_k = (draw(1, 2, seed=seed) for seed in (3, 4))
    A = key[0].mT @ query[0] / math.sqrt(2)
    offset = key[0].mT @ bias_q[0] / math.sqrt(2)
    R, n = 0.7, 6
    v = norm2(value[0])
    a = (norm2(A) * R + offset.norm().item()) * R
    turned = (norm2(query[0]) * R + bias_q.norm().item()) * (
        norm2(key[0]) * R + bias_k.norm().item()
    )
    turned /= math.sqrt(2)
    kappa = math.exp(2 * turned)
    column = n * kappa / (n + kappa - 1)
    early = min(n, 1 + kappa * math.log(1 + (n - 1) / kappa))
    row = 1 if a <= 0.5 else 0.5 + 0.5 * (a + 1 / (4 * a)) ** 2
    biased = Attention(query, key, value, bias_q, bias_k)
    on_one_line = Attention(2 * ONE[None], ONE[None], ONE[None], tensor([1.8]), scale=1.0)
    rotary = {"rotary": tensor(1.0)}
    around = Attention(query, key, value, bias_q, bias_k, **rotary)
    masked_ = Attention(query, key, value, bias_q, bias_k, causal=True, **rotary)
    weighted = Attention(query, key, value, bias_q, log_weights=draw(n))
    both = Attention(query, key, value, bias_q, bias_k, log_weights=draw(n), **rotary)
    hardy = 2 * (1 + 2 * turned) * math.exp(turned)
    sizes = {"n": n, "radius": R}
    return [
        plain("upper", "local_upper", dense(around, draw(n, 3)), around, draw(n, 3)),
        plain("exact", "score_reach", tensor(1.4), on_one_line, radius=0.5),  # (2·0.5 + 1.8)·0.5
        plain("letter", "score_reach", a, biased, radius=R),
        plain("letter", "score_reach", turned, around, radius=R),
        plain("letter", "layer_upper", v * general(n, a), biased, **sizes),
        plain(
            "letter",
            "best_upper",
            v * ((1 + turned) * math.sqrt(column) + turned),
            attention=around,
            **sizes,
        ),
        plain(
            "letter",
            "best_upper",
            v * (min(hardy, (1 + turned) * math.sqrt(early)) + turned),
            attention=masked_,
            **sizes,
        ),
        plain("letter", "best_upper", v * (hardy + turned), attention=masked_, radius=R),
        plain("letter", "best_upper", v * (math.sqrt(n * row) + a), attention=weighted, radius=R),
        plain(
            "letter",
            "best_upper",
            v * ((1 + turned) * math.sqrt(n) + turned),
            attention=both,
            radius=R,
        ),
    ]


# --- the published bound, and others' -------------------------------------------------------------


def general(n: int, a: float) -> float:
    return math.sqrt(3 * (a * a * (4 * n + 1) + n))


def by_the_letter() -> list[Witness]:
    found = []
    v = 1.7
    for a, n in ((0.3, 1), (0.7, 5), (3.0, 40)):
        sizes = {"radius": 2.0, "norm_a": a / 4, "norm_v": v}
        kappa = math.exp(2 * a)
        root = math.sqrt(1 + a * a)
        column = n * kappa / (n + kappa - 1)
        hardy = 2 * (1 + 2 * a) * math.exp(a)
        cubes = (2 * a + 1) * math.e * math.exp(2 * a)  # A = −a/4 on a line: g* = 2a
        forms = {
            "general_upper": (v * general(n, a), {"n": n}),
            "unified_upper": (v * (root * math.sqrt(column) + a), {"n": n}),
            "mean_field_upper_paper": (v * (1 + 3 * a) * math.exp(2 * a), {}),
            "unified_upper, every n": (v * (root * math.exp(a) + a), {}),
            "masked_upper": (v * (min((1 + a) * math.sqrt(n), hardy) + a), {"n": n}),
            "emadi2026_token_upper": (v * (1 + 2 * a * 0.3), {"theta": 0.3}),
        }
        for name, (value, more) in forms.items():
            name = name.partition(",")[0]
            found.append(of("letter", name, math.log(value), **sizes, **more))
        S = min(kappa, kappa / (n + kappa - 1) + (n - 1) * kappa / (n - 1 + kappa), n)
        for name, column, more in (
            ("unified_upper_rate", S, {"n": n}),
            ("unified_upper_rate", kappa, {}),
        ):
            value = math.log(v * (root * math.sqrt(column) + a))
            head = {"A": -a / 4 * ONE, "radius": 2.0, "norm_v": v}
            found.append(of("letter", name, value, **head, **more))
        sum_of_squares = sum((1 + i * math.exp(-2 * a)) ** -2 for i in range(1, 3000))
        lower = {"n": 3000, "radius": 2.0, "gamma": a / 4, "norm_v": v}
        found.append(of("letter", "masked_lower", math.log(v * math.sqrt(sum_of_squares)), **lower))
        rate = v * (min(hardy, 2 * (1 + 2 * a) * math.sqrt(cubes)) + a)
        head = {"A": -a / 4 * ONE, "radius": 2.0, "norm_v": v}
        found.append(of("letter", "masked_upper_rate", math.log(rate), **head))
    a, n = 1.4, 9
    w = torch.linspace(0, 1, 4001, dtype=F64)
    G = (w**2 * (1 + 2 * a * (1 - w)) ** 2 + (1 - w) ** 2 * (1 - 2 * a * w) ** 2).max().item()
    p = torch.linspace(1.02, 1.8, 160, dtype=F64)[:, None]
    q = p / (p - 1)
    moments = (w * (1 + 2 * a * (1 - w)) ** q + (1 - w) * (1 - 2 * a * w).abs() ** q).amax(-1)
    factor = ((2 / (2 - p[:, 0])) ** (1 / p[:, 0]) * moments ** (1 / q[:, 0])).min().item()
    size = {"radius": 1.0, "norm_a": a, "norm_v": v}
    value = math.log(v * (factor * math.exp(a) + a))
    found.append(
        Witness(
            "letter",
            "masked_upper_moments",
            lambda: round(bounds.masked_upper_moments(log=True, **size), 4),
            round(value, 4),
        )
    )
    found.append(of("letter", "torn_upper", math.log(v * (math.sqrt(n * G) + a)), n=n, **size))
    found.append(
        of("letter", "unified_upper_sharp", math.log(v * (math.sqrt(n * G) + a)), n=n, **size)
    )
    # row by row: G as long as i ≤ κF/G, then κF/i
    kappa = math.exp(2 * a)
    rare = w * (1 + 2 * a * (1 - w)) ** 2 + (1 - w) * (1 - 2 * a * w) ** 2 / kappa
    F = ((1 - w + w / kappa) * rare).max().item()
    for n in (9, 60, 10**4):
        by_rows = n * G
        if kappa * F < n * G:
            by_rows = min(by_rows, kappa * F * (1 + math.log(n * G / kappa / F)) + G)
        by_columns = (1 + a * a) * min(n, 1 + kappa * math.log(1 + (n - 1) / kappa))
        value = math.log(min(by_rows, by_columns)) / 2
        found.append(plain("letter", "log_masked_rows", value, n, math.log(a), place=causal))
    # causal heads whose gap is far below 2a: cells of the best size, a = 400 on a line
    a = 400.0
    t = torch.linspace(0.1, 4, 40_001, dtype=F64)
    cells = ((2 * a / t + 1).log() + t).min().item() + a / 4
    factor = bounds.masked_upper_moments(radius=1.0, norm_a=a, norm_v=1.0, log=True) - a
    causal_head = {"A": a * ONE, "V": ONE, "radius": 1.0, "causal": True}
    found.append(of("letter", "best_upper", factor + cells / 2, **causal_head))
    # what V sees across: nothing on a line, little of a head with a V that sees its strong side
    x = torch.linspace(0, 2, 200_001, dtype=F64)
    M = (x / (2 + 2 * x.cosh())).max().item()
    value = math.log(math.sqrt(2) * (1 + math.sqrt(2) * M + 0.3 / math.sqrt(2)))
    found.append(plain("letter", "log_seen", value, 2, math.log(0.3), place=ball))
    n = 50
    M = ((x + math.log(n - 1)) / (2 + 2 * x.cosh())).max().item()
    for across, A, V in (
        (0.0, 1e3 * ONE, ONE),
        (math.hypot(10, 100), torch.diag(tensor(1e3, 10.0)), torch.diag(tensor(1.0, 0.1))),
    ):
        value = math.sqrt(n) * (1 + math.sqrt(2) * M + across / math.sqrt(2)) + 1e3
        found.append(plain("letter", "best_upper", value, A=A, V=V, n=n, radius=1.0))
    # a query's bias: max (ax + c)(1 − x) = (a + c)²/4a
    biased = Attention(8 * ONE[None], ONE[None], ONE[None], tensor([1.0]), scale=1.0)
    value = math.sqrt(1 + 81) * math.exp(81 / 64) + 9
    found.append(plain("letter", "best_upper", value, attention=biased, radius=1.0))
    for n, x in ((2, 0.3), (40, 3.0)):
        column = math.exp(2 * x) / (n + math.exp(2 * x) - 1) + (n - 1) * math.exp(x) / (
            n - 1 + math.exp(x)
        )
        found.append(
            plain(
                "letter",
                "log_column_sum",
                math.log(min(column, math.exp(x))),
                n,
                math.log(x),
                x,
                place=ball,
            )
        )
    # more dimensions, g* = 250: cubes in two, Voronoi cells in six
    for d, side in ((2, 2e3 * math.sqrt(2)), (6, 4e3)):
        flat = {"A": 1e3 * torch.eye(d, dtype=F64), "radius": 1.0, "norm_v": v}
        rate = math.log(v * 2 * 2001) + (d * math.log(side + 1) + 251) / 2
        found.append(of("letter", "masked_upper_rate", rate, **flat))
    axes = tensor(5.0, 0.7, 0.1)
    c = torch.linspace(-30, 6, 145, dtype=F64).exp()[:, None]
    cells = ((1 + c) * (4 * axes / 1.3) ** 2 + 1 + 1 / c).prod(-1).min().sqrt().log()
    within = (axes.log(), math.log(1.3))
    found.append(plain("letter", "log_voronoi", cells, *within, place=causal))
    cubes = (1 + 2 * axes * math.sqrt(3) / 1.3).prod().log()
    return [*found, plain("letter", "log_cubes", cubes, *within, place=causal)]


def squared_distances(truth) -> list[Witness]:
    found = []
    for n, k in ((1, 2), (5, 4), (50, 4), (200, 1), (10**6, 1)):
        c = 0.0 if n == 1 else math.log(n)
        for _ in range(60 if n > 1 else 0):  # c e^{c+1} = n − 1, by Newton's method
            c -= (c * math.exp(c + 1) - n + 1) / ((c + 1) * math.exp(c + 1))
        columns = (3 + math.sqrt(2 * math.pi * k)) ** k
        mixing = min(n**0.5, n**0.5 / 2 + 5 / 4) ** 0.5
        ours = min(
            mixing + 2**0.75 * math.sqrt(c) * n**0.25 + 2 * c,
            math.sqrt(math.e * columns) + 2 * c + 2 * math.sqrt(2 * c * columns),
        )
        size = {"n": n, "head_dim": k, "norms_q": [2.0, 1.0], "norms_v": [3.0, 0.5], "norm_o": 1.5}
        heads = 1.5 * math.sqrt((16 * 9 + 0.25) / k)
        theirs = heads * math.sqrt(n) * (4 * c + 1)
        restated = 1.5 * math.sqrt((4 * 9 + 0.25) / k) * math.sqrt(n) * (4 * c + 1)
        found.append(of("letter", "l2_attention_upper", math.log(ours * heads), **size))
        found.append(of("letter", "kim2021_l2_upper", math.log(theirs), **size))
        found.append(of("letter", "kim2021_l2_upper_restated", math.log(restated), **size))
    # one token: the map is V A
    one = {"n": 1, "head_dim": 4, "norms_q": [5.0], "norms_v": [3.0]}
    for name in ("l2_attention_upper", "kim2021_l2_upper"):
        found.append(of("upper", name, math.log(25 * 3 / 2), **one))
    return found


def softmax() -> list[Witness]:
    half = tensor([0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.6, 0.4, 0.0, 0.0])
    norms = torch.linalg.matrix_norm(torch.diag_embed(half) - half[:, :, None] * half[:, None], 2)
    p = torch.softmax(draw(20, 5), dim=-1)
    signs = 1.0 - 2 * (torch.arange(32)[:, None] >> torch.arange(5) & 1).double()
    M = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    found = [
        plain("upper", "softmax_norm_upper", norms, half),
        plain("letter", "softmax_norm_upper", tensor(0.5 * 0.8), tensor([0.5, 0.3, 0.2])),
        plain("exact", "emadi2026_softmax_norm", (M @ signs.mT).abs().sum(1).amax(-1), p),
        plain("exact", "emadi2026_softmax_norm", tensor(0.36, 1.0), long_rows()),
    ]
    X = draw(3, 2)
    layer = Attention.from_matrices(SHEAR, 2 * EYE)
    P = layer.weights(X)[0]
    high = P.sort(dim=-1, descending=True).values
    peak = (high[:, 0] * (1 - high[:, 0] + high[:, 1])).max().item()
    theirs = 2 * (norm2(P) + 2 * norm2(X) ** 2 * norm2(SHEAR) * peak)
    found.append(plain("letter", "yudin2025_local_upper", theirs, layer, X))
    reach = (X @ SHEAR.mT).norm(dim=-1).max().item()
    wide = (X[:, None] - X).norm(dim=-1).max().item()
    released = 2 * math.sqrt(4 * (reach * wide) ** 2 + 3)
    found.append(plain("letter", "castin2024_released_compute_bound", released, layer, X))
    return found


def long_rows() -> Tensor:
    p = torch.full((2, 40), 0.1 / 39, dtype=F64)
    p[0, 0] = 0.9
    p[1] = 1 / 40
    return p


# --- large radius --------------------------------------------------------------------------------


def large_radius(truth) -> list[Witness]:
    found = []
    tied = tensor([1.0, 0.0], [1.0, 0.4], [-0.5, 1.0], [1.0, -0.7])
    tying = tensor([2.0, 0.0], [0.4, -1.0])  # the second token looks at both of the greatest x
    for X, A in ((draw(4, 2), SHEAR), (tied, tying)):
        law = bounds.large_radius(X, A, EYE)
        t = math.sqrt(40 / law.gap.item())
        J = truth.jacobians(lambda X, A=A: torch.softmax(X @ A.mT @ X.mT, -1) @ X, t * X[None])[0]

        def at(X=X, A=A, t=t):
            return bounds.large_radius(X, A, EYE).at(t)

        found.append(Witness("exact", "large_radius", at, J))
    three = tensor([-1.0], [0.5], [2.0])  # the second and the third look at the third
    found.append(
        Witness(
            "exact", "large_radius", lambda: bounds.large_radius(three, ONE, ONE).most_attended, 2.0
        )
    )
    pair = tensor([2.0], [-2.0])
    for t2 in (0.05, 0.4, 14.0 / 16):
        t = math.sqrt(t2)
        J = truth.jacobians(lambda X: torch.softmax(2 * X @ X.mT, -1) @ X, t * pair[None])[0]
        law = bounds.large_radius(pair, 2 * ONE, ONE)
        size = {"n": 2, "gap": law.gap.item(), "radius": 2.0, "norm_a": 2.0, "norm_v": 1.0}
        found.append(plain("upper", "large_radius_error", norm2(J - law.at(t)), t=t, **size))
    n, t, gap_, a = 5, 1.3, 0.9, 0.6
    for ties, constant in ((False, 4 + 2 * math.sqrt(2 * n)), (True, 5 + 2 * math.sqrt(5 * n))):
        value = 3 * 4 * math.exp(-t * t * gap_) * (math.sqrt(2 * n) + a * t * t * constant)
        size = {"gap": gap_, "radius": 1.0, "norm_a": a, "norm_v": 3.0, "ties": ties}
        found.append(plain("letter", "large_radius_error", value, n=n, t=t, **size))
    found.append(plain("exact", "large_radius_error", 0.0, n=1, t=t, **size))
    return found


# --- the local form, and normalised tokens -------------------------------------------------------


def local(truth) -> list[Witness]:
    found = []
    for A, n in ((-8 * EYE, 30), (3 * EYE, 3), (-0.05 * EYE, 2), (-3 * EYE, 400)):
        X = torch.ones(n, 2, dtype=F64) * tensor([1.0, 0.0])
        X[0] = -X[0]
        layer = Attention.from_matrices(A, EYE)
        reached = truth.of_head(A, EYE, X[None]).item() if n < 100 else 0.0
        if n >= 100:
            masses = tensor([-math.log(n), math.log1p(-1 / n)])
            reached = truth.of_head(A, EYE, X[None, :2], masses).item()
        found.append(plain("upper", "local_upper", reached, layer, X))
    A, V, X, c = draw(3, 3), draw(2, 3, seed=1), draw(5, 3, seed=2), draw(3, seed=3)
    layer = Attention(A[None], torch.eye(3, dtype=F64)[None], V[None], c[None], scale=1.0)
    P = layer.weights(X)[0]
    centred = X - (P @ X)[:, None]  # x_j − m_i
    C = torch.einsum("ij,ijr,ijs->irs", P, centred, centred)
    y = X @ A.mT + c
    seen = torch.einsum("ij,ir,is->jrs", P, y, y)
    own, spread, keys = (
        torch.linalg.matrix_norm(M, 2).max().item() for M in (V @ C @ A, V @ C @ V.mT, seen)
    )
    mixing = norm2(V) * bounds.nonnegative_norm_upper(P).item()
    terms = tensor([mixing, own, math.sqrt(spread * keys)])
    found.append(Witness("letter", "local_terms", lambda: bounds.local_terms(layer, X), terms))
    found.append(plain("letter", "local_upper", terms.sum().item(), layer, X))
    found.append(plain("exact", "nonnegative_norm_upper", norm2(P), P, iterations=200))
    found.append(plain("upper", "nonnegative_norm_upper", norm2(P), P))
    return found


def behind_a_norm(truth) -> list[Witness]:
    found = []
    X = draw(4, 3)
    G, b = draw(3, seed=3), 0.4 * draw(3, seed=4)
    for kind in ("layer", "rms"):
        norm = Normalisation(kind, G, b if kind == "layer" else 0 * b, 0.01)
        centred = X - X.mean(-1, keepdim=True) if kind == "layer" else X
        scale = (centred.square().mean(-1, keepdim=True) + 0.01).rsqrt()
        found.append(plain("exact", "normalise", G * centred * scale + norm.bias, norm, X))
        A, V, c = 0.3 * draw(3, 3), draw(3, 3, seed=1), 0.2 * draw(3, seed=2)
        layer = Attention(A[None], torch.eye(3, dtype=F64)[None], V[None], c[None], scale=1.0)

        def block(Z, norm=norm, layer=layer):
            return Z + layer(normalise(norm, Z))

        def alone(Z, norm=norm):
            return normalise(norm, Z)

        def jacobian(norm=norm, layer=layer):
            return bounds.pre_norm_jacobian(norm, X, layer, residual=True)

        J = truth.jacobians(block, X[None])[0]
        found.append(Witness("exact", "pre_norm_jacobian", lambda j=jacobian: j().dense(), J))
        found.append(Witness("exact", "pre_norm_jacobian", lambda j=jacobian: j().T.dense(), J.mT))
        each = torch.stack([truth.of_map(alone, x[None, None])[0] for x in X])
        found.append(plain("upper", "norm_constants", each * (1 - 1e-5), norm, X))
        found += ellipsoid(norm, A, V, c, layer)
    found.append(
        plain("exact", "layer_norm_radius", 7.0, gain=torch.ones(4), bias=tensor(0, 0, 3, 4))
    )
    M, e = draw(2, 2), draw(2, seed=1)
    angle = torch.linspace(0, 2 * math.pi, 100_001, dtype=F64)
    z = 3 * torch.stack([angle.cos(), angle.sin()], dim=-1)
    found.append(
        plain("exact", "largest_affine_norm", (z @ M.mT + e).norm(dim=-1).max(), M, e, 3.0)
    )
    return found


def ellipsoid(norm: Normalisation, A: Tensor, V: Tensor, c: Tensor, layer) -> list[Witness]:
    """The reach of its tokens by sampling, and the bound by the letter from that reach."""
    d, n = 3, 7
    Pi = torch.eye(d, dtype=F64) - (1 / d if norm.kind == "layer" else 0)
    G = torch.diag(norm.gain)
    z = draw(10_000, d, seed=5) @ Pi
    x = math.sqrt(d) * z / z.norm(dim=-1, keepdim=True) @ G + norm.bias
    y = x @ A.mT + c
    alpha = math.sqrt(d) * (y @ G @ Pi).norm(dim=-1).max().item()
    query = y.norm(dim=-1).max().item()

    def reach():
        found = bounds.normalised_reach(layer, norm)
        return torch.cat([found.spread, found.query])

    found = [Witness("upper", "normalised_reach", reach, tensor(alpha, query))]
    leads = y @ x[::50].mT - (y * x).sum(-1, keepdim=True)
    S = math.exp(ball.log_column_sum(n, math.log(alpha), leads.max().item()))
    own, spread, value = (norm2(M) for M in (Pi @ G @ A, V @ G @ Pi, V))
    keys = math.sqrt(d) * query * math.sqrt(S)
    expected = value * math.sqrt(S) + spread * (d * own + keys)
    return [*found, plain("upper", "normalised_upper", expected, layer, norm, n=n)]


def all_witnesses(truth) -> list[Witness]:
    return [
        *on_the_line(truth),
        *far_out(),
        *column_sums(),
        *gaps(),
        *rows(),
        *with_a_mask(),
        *lower_bounds(truth),
        *layers(),
        *by_the_letter(),
        *squared_distances(truth),
        *softmax(),
        *large_radius(truth),
        *local(truth),
        *behind_a_norm(truth),
    ]
