"""Constants that rest on a numerical maximum or a root, enclosed by interval arithmetic.

What float64 finds must lie in the enclosure, or, if it is an upper bound, above and close to it.
An unbounded range of a is mapped to [0, 1) by a/(1+a), or cut where a monotone bound takes over.
"""

import itertools
import math
import re
from pathlib import Path

import pytest
import torch
from flint import arb, arb_mat, ctx

from draws import F64, KINDS, draw
from intervals import above, largest, power, root, smallest
from lab.l2 import distance_spread
from lipcore import bounds
from lipcore.bounds.causal import log_moments, row_moment
from lipcore.bounds.normalised import largest_affine_norm
from lipcore.measures import TwoDirac

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"

#: Claims that the tests below enclose: these have the status "enclosed" on their pages, no others.
ENCLOSED = {
    "one-row", "masked-upper-moments", "order-of-the-constant", "large-radius-peak", "rival-kim",
    "zoo-l2-log", "zoo-l2-fourth-derivative", "zoo-l2-constant", "score-gap-formula",
    "normalised-score-spread",
}  # fmt: skip


@pytest.fixture(autouse=True)
def digits():
    """Forty digits, and series of two terms: value and derivative."""
    before = ctx.prec, ctx.cap
    ctx.prec, ctx.cap = 128, 2
    yield
    ctx.prec, ctx.cap = before


def just_above(log_value, enclosure, slack):
    """Whether a float is above the logarithm that is enclosed, by no more than slack."""
    excess = arb(log_value) - enclosure
    return excess > 0 and excess < slack


@pytest.mark.parametrize("a", [0.0, 1e-3, 0.3, 1.0, 3.0, 10.0, 50.0, 1e3, 1e8])
def test_two_dirac_peak(a):
    """F(a) is the largest value on all of [0, 1], not only where it is looked for."""
    A = arb(a)
    inverse = (-2 * A).exp()

    def square(w):
        rare, common = (1 + 2 * A * (1 - w)) / (1 + 2 * A), (1 - 2 * A * w) / (1 + 2 * A)
        return (1 - w + w * inverse) * (w * rare**2 + (1 - w) * common**2 * inverse)

    peak = largest(square, 0.0, 1.0, 1e-18).log() + 2 * (1 + 2 * A).log()
    assert just_above(bounds.two_dirac_peak(a, log=True), peak, 1e-13 + 1e-15 * math.log1p(a))


def test_limits_far_out():
    """F(a)/a² tends to 27/64, the square of what leaders reach over a·e^a to 27/16."""
    peak = largest(lambda w: 4 * w * (1 - w) ** 3, 0.0, 1.0, 1e-20)
    assert peak.contains(arb(27) / 64)
    found = bounds.two_dirac_peak(1e12, log=True) - 2 * math.log(1e12)
    assert found == pytest.approx(float(peak.log().mid()), abs=1e-11)
    # 64/(3√3) is the limit of U over two Diracs with the best ratio of masses, at g* = a/4
    assert (8 / peak.sqrt()).overlaps(64 / (3 * arb(3).sqrt()))
    assert largest(of_leaders(0, 1), 0.0, 1.0, 1e-20).contains(arb(27) / 16)


@pytest.mark.parametrize("a", [0.2, 0.5, 0.51, 1.0, 4.0, 100.0])
def test_torn_peak(a):
    """The closed form of G(a) is the largest value."""
    A = arb(a)

    def square(w):
        return w**2 * (1 + 2 * A * (1 - w)) ** 2 + (1 - w) ** 2 * (1 - 2 * A * w) ** 2

    peak = largest(lambda w: square(w) / (1 + 2 * A) ** 2, 0.0, 1.0, 1e-18) * (1 + 2 * A) ** 2
    assert arb(bounds.torn_peak(a), 1e-14 * bounds.torn_peak(a)).contains(peak)


def moment(q, start, slope):
    """The q-th moment of two tokens, start = 1 and slope = a, as a function of the weight."""

    def value(w):
        ends = start + 2 * slope * (1 - w), start - 2 * slope * w
        return w * power(ends[0], q) + (1 - w) * power(ends[1], q)

    return value


