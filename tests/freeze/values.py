"""The numbers of the public interface at random heads, at the layers of the tests, and in models.

They are stored in ``stored.npz``, so that a rewriting that shall change no number can be compared
with them. Functions are called by the names that they had when the values were stored;
``names.toml`` says what they are called today. This command stores the values of today:

    PYTHONPATH=. .venv/bin/python tests/freeze/values.py --save

A stored value may only change with an explanation, in the message of the commit that stores it.

A new way to add up the same sums changes numbers by rounding. How much that may be is measured: all
values are computed a second time with random numbers that are one unit in the last place off, and
each may change by thirty times what this changes, or by :data:`FLOORS`, whichever is more. What
changes by more than a millionth (a direction where several are equally good) is not compared.
"""

from __future__ import annotations

import importlib
import math
import sys
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "lipcore"))

import conftest  # noqa: E402
from tiny_models import inputs_of, tiny_model  # noqa: E402

STORED = HERE / "stored.npz"
NAMES = tomllib.loads((HERE / "names.toml").read_text())
HEADS = 500
F64 = torch.float64
KINDS = ("any", "symmetric", "positive", "negative", "antisymmetric", "nilpotent", "rank one", "-I")
LENGTHS = (1, 2, 3, 7, 40, 3000, 10**9, 10**30)
MODELS = ("llama", "t5")
#: Relative differences that are always allowed: closed forms, what is iterated, float32, and what
#: is read off singular vectors in float32. A value far from 1 was computed as a logarithm, which
#: multiplies its error.
FLOORS = {"bounds": 1e-13, "other": 1e-12, "float32": 1e-6, "vectors": 1e-4}

#: What is called for one head of so many: functions, their arguments (``A`` is positional, ``n=``
#: a keyword), and which attributes of a result are stored. A comma sets apart calls of one name.
TABLE = """
1  bounds general_upper unified_upper unified_upper_sharp torn_upper masked_upper: n= radius= norm_a= norm_v= log=
1  bounds mean_field_upper mean_field_upper_paper mean_field_upper_sharp: radius= norm_a= norm_v= log=
13 bounds masked_upper_moments: radius= norm_a= norm_v= log=
7  bounds unified_upper_rate: n= radius= A= norm_v= log=
7  bounds mean_field_upper_rate masked_upper_rate: radius= A= norm_v= log=
1  bounds emadi2026_token_upper: radius= norm_a= norm_v= theta=share log=
1  bounds adversarial_lower masked_lower: n= radius= gamma=share norm_v= log=
1  bounds refined_lower: n= radius= gamma=share norm_vu=norm_v log=
7  bounds score_gap_lower own_lower: n= radius= A= V= log=
11 bounds copies_lower torn_lower pulled_lower best_upper: n= radius= A= V= log=
17 bounds copies_lower,any-n torn_lower,any-n pulled_lower,any-n own_lower,any-n: radius= A= V= log=
7  bounds best_upper,any-n: radius= A= V= log= causal=
7  bounds best_upper,mask: n= radius= A= V= log= causal=
23 bounds best_lower: n= radius= A= V= log=
7  bounds own_inputs copies_inputs torn_inputs pulled_inputs: A short radius V=
3  bounds score_gap_upper score_gap eigen_gamma: A
23 bounds score_gap_upper,offset: A c
1  bounds large_radius_error: n= t=norm_v gap=share radius= norm_a= norm_v= ties=causal
7  bounds large_radius: X A V causal= -> LargeRadius weights mixing second_order gap ties most_attended
1  bounds causal_average_norm: n
1  bounds l2_attention_upper kim2021_l2_upper kim2021_l2_upper_restated: n= head_dim=d norms_q= norms_v= norm_o=share log=
1  bounds torn_peak two_dirac_peak: a log=
3  bounds row_moment: a q log=
7  bounds local_upper local_terms yudin2025_local_upper castin2024_released_compute_bound: layer X
7  bounds rounding_upper: layer X half
37 bounds change_upper change_upper,normalised tangent_error_upper: layer X reach norm=how normalisation=
3  bounds layer_upper: layer n= radius= log=
1  bounds score_reach: layer radius=
3  bounds nonnegative_norm_upper: P
3  bounds softmax_norm_upper emadi2026_softmax_norm: p
1  bounds layer_norm_radius: gain= bias=
29 bounds largest_affine_norm: A c radius
1  bounds normalise: norm X
13 bounds norm_constants: norm X
47 bounds normalised_reach: layer norm -> NormalisedReach radius spread query
31 bounds normalised_upper: layer norm n=
13 bounds PreNormJacobian: norm X layer -> PreNormJacobian dense
1  bounds CausalAverage: d -> CausalAverage dense
23 adversarial worst_case_inputs: A short radius causal=
3  adversarial eigenvector_inputs score_gap_inputs: A short radius
13 adversarial shared_key_inputs: layer short radius -> SharedKey lead lower
41 adversarial ascend: layer X twice steps= restarts= progress= -> Ascent value history
41 adversarial star_inputs: short,q dimension=d shifted=causal
7  measures TwoDirac: share radius norm_a sign -> TwoDirac other_weight own_weight images derivative constant own_query
31 measures wasserstein: mu nu p_norm
17 measures transport_plan: mu nu p_norm
17 measures conditional_wasserstein: timed late p_norm
7  measures mean_field_attention: mu A V -> DiscreteMeasure points
7  measures masked_mean_field_attention: timed A V -> TimedMeasure points
7  measures gamma_map gamma_derivative: mu X A V
7  measures gamma_map,timed gamma_derivative,timed: timed X A V times=
23 measures local_constant splitting_gain: mu A V
23 measures local_constant,timed splitting_gain,timed: timed A V
3  measures dense_local_constant dense_splitting_gain: X w A V times=
"""  # noqa: E501
#: The same for each layer of the tests, with its tokens X and n = 5 or so.
LAYER_TABLE = """
1 bounds best_upper,layers: attention=layer n= radius=
1 bounds layer_upper,layers: layer n= radius=
1 bounds score_reach,layers: layer radius=
1 bounds local_upper,layers local_terms,layers yudin2025_local_upper,layers: layer X
1 bounds rounding_upper,layers: layer X half
3 bounds change_upper,layers tangent_error_upper,layers: layer X reach norm=how
"""
#: Options of σ, and which of its numbers are stored.
SIGMAS = {
    "": ({}, "value upper iterations converged by_term by_head by_token"),
    ", tight": ({"tol": 1e-12}, "value upper by_term by_head by_token"),
    ", token": ({"norm": "token"}, "value upper"),
    ", last": ({"tokens": -1}, "value upper"),
    ", power": ({"method": "power"}, "value upper"),
}


