"""Every argument that a bound refuses is named."""

import math

import pytest
import torch

from draws import EYE, F64, ONE, draw
from lipcore import Attention, bounds
from lipcore.bounds import Normalisation
from lipcore.bounds.causal import row_moment
from lipcore.bounds.normalised import largest_affine_norm

THREE = torch.eye(3, dtype=F64)
HEAD = {"A": EYE, "V": EYE, "radius": 1.0}
LAYER = Attention.from_matrices(EYE, EYE)
WIDE = Attention.from_matrices(THREE, THREE)
TURNED = Attention(*draw(0, 3, 1, 2, 2), rotary=torch.ones(1, dtype=F64))
UNIT = Normalisation("rms", torch.ones(2, dtype=F64), torch.zeros(2, dtype=F64), 0.0)
X = draw(0, 3, 2)
BALL = {"attention": LAYER, "X": X, "radius": 1.0}
CROSS = LAYER.cross(memory=X)
LEADER = {"n": 2, "radius": 1.0, "gamma": 1.0}
LARGE = {"n": 3, "t": 1.0, "gap": 1.0, "radius": 1.0, "norm_a": 1.0, "norm_v": 1.0}


@pytest.mark.parametrize(
    ("name", "bad", "error"),
    [
        *(("n", n, ValueError if n == 0 else TypeError) for n in (0, 2.5, True)),
        *(("radius", R, ValueError) for R in (-1.0, math.nan)),
        *(("radius", R, TypeError) for R in (True, "1")),
        ("norm_a", -1.0, ValueError),
        ("norm_a", EYE, TypeError),
        ("norm_v", -1e-9, ValueError),
    ],
)
def test_sizes(name, bad, error):
    sizes = {"n": 3, "radius": 1.0, "norm_a": 1.0, "norm_v": 1.0} | {name: bad}
    without_n = {key: size for key, size in sizes.items() if key != "n"}
    with_n = (bounds.general_upper, bounds.torn_upper, bounds.masked_upper,
              bounds.unified_upper, bounds.unified_upper_sharp)  # fmt: skip
    calls = [lambda bound=bound: bound(**sizes) for bound in with_n]
    if name != "n":
        every_n = (bounds.mean_field_upper_paper, bounds.masked_upper_moments)
        calls += [lambda bound=bound: bound(**without_n) for bound in every_n]
    for call in calls:
        with pytest.raises(error, match=f"^{name}: "):
            call()