@pytest.mark.parametrize(("a", "q"), [(0.3, 2.0), (1.0, 3.0), (2.0, 3.5), (20.0, 3.3), (1e3, 10.0)])
def test_row_moment(a, q):
    scale = 1 + 2 * arb(a)
    peak = largest(moment(arb(q), 1 / scale, arb(a) / scale), 0.0, 1.0, 1e-16)
    assert just_above(row_moment(a, q, log=True), peak.log() / q + scale.log(), 3e-13)


def log_moment_bound(start, slope, p, w):
    """log of (2/(2−p))^{1/p} times the moment of q = p/(p−1) at one weight."""
    q = p / (p - 1)
    rare, common = start + 2 * slope * (1 - w), abs(start - 2 * slope * w)
    rest = (1 - w) / w * (q * (common / rare).log()).exp()
    return (2 / (2 - p)).log() / p + rare.log() + (w * (1 + rest)).log() / q


def least_moment_bound(start, slope):
    """Enclose the least over 1 ≤ p < 2 of log (2/(2−p))^{1/p} M_q, M_q the largest over weights."""
    # between 1.05 and 1.9 each weight gives a lower bound: on short intervals the one that floats
    # find best in the middle
    weights = torch.linspace(1e-3, 0.999, 2000, dtype=F64)
    rare = (float(start) + 2 * float(slope) * (1 - weights)).log()
    common = (float(start) - 2 * float(slope) * weights).abs().log()

    def best(p):
        q = p / (p - 1)
        logs = torch.logaddexp(weights.log() + q * rare, (1 - weights).log() + q * common)
        return math.log(2 / (2 - p)) / p + logs.max().item() / q, weights[logs.argmax()].item()

    ends = [1.05 + 0.005 * i for i in range(171)]
    low = arb.pos_inf()
    for first, last in itertools.pairwise(ends):
        w = arb(best((first + last) / 2)[1])
        here = smallest(lambda p, w=w: log_moment_bound(start, slope, p, w), first, last, 1e-6)
        low = low.min(here.lower())
    # near p = 1 the first token alone, of weight 1/q; near p = 2, M_q ≥ M_2 and a large factor
    first, last = arb(ends[0]), arb(ends[-1])
    q = first / (first - 1)
    near_one = arb(2).log() / first - q.log() / q + (start + 2 * slope * (1 - 1 / q)).log()
    near_two = (2 / (2 - last)).log() / 2 + (start**2 + slope**2).log() / 2
    low = low.min(near_one.lower()).min(near_two.lower())
    p = arb(min((1.2 + 0.001 * i for i in range(401)), key=lambda p: best(p)[0]))
    q = p / (p - 1)
    peak = largest(moment(q, start, slope), 0.0, 1.0, 1e-7)
    return low.union(((2 / (2 - p)).log() / p + peak.log() / q).upper())


@pytest.mark.parametrize("a", [1.0, 2.0, 10.0])
def test_moment_bound_is_the_least_over_p(a):
    """In units of a: what the package finds lies within 1e-4 of the least over p."""
    least = least_moment_bound(1 / arb(a), arb(1)) + arb(a).log()
    assert least.rad() < 1e-4
    assert least.overlaps(arb(log_moments(math.log(a)), 1e-9))


def of_leaders(start, slope):
    """The square of what leaders reach over e^a, as a function of s = 1/(1 + β)."""
    return lambda s: 4 * s * (1 - s) * (start + 2 * slope * s) ** 2


@pytest.mark.parametrize("a", [0.0, 0.5, 1.0, 2.5, 50.0])
def test_density_of_leaders(a):
    """The best β, on all of (0, ∞), is the positive root of β² + 6aβ = 1 + 2a."""
    peak = largest(of_leaders(1, arb(a)), 0.0, 1.0, 1e-15)
    beta = (9 * arb(a) ** 2 + 2 * arb(a) + 1).sqrt() - 3 * arb(a)
    value = of_leaders(1, arb(a))(1 / (1 + beta))
    assert peak.overlaps(value) and (peak - value).abs_upper() < 1e-14