class RemovedError(Exception):
    """A name that is gone, as names.toml says."""


def call(old: str, *args, **kwargs):
    """Call what was once named ``old``, with the arguments that it had then."""
    entry = NAMES.get(old, {})
    new = entry.get("new", old)
    if not new:
        raise RemovedError(old)
    parts = new.split(".")
    found = importlib.import_module(parts[0])
    for i, name in enumerate(parts[1:], 2):
        if not hasattr(found, name):
            importlib.import_module(".".join(parts[:i]))
        found = getattr(found, name)
    if "call" in entry:
        return eval(entry["call"], {"new": found, "args": args, "torch": torch} | kwargs)
    renamed = {name: entry.get("arguments", {}).get(name, name) for name in kwargs}
    return found(*args, **{renamed[name]: x for name, x in kwargs.items() if renamed[name]})


def attribute(owner, old: str):
    """Return an attribute, or what a method returns, that was once named "Class.attribute"."""
    new = NAMES.get(old, {}).get("new", old)
    if not new:
        raise RemovedError(old)
    found = getattr(owner, new.rsplit(".", 1)[1])
    return found() if callable(found) else found


def numbers(found) -> list[float]:
    """Return a result as few numbers: of a large tensor its norm and a sum with fixed weights."""
    if isinstance(found, tuple | list):
        return [x for item in found for x in numbers(item)]
    if not isinstance(found, torch.Tensor):
        return [math.nan if found is None else float(found)]
    flat = found.detach().to(F64).flatten()
    if len(flat) <= 6:
        return flat.tolist()
    weights = torch.arange(1.0, len(flat) + 1, dtype=F64).cos()
    return [flat.norm().item(), (flat * weights).sum().item()]