@pytest.mark.parametrize(
    ("name", "error", "call"),
    [
        ("A, V, attention", ValueError, lambda: bounds.best_upper(radius=1.0)),
        ("A, V, attention", ValueError, lambda: bounds.best_upper(A=EYE, radius=1.0)),
        ("A, V, attention", ValueError, lambda: bounds.best_upper(attention=LAYER, **HEAD)),
        ("causal", ValueError, lambda: bounds.best_upper(attention=LAYER, radius=1.0, causal=True)),
        ("V", ValueError, lambda: bounds.best_upper(**HEAD | {"V": THREE})),
        ("radius", ValueError, lambda: bounds.best_upper(**HEAD | {"radius": -1.0})),
        ("n", TypeError, lambda: bounds.best_upper(n=2.5, **HEAD)),
        ("radius", ValueError, lambda: bounds.layer_upper(LAYER, n=3, radius=-1.0)),
        ("n", ValueError, lambda: bounds.layer_upper(LAYER, n=0, radius=1.0)),
        ("X", ValueError, lambda: bounds.local_upper(LAYER, X[:, :1])),
        ("X", ValueError, lambda: bounds.local_upper(LAYER, 1e160 * X)),
        ("P", ValueError, lambda: bounds.nonnegative_norm_upper(-EYE)),
        ("gamma", ValueError, lambda: bounds.masked_lower(**LEADER | {"gamma": -1.0}, norm_v=1.0)),
        ("n", ValueError, lambda: bounds.adversarial_lower(**LEADER | {"n": 0}, norm_v=1.0)),
        ("norm_vu", ValueError, lambda: bounds.refined_lower(**LEADER, norm_vu=math.inf)),
        ("V", ValueError, lambda: bounds.score_gap_lower(n=2, **HEAD | {"V": THREE})),
        ("V is", TypeError, lambda: bounds.score_gap_lower(n=2, **HEAD | {"V": EYE.float()})),
        ("V", ValueError, lambda: bounds.construction_lower("torn", n=5, **HEAD | {"V": THREE})),
        ("A, radius", ValueError, lambda: bounds.construction_inputs("torn", ONE, 9, 2.0)),
        ("n", ValueError, lambda: bounds.construction_inputs("torn", EYE, 2, 2.0)),
        ("n", ValueError, lambda: bounds.construction_inputs("own", EYE, 1, 1.0)),
        ("family", ValueError, lambda: bounds.construction_inputs("pushed", EYE, 5, 1.0)),
        ("n", ValueError, lambda: bounds.causal_average(0)),
        ("H", ValueError, lambda: bounds.causal_average(3).matvec(torch.zeros(4, dtype=F64))),
        ("q", ValueError, lambda: row_moment(1.0, 1.5)),
        ("a", ValueError, lambda: bounds.torn_peak(-1.0)),
        ("a", ValueError, lambda: bounds.two_dirac_peak(math.inf)),
        ("gap", ValueError, lambda: bounds.large_radius_error(**LARGE | {"gap": 0.0})),
        ("radius", ValueError, lambda: bounds.large_radius_error(**LARGE | {"radius": -1.0})),
        ("V", ValueError, lambda: bounds.large_radius(X, EYE, THREE)),
        ("attention: .*rotary", ValueError, lambda: bounds.normalised_reach(TURNED, UNIT)),
        (".*gain", ValueError, lambda: bounds.normalised_reach(WIDE, UNIT)),
        ("residual", ValueError, lambda: bounds.pre_norm_jacobian(
            UNIT, X, Attention.from_matrices(EYE, EYE[:1]), residual=True)),
        ("radius", ValueError, lambda: largest_affine_norm(EYE, EYE[0], -1.0)),
        ("bias", ValueError, lambda: bounds.layer_norm_radius(gain=EYE[0], bias=THREE[0])),
        ("gain", ValueError, lambda: bounds.layer_norm_radius(gain=torch.ones(0))),
        ("gain", ValueError, lambda: bounds.layer_norm_radius(gain=torch.tensor([math.inf]))),
        ("offset", ValueError, lambda: bounds.score_gap_upper(EYE, torch.ones(3, dtype=F64))),
        ("normalisation", TypeError, lambda: bounds.change_upper(**BALL, normalisation="")),
        ("normalisation", ValueError, lambda: bounds.change_upper(
            WIDE, draw(0, 2, 3), 1.0, normalisation=UNIT)),
    ],
)  # fmt: skip
def test_arguments(name, error, call):
    with pytest.raises(error, match=f"^{name}"):
        call()


@pytest.mark.parametrize("bound", [bounds.change_upper, bounds.tangent_error_upper])
def test_balls(bound):
    for name, bad in (("radius", -1.0), ("radius", math.nan), ("radius", "1"), ("norm", "inf"),
                      ("X", X[:, :1]), ("X", 1e160 * X), ("attention", CROSS)):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=f"^{name}: "):
            bound(**BALL | {name: bad})


@pytest.mark.parametrize("function", [bounds.score_gap, bounds.score_gap_upper, bounds.eigen_gamma])
def test_matrices(function):
    for bad in (torch.zeros(2, 3), torch.full((2, 2), math.nan)):
        with pytest.raises(ValueError, match=r"^A: "):
            function(bad)
    with pytest.raises(TypeError, match=r"^A: "):
        function(torch.zeros(2, 2, dtype=torch.int64))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("sinks", "sinks"),
        ("softcap", "softcap"),
        ("gate per head", "gate"),
        ("normalised queries and keys, everything", "sinks, softcap, query_norm, key_norm"),
    ],
)
def test_no_bound_is_claimed_for_what_no_theorem_covers(make_case, name, what):
    f, tokens = make_case(name).attention, make_case(name).X
    unit = Normalisation("rms", torch.ones(f.d, dtype=F64), torch.zeros(f.d, dtype=F64), 0.0)
    for claim in (
        lambda: bounds.local_upper(f, tokens),
        lambda: bounds.local_terms(f, tokens),
        lambda: bounds.best_upper(attention=f, n=tokens.shape[-2], radius=1.0),
        lambda: bounds.layer_upper(f, n=6, radius=1.0),
        lambda: bounds.score_reach(f, radius=1.0),
        lambda: bounds.normalised_upper(f, unit, n=6),
        lambda: bounds.change_upper(f, tokens, 1.0),
        lambda: bounds.tangent_error_upper(f, tokens, 1.0),
    ):
        with pytest.raises(ValueError, match=f"^attention: .*{what}"):
            claim()