def test_masked_bound_over_what_leaders_reach():
    """At most 1.43 times for every a ≥ 2, and 1.94 times for every a ≥ 1."""
    # in units of a·e^a both sides rise with t = 1/a, M_q because it is convex in t and even: each
    # short interval of t is decided at its ends
    p = arb("1.39")
    q = p / (p - 1)
    factor = ((2 / (2 - p)).log() / p).exp()
    high, step, pieces = 1.0, 0.001, 0
    while high > 0:
        low = max(high - step, 0.0)
        peak = largest(moment(q, arb(high), arb(1)), 0.0, 1.0, 1e-5)
        small = (-1 / arb(high)).exp()
        upper = (factor * (peak.log() / q).exp() + 1) * small + high + arb(2).sqrt()
        beta = (9 + 2 * arb(low) + arb(low) ** 2).sqrt() - 3  # times t
        s = 1 / (1 + (beta / low if low else arb(1) / 3))
        lower = of_leaders(arb(low), 1)(s).sqrt()
        pieces += 1
        assert pieces < 400, f"not decided at a = {1 / high}"
        if upper < (1.43 if high <= 0.5 else 1.94) * lower:
            high, step = low, 1.3 * step
        else:
            step /= 2


def over_a(function, low, high, width):
    """Enclose the largest value of function(1 − x, x), of degree zero, over a = x/(1−x)."""
    return largest(lambda x: function(1 - x, x), low, high, width)


def hypotenuse(one, a):
    return (one**2 + a**2).sqrt()


def test_measures_and_every_value_matrix():
    """The three lower bounds of the proof of thm-every-rate are together at least U/161."""
    # over e^{g*/2} they are 1/4, αν and β√(1−ν²) − γν (for ν ≤ 1/2, where it grows with g* ≥ a/4),
    # with α = √3a/128, γ = 9a/64 and β = √3/4·(1 + 3a/16); the second rises with ν and the third
    # falls: at least α·min(ν*, 1/2) with ν* where they meet. U/e^{g*/2} is at most
    # √(1+a²) + ae^{−a/8}, whose last term falls from a = 8 on
    cut = 39.5
    short = largest(lambda a: 4 * (hypotenuse(1, a) + a * (-a / 8).exp()), 0.0, cut + 0.1, 1e-6)
    rest = arb(cut) * (-arb(cut) / 8).exp()  # the most that ae^{−a/8} is beyond the cut
    alpha = arb(3).sqrt() / 128

    def meeting(one, a):
        beta = arb(3).sqrt() / 4 * (one + 3 * a / 16)
        return beta / (beta**2 + ((alpha + arb(9) / 64) * a) ** 2).sqrt()

    def ratio(nu):
        return lambda one, a: (hypotenuse(one, a) + rest * one) / (alpha * a * nu(one, a))

    meets = over_a(ratio(meeting), cut / (1 + cut), 1.0, 1e-6)
    half = over_a(ratio(lambda one, a: arb(1) / 2), cut / (1 + cut), 1.0, 1e-6)
    assert 158 < meets and short.max(meets).max(half) < 161


def test_many_tokens_and_the_identity():
    """The steps of the proof of thm-every-rate for n tokens, at most 90 (or 15) as said there."""
    root_e = arb("1.23")  # √(3/2)
    assert root_e**2 > 1.5

    def upper(one, a):
        return root_e * hypotenuse(one, a) + a

    crowd = over_a(lambda one, a: 2 * upper(one, a) / (one + a / 20), 0.0, 1.0, 1e-9)
    torn = over_a(lambda one, a: upper(one, a) / (a / arb("8.5")), 0.8, 1.0, 1e-9)
    few = largest(lambda a: 2 * upper(1, a), 0.0, 4.25, 1e-9)
    assert crowd > 89 and crowd < 90 and torn < 90 and few < 90
    assert upper(1, arb(4)) * (arb(1) / 2).exp() < 15
    y = arb(1).exp()
    assert 2 * y / (y - 1) < 3.2  # the most that ρe^{g*} is: it falls with e^{g*} > e
    weight = smallest(lambda x: x.sqrt() / (1 + x), 1.0, 3.2, 1e-9)
    gained = 1 / (1 + arb("3.2"))
    assert weight > 0.425 and gained > 0.238
    weight, gained = arb("0.425"), arb("0.238")
    copies = over_a(
        lambda one, a: upper(one, a) / (weight * (one + gained * a / 4)), 0.0, 1.0, 1e-9
    )
    assert copies < 90