def heads() -> list[SimpleNamespace]:
    """Random heads of every kind and size, each with all arguments that functions of heads take."""
    generator = torch.Generator().manual_seed(20)
    found = []

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=F64)

    def power(low, high):
        return 10 ** (low + (high - low) * torch.rand((), generator=generator, dtype=F64).item())

    for i in range(HEADS):
        d = 1 + i % 5
        M = draw(d, d)
        A = {
            "any": M,
            "symmetric": M + M.mT,
            "positive": M @ M.mT,
            "negative": -M @ M.mT,
            "antisymmetric": M - M.mT,
            "nilpotent": M.triu(1),
            "rank one": M[:1].mT @ draw(1, d),
            "-I": -torch.eye(d, dtype=F64),
        }[KINDS[i // 5 % len(KINDS)]]
        h = SimpleNamespace(d=d, causal=i % 4 == 3, log=i % 3 == 1, sign=(-1, 1)[i % 2])
        h.n = LENGTHS[i // 2 % len(LENGTHS)]
        h.norm_a, h.norm_v = power(-2, 2), power(-1, 1)
        h.radius, h.share = power(-1.5, 0.8), power(-3, -0.1)
        size = torch.linalg.matrix_norm(A, 2).item()
        h.norm_a = h.norm_a if size > 0 else 0.0
        h.A = A * (h.norm_a / size if size > 0 else 0.0)
        h.V = h.norm_v * (draw((d, d, 1, 3, 7)[i % 7 % 5], d) if i % 3 else torch.eye(d, dtype=F64))
        h.norms_q, h.norms_v = [h.norm_a, h.share], [h.norm_v, 1.0]
        h.a, h.q, h.p_norm = h.norm_a * h.radius**2, 2 + h.norm_v, 1 + i % 3
        X = draw(2 + i % 6, d)
        h.X = h.radius * X / X.norm(dim=-1).amax()
        h.p = torch.softmax(3 * draw(2 + i % 20), -1)
        h.P = torch.outer(h.p, h.p.flip(0)) + h.p
        h.gain, h.bias, h.c = 0.3 + draw(d).abs(), draw(d) * (i % 2), draw(d)
        h.norm = call("lipcore.bounds.Normalisation", ("rms", "layer")[i % 2], h.gain, h.bias, 1e-5)
        h.layer = call("lipcore.Attention.from_matrices", h.A, h.V, causal=h.causal)
        h.half, h.how, h.short = torch.bfloat16, ("frobenius", "token")[i % 2], min(max(h.n, 3), 40)
        h.reach, h.twice = h.share * h.radius, 2 * h.radius
        h.steps, h.restarts, h.progress = 3, 2, False
        n = len(X)
        h.w = torch.softmax(draw(n), -1)
        h.times = torch.arange(n, dtype=F64).mul(2).div(n).round().div(2)
        h.mu = call("lipcore.measures.DiscreteMeasure", h.X, h.w)
        h.nu = call("lipcore.measures.DiscreteMeasure", h.X + h.c, h.w.flip(0))
        h.timed, h.late = (
            call("lipcore.measures.TimedMeasure", h.times, Y, h.w) for Y in (h.X, 2 * h.X + h.c)
        )
        found.append(h)
    return found


def of(h: SimpleNamespace, number: int, table: str):
    """Yield the names of a table and what calls them, for a head or a layer with its arguments."""
    for line in table.strip().splitlines():
        call_of, _, kept = line.partition(" -> ")
        functions, _, wanted = call_of.partition(": ")
        every, home, *functions = functions.split()
        if number % int(every):
            continue
        owner, *attributes = kept.split() or [None]
        for name in functions:
            args, kwargs = [], {}
            for word in wanted.split():
                key, is_keyword, source = word.partition("=")
                if key == "normalisation":
                    kwargs |= {key: h.norm} if name.endswith(",normalised") else {}
                elif is_keyword:
                    kwargs[key] = getattr(h, source or key)
                else:
                    args.append(5 if key == "short,q" else getattr(h, key))
            old = f"lipcore.{home}.{name.partition(',')[0]}"

            def form(old=old, args=args, kwargs=kwargs, owner=owner, attributes=attributes):
                found = call(old, *args, **kwargs)
                if attributes:
                    return [attribute(found, f"{owner}.{x}") for x in attributes]
                if old.endswith("_inputs"):
                    return found @ found.mT  # the same for X and −X
                return found[0] if isinstance(found, tuple) else found

            yield f"lipcore.{home}.{name}", form


def of_layer(case, dtype: torch.dtype, number: int):
    """Yield names and what calls them, for one layer of the tests in one precision."""
    layer, X = case.attention.to(dtype), case.X.to(dtype)
    suffix = "" if dtype == F64 else " float32"

    def outputs():
        return [layer(X), layer.weights(X), layer.jacobian(X).matvec(X)]

    yield f"lipcore.Attention{suffix}", outputs
    for label, (options, wanted) in SIGMAS.items():
        if label and (dtype != F64 or ("tight" not in label and number % 3)):
            continue
        measured = []  # once, when the first of its numbers is asked for

        def one(name, options=options, measured=measured):
            if not measured:
                measured.append(call("lipcore.local_lipschitz", layer, X, **options))
            return attribute(measured[0], f"SpectralNorm.{name}")

        for name in wanted.split():
            yield f"lipcore.local_lipschitz{label}: {name}{suffix}", partial(one, name)
    if dtype == F64:
        more = {"n": X.shape[-2], "radius": 0.7, "half": torch.float16, "reach": 0.05}
        yield from of(SimpleNamespace(layer=layer, X=X, how="token", **more), number, LAYER_TABLE)


def of_model(family: str):
    """Yield names and what calls them, for one tiny model."""

    def table(scope):
        options = {"scope": scope, "progress": False} | inputs_of(family)
        found = call("lipcore.measure", tiny_model(family), **options)
        return [list(found[column]) for column in ("sigma", "lower", "upper", "converged")]

    def captured():
        model = tiny_model(family)
        names = [name for name, _ in model.named_modules()]
        name = next(x for x in names if x.lower().endswith(("attention", "attn", "self")))
        fn, X = call("lipcore.capture", model, name, **inputs_of(family))
        return [fn(X), attribute(call("lipcore.local_lipschitz", fn, X), "SpectralNorm.value")]

    for scope in ("attention", "block", "model"):
        yield f"lipcore.measure, {scope}", lambda scope=scope: table(scope)
    yield "lipcore.capture", captured


def of_module():
    """Yield what calls the reading of PyTorch's own module, and the rows of one layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = torch.nn.MultiheadAttention(8, 2, batch_first=True).double().eval()
    X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1), dtype=F64)

    def rows():
        layer = call("lipcore.from_module", module)
        found = call("lipcore.models.measure.measure_layer", layer, X)
        return [layer(X), *(list(row.values()) for row in found)]

    yield "lipcore.from_module", rows


def values() -> dict[str, list[np.ndarray] | None]:
    """Return for each name its results, an array for each head, layer or model; None if removed."""
    layers = [*conftest.CASES, *conftest.WITH_SINKS, *conftest.BEYOND, *conftest.GATED]
    calls = [entry for i, h in enumerate(heads()) for entry in of(h, i, TABLE)]
    for i, name in enumerate(layers):
        for dtype in (F64, torch.float32):
            calls += of_layer(conftest.build_case(name), dtype, i)
    calls += [entry for family in MODELS for entry in of_model(family)]
    found: dict[str, list[np.ndarray] | None] = {}
    for name, form in (*calls, *of_module()):
        try:
            row = numbers(form())
        except RemovedError:
            found[name] = None
            continue
        except (ValueError, TypeError, NotImplementedError, RuntimeError):
            row = [math.nan]  # that it is refused is stored too
        found.setdefault(name, []).append(np.array(row))
    return found


def floor(name: str) -> float:
    """Return the relative difference that is always allowed."""
    if "float32" in name:
        return FLOORS["vectors" if "by_" in name else "float32"]
    return FLOORS["bounds" if name.startswith("lipcore.bounds") else "other"]


def difference(old: np.ndarray, new: np.ndarray) -> float:
    """Return by how much two results differ, relative to the largest number, or infinity."""
    finite = np.isfinite(old)
    if old.shape != new.shape or not np.array_equal(old[~finite], new[~finite], equal_nan=True):
        return math.inf
    if not finite.any() or np.array_equal(old, new, equal_nan=True):
        return 0.0
    size = max(np.abs(old[finite]).max(), 1e-300)
    apart = np.abs(old[finite] - new[finite]).max() / size
    return float(apart) / max(1.0, abs(math.log(size)) / 4)


def one_unit_off(function):
    """Return what a function gives if random normal numbers are off by a unit in the last place."""
    exact = torch.randn
    generator = torch.Generator().manual_seed(1)

    def inexact(*args, **kwargs):
        x = exact(*args, **kwargs)
        units = torch.randint(-1, 2, x.shape, generator=generator)
        return x * (1 + units.to(x.dtype) * torch.finfo(x.dtype).eps)

    torch.randn = inexact
    try:
        return function()
    finally:
        torch.randn = exact


def main() -> None:
    """Store the values of today, and by how much each may change."""
    torch.set_num_threads(1)
    if sys.argv[1:] != ["--save"]:
        raise SystemExit(__doc__)
    now = {name: rows for name, rows in values().items() if rows is not None}
    off = one_unit_off(values)
    kept, rows_in_all, loose = {}, 0, 0
    for name, rows in now.items():
        noise = [30 * difference(x, y) for x, y in zip(rows, off[name], strict=True)]
        allowed = [math.inf if x > 3e-5 else max(x, floor(name)) for x in noise]
        kept[name] = np.concatenate(rows)
        kept[f"{name} ±"] = np.array(allowed, dtype=np.float32)
        rows_in_all, loose = rows_in_all + len(rows), loose + allowed.count(math.inf)
    np.savez_compressed(STORED, **kept)
    print(f"{rows_in_all} results of {len(now)} names, {loose} of them not compared")


if __name__ == "__main__":
    main()