def bound_over_two_diracs(a, theta):
    """The mean-field bound over the constant of Diracs at ∓1, masses in the ratio θe^{2a}."""
    grown = a.exp()
    light, heavy = 1 / (1 + 1 / (theta * grown**4)), 1 / (1 + theta)  # weights on the other
    own_light = (1 - light) * (1 - 6 * a * light)
    own_heavy = (1 - heavy) * (1 - 6 * a * heavy)
    root_mass = theta.sqrt() * grown
    up = heavy * (1 + 2 * a * (1 - heavy)) * root_mass
    down = light * (1 + 2 * a * (1 - light)) / root_mass
    sums = hypotenuse(own_light + own_heavy, down - up)
    differences = hypotenuse(own_light - own_heavy, down + up)
    return 2 * (hypotenuse(1, a) * grown + a) / (sums + differences)


def test_mean_field_bound_over_two_diracs():
    """Less than 1.86 times what two points reach for every a; more than 1.85 at a = 0.367."""
    log_theta = torch.linspace(-3, 14, 1701, dtype=F64)

    def best_of(a):
        constant = TwoDirac(torch.sigmoid(-log_theta - 2 * a), 1.0, a).constant
        best = int(constant.argmax())
        return math.exp(log_theta[best].item()), constant[best].item()

    a, step = 0.0, 0.02
    while a < 20:  # short intervals, with the ratio of masses that floats find best in the middle
        theta = arb(best_of(a + step / 2)[0])
        if above(lambda x, t=theta: bound_over_two_diracs(x, t), a, a + step) < 1.86:
            a, step = a + step, 1.3 * step
        else:
            step /= 2
            assert step > 1e-4, f"not decided at a = {a}"
    far = arb(20)  # beyond, the heavy Dirac's row with θ = 3 is enough, as √(1+a²) ≤ a + 1/a
    assert (1 + 1 / far**2) / (arb(3).sqrt() / 4 * arb(3) / 2) < 1.6  # falls with a
    bound = bounds.unified_upper(radius=1.0, norm_a=0.367, norm_v=1.0)
    assert bound / best_of(0.367)[1] > 1.85


def test_peak_near_a_tie():
    """The largest u/(4cosh²(u/2)), which is at most ue^{−u} beyond u = 20, and where it is."""

    def profile(u):
        return u * (-u).exp() / (1 + (-u).exp()) ** 2

    peak = largest(profile, 0.0, 20.0, 1e-15)
    assert peak > 0.22385 and peak < 0.22395 and arb(20) * arb(-20).exp() < 1e-7
    at = root(lambda u: u * (u / 2).tanh() - 1, 1.5434046384182085, 1e-14)
    assert at > 1.543 and at < 1.544 and at.sqrt() > 1.235 and at.sqrt() < 1.245


@pytest.mark.parametrize("n", [2, 3, 10, 1000, 10**9, 10**15, 10**200])
def test_spread_of_squared_distances(n):
    """c e^{c+1} = n − 1 has one root, as the left side rises."""
    root(lambda x: x.log() + x + 1 - arb(n - 1).log(), distance_spread(n), 1e-14)


def test_half_of_the_column_sums():
    """e^{−t}(1 + 2t) is largest at t = 1/2, below 5/4; beyond t = 40 it is less than e^{−20}."""
    peak = largest(lambda t: (-t).exp() * (1 + 2 * t), 0.0, 40.0, 1e-18)
    assert peak.overlaps(2 * (-arb(1) / 2).exp()) and peak < 1.25


def test_where_the_shifted_star_passes_one_torn_token():
    """√(q log q log 2)/8 is below 2c for q from 2 to 8495, and above it at 8496: n = 7.22×10⁷."""

    def excess(log_q):
        q = log_q.exp()
        c = ((q**2 + 4 * q - 1) / arb(1).exp()).lambertw()
        return (log_q + log_q.log() + arb(2).log().log()) / 2 - (16 * c).log()

    end = math.nextafter(math.log(8495), math.inf)
    assert largest(excess, 0.69, end, 1e-6) < 0 < excess(arb(8496).log())


def positive_definite(matrix):
    """Whether the symmetric matrix (a list of rows of balls) certainly is, by elimination."""
    rows = [list(row) for row in matrix]
    while rows:
        pivot, *rest = rows
        if not pivot[0] > 0:
            return False
        rows = [
            [x - row[0] * y / pivot[0] for x, y in zip(row[1:], pivot[1:], strict=True)]
            for row in rest
        ]
    return True


def exact(tensor):
    """The entries as balls of radius zero."""
    return arb_mat([[arb(x) for x in row] for row in tensor.tolist()])


@pytest.mark.parametrize("kind", ["any", "symmetric", "antisymmetric", "rank one", "identity"])
def test_score_gap(kind):
    """Between the lead at u and the dual at ‖Au‖/2, certified by a positive definite matrix."""
    A = KINDS[kind](draw(3, 4, 4))
    gap, u = bounds.score_gap(A)
    A_, u_ = exact(A), exact(u[:, None])
    image = A_ * u_
    inside = (u_.transpose() * u_)[0, 0].sqrt().max(arb(1))  # u may be longer than 1 by rounding
    size = (image.transpose() * image)[0, 0].sqrt() / inside
    low = size - (u_.transpose() * image)[0, 0] / inside**2
    high, mu = low * (1 + arb("1e-12")), arb((size / 2).mid())
    dual = A_.transpose() * A_ * (-1 / (4 * mu)) + (A_ + A_.transpose()) * (arb(1) / 2)
    rows = [[dual[i, j] + (high - mu if i == j else 0) for j in range(4)] for i in range(4)]
    assert high > mu and positive_definite(rows)
    for found in (gap, bounds.score_gap_upper(A)):
        assert low * (1 - arb("1e-13")) < found < high
    rows = [[x - (arb("2e-12") * low if i == j else 0) for j, x in enumerate(row)]
            for i, row in enumerate(rows)]  # fmt: skip
    assert not positive_definite(rows)


def test_largest_affine_norm():
    """Between the value at a point of the sphere and the dual at its multiplier."""
    for values, e, radius in (
        ((2.0, 1.0, 0.5), (0.3, -1.0, 2.0), 1.5),
        ((1.0, 0.1), (1e-3, 5.0), 3.0),
    ):
        M, shift = (torch.tensor(x, dtype=F64) for x in (values, e))
        found = largest_affine_norm(M.diag(), shift, radius).item()
        q = M * shift
        low, high = M.max().item() ** 2, M.max().item() ** 2 + q.norm().item() / radius
        for _ in range(100):
            middle = (low + high) / 2
            long = (q / (middle - M**2)).norm().item() > radius
            low, high = (middle, high) if long else (low, middle)
        factor, terms = arb(high), [(arb(m), arb(x)) for m, x in zip(values, e, strict=True)]
        dual = sum(x**2 + (m * x) ** 2 / (factor - m**2) for m, x in terms) + factor * radius**2
        z = [m * x / (factor - m**2) for m, x in terms]
        scale = radius / sum(x**2 for x in z).sqrt()
        primal = sum((m * scale * y + x) ** 2 for (m, x), y in zip(terms, z, strict=True)).sqrt()
        assert dual.sqrt() - primal < 1e-13
        assert primal * (1 - arb("1e-14")) < found < dual.sqrt() * (1 + arb("1e-14"))


def test_claims_with_the_status_enclosed_are_those_of_this_file():
    found = set()
    for page in NOTEBOOKS.glob("*.md"):
        for said in re.findall(r"claim\(\n(.*?)\n\)", page.read_text(encoding="utf8"), re.DOTALL):
            if 'status="enclosed"' in said:
                found.add(re.match(r'\s*"([a-z0-9-]+)"', said)[1])
    assert found == ENCLOSED
