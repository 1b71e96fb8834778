"""The live pictures: the numbers of the package, and the same gestures in each.

Every picture stands on a small page of its own, so that no built book is needed.
"""

import json
import math
import re
from inspect import signature

import pytest
import torch
from book_build.figures import style_sheet
from book_build.live import SHARED, markup, scripts
from test_pages import ROOT

from lipcore import Attention, bounds, export_head, local_lipschitz, spectral_norm
from lipcore.adversarial import worst_case_inputs
from lipcore.bounds import large_radius
from lipcore.measures import TwoDirac

LIMIT = 40_000  # bytes of script a picture
TOLERANCE = 1e-6
NUMBER = {
    "two-points": "constant",
    "sink": "constant",
    "calculator": "best",
}  # what a picture is about, if not "norm"
STATE = "(({{ rows, by, ...state }}) => state)(live['{}'].state())"  # without the scripts' own
EYE = torch.eye(2).double()
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>
<meta name="viewport" content="width=device-width"><style>{style}</style>
<body>{markup}{scripts}</body></html>"""


@pytest.fixture(scope="module")
def addresses(tmp_path_factory) -> dict[str, str]:
    """For each picture, the address of a page with nothing else, whose scripts are small."""
    style = ":root { --pst-color-link: #0a7d91; }"  # what the theme brings
    style += style_sheet() + (ROOT / "book/_static/live.css").read_text(encoding="utf8")
    folder, found = tmp_path_factory.mktemp("live"), {}
    for name in SHARED:
        sources = [(ROOT / "book/_static" / s).read_text(encoding="utf8") for s in scripts([name])]
        assert sum(len(source.encode()) for source in sources) < LIMIT, name
        path = folder / f"{name}.html"
        text = "".join(f"<script>{source}</script>" for source in sources)
        page = PAGE.format(name=name, style=style, markup=markup(ROOT, name), scripts=text)
        path.write_text(page, encoding="utf8")
        found[name] = path.as_uri()
    return found


@pytest.fixture(scope="module")
def window(browser):
    """One window for all tests, and what its scripts do wrong."""
    errors: list[str] = []
    with browser.new_context() as context:
        context.on("weberror", lambda e: errors.append(f"script error: {e.error}"))
        context.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        yield context.new_page(), errors


@pytest.fixture
def page(window):
    page, errors = window
    errors.clear()
    yield page
    page.evaluate("0")  # what it says comes after what was noted before
    assert errors == []


@pytest.fixture
def anew(page, addresses):
    """Open the page of a picture as if nobody had touched it."""

    def go(name: str, address: str = ""):
        page.goto("about:blank")
        page.mouse.move(0, 0)
        page.goto(addresses[name] + address)
        return page

    return go


@pytest.fixture
def at(anew):
    """Open a picture at a scene; return what it knows there."""
    return lambda name, **scene: scene_in(anew(name), name, scene)


def scene_in(page, name: str, change: dict) -> dict:
    """Change the scene of a picture; return what it knows afterwards."""
    return page.evaluate(f"c => {{ live['{name}'].set(c); return {STATE.format(name)}; }}", change)


def shown(page, key: str) -> str:
    return page.locator(f"[data-show={key}]").first.inner_text()


def number(text: str) -> float:
    """The number that a displayed text stands for: 0.0200, 1,234 or 1.2×10⁻³."""
    plain = text.translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−", "0123456789--"))
    return float(plain.replace(",", "").replace("×10", "e"))


def same(text: str, value: float) -> bool:
    """Whether a displayed number is the value, to the digits displayed."""
    digits = len(re.sub(r"^0\.0*|\D", "", text.partition("×")[0]))
    return abs(number(text) / value - 1) <= 0.51 * 10 ** (1 - min(digits, 3))


def about(value) -> object:
    return pytest.approx(value, rel=TOLERANCE)


def double(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found, truth: torch.Tensor) -> bool:
    return torch.allclose(double(found), truth, rtol=TOLERANCE, atol=TOLERANCE)


def laid_out(state: dict) -> torch.Tensor:
    """All n tokens of a scene, copies one after another."""
    return torch.cat([double([[x, y]]).expand(int(c), 2) for x, y, c in state["tokens"]])


def head(A, **options) -> Attention:
    return Attention.from_matrices(double(A).reshape(2, 2), EYE, **options)


def sigma(f: Attention, X: torch.Tensor) -> float:
    return torch.linalg.matrix_norm(f.jacobian(X).dense(), 2).item()


# --- numbers, one picture after another -------------------------------------------------------

SCENES = {
    "the start": {},
    "all equal": {"tokens": [[0.5, 0.5, 3], [0.5, 0.5, 4]], "family": "rotation", "turn": 35},
    "eight tokens": {
        "tokens": [[0.9, 0.1, 1], [0.2, 0.8, 2], [-0.7, 0.4, 3], [-0.5, -0.6, 1],
                   [0.3, -0.9, 9], [0, 0, 5], [0.6, 0.6, 1], [-1, 0.2, 7]],
        "radius": 1.1, "family": "symmetric", "strength": 1.7, "second": -0.4,
    },
    "masked": {
        "tokens": [[-1.3, 0.2, 1], [0.8, 0.9, 20], [1.1, -0.6, 33], [0.1, -1, 4]],
        "strength": 1.1, "causal": True,
    },
    "small ball": {"tokens": [[3, 3, 1], [-3, 1, 2], [0.1, 0, 1]], "radius": 0.2, "family": "alike"},
}  # fmt: skip


@pytest.mark.parametrize("scene", SCENES)
def test_attention(at, page, scene):
    """The constant, the worst push, the weights and the two bounds."""
    state = at("attention", **SCENES[scene])
    causal, X = state["causal"], laid_out(state)
    f = head(state["A"], causal=causal)
    J, truth, h = f.jacobian(X), sigma(f, X), double(state["h"])
    assert state["norm"] == about(truth) and same(shown(page, "norm"), truth)
    assert h.norm().item() == about(1)
    assert J.matvec(h).norm().item() == about(truth), "not the worst nudge"
    assert close(state["response"], J.matvec(h))
    assert causal or state["copied"] == about(sigma(f, X.repeat_interleave(2, dim=0)))
    counts = [int(c) for *_, c in state["tokens"]]
    rows = f.weights(X)[0][torch.tensor(counts).cumsum(0) - 1]  # of the last copy of each token
    seen = torch.stack([part.sum(-1) for part in rows.split(counts, dim=-1)], dim=-1)
    assert close(state["P"], seen)
    norm_a = torch.linalg.matrix_norm(double(state["A"]).reshape(2, 2), 2).item()
    size = {"radius": state["radius"], "norm_a": norm_a, "norm_v": 1.0}
    limits = {
        "local": bounds.local_upper(f, X).item(),
        "ball": (bounds.masked_upper if causal else bounds.unified_upper)(n=len(X), **size),
    }
    assert state["bounds"] == about(limits)
    assert all(same(shown(page, key), value) for key, value in limits.items())
    assert all(number(shown(page, "norm")) <= number(shown(page, key)) for key in limits)
    assert (X.norm(dim=1) <= state["radius"] * (1 + 1e-12)).all(), "a token is outside the ball"


def test_the_button_finds_a_pair_nearly_as_bad_as_the_package_does(at, page):
    for family in ("away", "antisymmetric"):
        at("attention", tokens=[[0, 0, 1], [1, 0, 15]], radius=1.6, family=family)
        page.get_by_role("button", name="Worst pair").click()
        state = scene_in(page, "attention", {})
        worst = worst_case_inputs(double(state["A"]).reshape(2, 2), 16, 1.6)
        found = local_lipschitz(head(state["A"]), worst).value.item()
        assert state["n"] == 16 and state["norm"] > 0.8 * found


@pytest.mark.parametrize("name", ["teaser", "calculator"])
def test_it_is_as_good_without_scripts(browser, addresses, name):
    """The markup holds what the script draws at the start."""
    seen = []
    for scripted in (False, True):
        with browser.new_context(java_script_enabled=scripted) as context:
            page = context.new_page()
            page.goto(addresses[name])
            text = page.locator(".live-words").inner_text()
            text += " ".join(page.locator(".live-table").all_inner_texts())
            for path in page.locator("path.live-nudge, path.live-answer").all():
                text += " " + path.get_attribute("d")
            seen.append([float(v) for v in re.findall(r"-?\d*\.?\d+", text)])
            page.close()
    assert len(seen[0]) > 9 and seen[0] == pytest.approx(seen[1], abs=2e-3)


POINTS = [(0.02, 1.5, 1), (1e-8, 2, 2), (0.999, 1.8, 1.3), (0.5, 1.5, 0)]


@pytest.mark.parametrize(("p", "radius", "gamma"), POINTS)
def test_two_points(at, page, p, radius, gamma):
    state = at("two-points", p=p, radius=radius, gamma=gamma)
    pair, size = TwoDirac(p, radius, gamma), {"radius": radius, "norm_a": gamma, "norm_v": 1.0}
    lowest = min(-2 * gamma * radius**2 - 6, math.log(1e-9))
    masses = torch.sigmoid(torch.linspace(lowest, 0, 200_001).double())
    truth = {
        "constant": pair.constant.item(),
        "transverse": pair.transverse_constant.item(),
        "peak": TwoDirac(masses, radius, gamma).constant.max().item(),
        "sharp": bounds.unified_upper_sharp(**size),
        "meanField": bounds.unified_upper(**size),
        "published": bounds.mean_field_upper_paper(**size),
    }
    assert {key: state[key] for key in truth} == about(truth)
    assert state["weights"] == about(pair.other_weight.tolist())
    assert state["ownQuery"] == about(pair.own_query.tolist())
    assert state["matrix"] == about(pair.derivative.flatten().tolist())
    assert TwoDirac(state["peakMass"], radius, gamma).constant.item() == about(truth["peak"])
    shows = {k: number(shown(page, k)) for k in ("constant", "peak", "meanField", "published")}
    assert all(same(shown(page, key), truth[key]) for key in ("constant", "meanField"))
    assert all(shows["constant"] <= value for value in shows.values()), "more than is proved"


PUSHES = {
    "the start": {},
    "sharp": {"strength": 1.5, "chosen": 3, "push": [-0.4, 0.1]},
    "two tokens in one place": {
        "tokens": [[1, 0.2, 1], [1, 0.2, 1], [-0.9, 1, 1], [0, -1.5, 1], [0.3, 0.3, 1]],
        "chosen": 2, "strength": 1, "push": [0.9, 0.9],
    },
}  # fmt: skip


@pytest.mark.parametrize("push", PUSHES)
def test_jacobian(at, page, push):
    """The three pieces of the answer, the answer, the outputs, and the worst direction."""
    state = at("jacobian", **PUSHES[push])
    X, A = double(state["tokens"])[:, :2], double(state["A"]).reshape(2, 2)
    j, h, f = state["chosen"], double(state["push"]), head(state["A"])
    H = torch.zeros(len(X), 2).double()
    H[j] = h
    J, P = f.jacobian(X), f.weights(X)[0]
    mean = P @ X
    own = torch.zeros(len(X), 2).double()
    own[j] = (X - mean[j]).T @ (P[j, :, None] * (X - mean[j])) @ A @ h
    keys = P[:, j, None] * (X[j] - mean) * (X @ A.T @ h)[:, None]
    for name, piece in {"mixing": P @ H, "keys": keys, "own": own}.items():
        assert close(state["pieces"][name], piece), name
        ratio = (piece.norm() / h.norm()).item()
        assert state["ratios"][name] == pytest.approx(ratio, abs=TOLERANCE)
    assert close(state["answer"], J.matvec(H))
    assert close(state["outputs"], f(X)) and close(state["real"], f(X + H))
    assert state["norm"] == about(sigma(f, X)) and same(shown(page, "norm"), state["norm"])
    column = torch.linalg.matrix_norm(J.dense()[:, 2 * j : 2 * j + 2], 2).item()
    assert state["column"] == about(column)
    page.get_by_role("button", name="Worst direction").click()
    assert scene_in(page, "jacobian", {})["ratios"]["answer"] == about(column)


@pytest.mark.parametrize(("count", "a"), [(1, 0.5), (97, 3.0), (4096, 3.0)])
def test_crowd(at, page, count, a):
    state = at("crowd", count=count, a=a, nudge=[0.2, -0.3])
    if count < 100:
        f, X = head([-a, 0, 0, -a]), double([[-1, 0]] + [[1, 0]] * count)
        assert state["norm"] == about(sigma(f, X))
        H = torch.zeros(count + 1, 2).double()
        H[0] = double(state["nudge"])
        answers = f.jacobian(X).matvec(H)[1:]
        assert torch.allclose(answers, double(state["answer"]).expand_as(answers), atol=TOLERANCE)
        assert state["all"] == about((answers.norm() / H.norm()).item())
        assert state["weight"] == about(f.weights(X)[0, -1, 0].item())
    else:
        pair = TwoDirac(1 / (count + 1), 1.0, a)
        parts = (pair.constant, pair.transverse_constant, pair.own_query[1])
        assert state["norm"] == about(max(v.item() for v in parts))
    assert same(shown(page, "norm"), state["norm"])
    assert state["limit"] == about(math.exp(2 * a))


PLACES = {
    "the start": {},
    "large": {"t": 10},
    "between": {"t": 3.7, "tokens": [[1.2, 0.3, 1], [0.1, 0.9, 1], [-1, 0.4, 1],
                                     [0.3, -0.2, 1], [-0.5, -1.1, 1], [0.8, -0.7, 1]]},
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_ties(at, page, place):
    state = at("ties", **PLACES[place])
    A, X = double([[0.6, -0.8], [0.8, 0.6]]), double(state["tokens"])[:, :2]
    f, law = head(A.tolist()), large_radius(X, A, EYE)
    assert state["norm"] == about(sigma(f, state["t"] * X))
    assert close(state["P"], f.weights(state["t"] * X)[0])
    assert state["q"] == law.most_attended.int().item()
    assert state["looks"] == law.weights.argmax(-1).tolist()
    assert same(shown(page, "norm"), state["norm"])
    page.locator("[value=tie]").click()
    torn = scene_in(page, "ties", {})
    assert 0 <= torn["gaps"][torn["chosen"]] < 1e-9, "the chosen token is not on a border"


ORDERS = {
    "the start": {},
    "steep": {"gamma": 2, "order": [3, 1, 0, 2, 7, 6, 5, 4], "values": [-1.4, 1, 0.2, -0.7, 0.4, 1.3, -1.2, 0.9]},
}  # fmt: skip


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_mask(at, order, causal):
    state = at("mask", **ORDERS[order], causal=causal)
    X = double([[state["values"][token], 0] for token in state["order"]])
    A = [-state["gamma"], 0, 0, -state["gamma"]]
    masked, plain = head(A, causal=True), head(A)
    assert (state["masked"], state["plain"]) == about((sigma(masked, X), sigma(plain, X)))
    f = masked if causal else plain
    assert state["norm"] == state["masked" if causal else "plain"]
    assert close(state["P"], f.weights(X)[0]) and close(state["outputs"], f(X))
    assert f.jacobian(X).matvec(double(state["h"])).norm().item() == about(state["norm"])
    assert sum(state["nudged"]) == about(1) == about(sum(state["answered"]))


@pytest.mark.parametrize("n", [2, 31, -1])
def test_sink(at, page, n):
    """That the numbers stored for it are the package's is tested where they are made."""
    stored = json.loads((ROOT / "book/_live/sink.json").read_text(encoding="utf8"))
    size = len(stored["words"])
    n = size if n < 0 else n
    state = at("sink", n=n)
    P = torch.zeros(n, n).double()
    for i, row in enumerate(stored["weights"][:n]):
        P[i, : i + 1] = double(row)
    assert state["received"] == about(P.sum(0).tolist() + [0] * (size - n))
    assert state["norm"] == about(torch.linalg.matrix_norm(P, 2).item()) == stored["norms"][n - 1]
    assert state["constant"] == stored["constants"][n - 1]
    words = page.locator("#live-sink .live-text").inner_text().split()
    assert words == [word.strip() for word in stored["words"]]


UPPER = {
    "general": "general_upper", "unified": "unified_upper", "rate": "unified_upper_rate",
    "sharp": "unified_upper_sharp", "torn": "torn_upper", "meanField": "unified_upper",
    "published": "mean_field_upper_paper", "masked": "masked_upper",
    "moments": "masked_upper_moments", "maskedRate": "masked_upper_rate",
}  # fmt: skip
LOWER = {"adversarial": "adversarial_lower", "leader": "masked_lower"}
MATRICES = ["", "1 2; 0 1", "0 -3; 3 0", "0.3 -1 2; 1 0 0.5; -2 1 0.1"]


def bound_of(kind: str, name: str, scene: dict, A: torch.Tensor) -> float:
    """The logarithm of a bound for V = ‖V‖I, as the package computes it."""
    if name == "one":
        return math.log(scene["values"])
    known = {"A": A, "V": scene["values"] * torch.eye(len(A)).double(), "norm_v": scene["values"]}
    known |= {"radius": scene["radius"], "norm_a": torch.linalg.matrix_norm(A, 2).item()}
    known |= {"n": scene["n"], "gamma": bounds.eigen_gamma(A)[0], "log": True}
    known["family"] = name
    names = UPPER if kind == "upper" else LOWER
    function = getattr(bounds, names.get(name, "construction_lower"))
    asked = signature(function).parameters.keys() & known.keys()
    asked -= {"n"} if name == "meanField" else set()
    return function(**{key: known[key] for key in asked})


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("causal", [False, True])
def test_calculator(at, page, matrix, causal):
    """Every bound, in logarithms, over a grid; which is marked; and where growth ends."""
    grid = [(a, n) for a in (0.02, 0.7, 3.0, 40.0, 1e6) for n in (1, 2, 3, 64, 10**12)]
    at("calculator")
    for a, n in grid[:: 4 if matrix else 2]:
        A = double([[float(x) for x in row.split()] for row in (matrix or "-1 0; 0 -1").split(";")])
        size = torch.linalg.matrix_norm(A, 2).item()
        radius = math.sqrt(a / size) if matrix else 1.7
        A = A if matrix else A * a / radius**2
        scene = {"n": n, "radius": radius, "values": 0.6, "causal": causal}
        state = scene_in(page, "calculator", scene | {"norm": a / radius**2, "matrix": matrix})
        for kind in ("upper", "lower"):
            for name, value in state[kind].items():
                truth = bound_of(kind, name, scene, A)
                if name == "pulled" and len(A) > 2:  # the direction aside is a choice
                    assert value == pytest.approx(truth, abs=0.5)
                else:
                    assert value == pytest.approx(truth, abs=1e-6, rel=1e-9), (name, a, n)
        assert state["best"] == min(state["upper"].values())
        assert max(state["lower"].values()) <= state["best"] + 1e-12
        wanted = {"masked", "moments"} if causal else {"unified", "sharp", "published"}
        wanted |= {"maskedRate" if causal else "rate"} if matrix else set()
        assert wanted <= state["upper"].keys() and page.locator(".live-best:visible").count() == 2
        if a == 3.0 and not causal and not matrix:
            ends = [int(math.exp(state["stop"]) * share) for share in (0.95, 1.05)]
            size = {"radius": radius, "norm_a": state["norm"], "norm_v": 1.0}
            reached = [bounds.unified_upper_sharp(n=n, **size) for n in ends]
            limit = bounds.unified_upper_sharp(**size)
            assert reached[0] < 0.9 * limit < reached[1]


def test_a_matrix_that_is_none_is_named(at, page):
    for text in ("1 2", "1 2; 3", "a b; c d", "0 0; 0 0"):
        state = at("calculator", matrix=text)
        assert shown(page, "fault").startswith("A: expected") and "rate" not in state["upper"]


@pytest.fixture
def measured(anew, page):
    """Give the tool a file; return what it finds."""
    anew("head")

    def go(text: str) -> dict:
        page.locator("textarea").fill(text)
        page.wait_for_function("(s => s.norm || s.fault)(live.head.state())")
        return page.evaluate("live.head.state()")

    return go


def heads():
    """Heads with masks and biases, each with tokens and a name."""
    draw = torch.Generator().manual_seed(5)
    random = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64)  # noqa: E731
    for n, d, k, p in [(1, 3, 2, 2), (2, 1, 1, 1), (6, 4, 3, 2), (12, 5, 5, 9), (24, 16, 4, 4)]:
        seen = (random(n, n) > 0) | torch.eye(n, dtype=torch.bool)
        hidden = random(n, n).masked_fill(~seen, -math.inf)
        for options in ({}, {"causal": True}, {"mask": seen}, {"bias": hidden, "causal": True}):
            options |= {"query_bias": random(1, k), "value_bias": random(1, p)}
            parts = random(1, k, d), random(1, k, d), random(1, p, d)
            yield Attention(*parts, **options), (2 if n < 24 else 9) * random(n, d)


def test_head(measured, page, tmp_path):
    """σ, its bracket, the terms and the shares of the tokens, for the files that the package writes."""
    for layer, X in heads():
        export_head(layer, X, tmp_path / "head.json")
        state = measured((tmp_path / "head.json").read_text(encoding="utf8"))
        dense = torch.func.jacrev(layer)(X).reshape(-1, X.numel())
        truth = torch.linalg.matrix_norm(dense, 2).item()
        assert state["norm"] == about(truth) and state["lower"] <= truth <= state["upper"]
        assert 1 < state["upper"] / state["lower"] < 1 + 1e-3
        r = local_lipschitz(layer, X, tol=1e-10)
        terms = [state["terms"][name] for name in ("mixing", "ownQuery", "keys")]
        assert sum(terms) == about(truth)
        answered, pushed = (part.square().tolist() for part in r.by_token())
        if (
            torch.linalg.svdvals(dense)[1:2].sum() < 0.999 * truth
        ):  # else there are many worst pushes
            assert state["pushed"] == pytest.approx(pushed, abs=1e-3)
            assert state["answered"] == pytest.approx(answered, abs=1e-3)
            assert terms == pytest.approx(r.by_term().tolist(), abs=1e-3 * truth)
        known = {"sigma": truth, "local_upper": bounds.local_upper(layer, X).item()}
        assert {name: state["known"][name] for name in known} == about(known)


def test_the_certificate_is_the_packages(anew):
    """From the same start the bracket is the same, where it is wide and where it is narrow."""
    page, draw = anew("head"), torch.Generator().manual_seed(0)
    J = torch.randn(40, 30, generator=draw, dtype=torch.float64)
    run = "([M, start, tol]) => arithmetic.largest(arithmetic.matrix(M), {tol, start})"
    start = torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for tol in (0.3, 1e-2, 1e-6):
        mine, r = (
            page.evaluate(run, [J.tolist(), (start / start.norm()).tolist(), tol]),
            spectral_norm(J, tol=tol),
        )
        assert mine["upper"] == about(r.upper.item()) and mine["value"] == about(r.value.item())
        assert mine["products"] == r.iterations


GOOD = {"X": [[1, 0], [0, 1]], "A": [[1, 2], [0, 1]], "V": [[1, 0], [0, 1]]}
BAD = {
    "no JSON": "The file", "[1]": "The file", '{"X": 3}': "X", '{"X": [[1, 2], [3]]}': "X",
    json.dumps(GOOD | {"A": [[1, 2]]}): "A", json.dumps(GOOD | {"V": [[1]]}): "V",
    json.dumps({"X": [[1, 2]], "W_Q": [[1, 2]]}): "W_K", json.dumps(GOOD | {"mask": [[1]]}): "mask",
    json.dumps(GOOD | {"mask": [[1, 0], [0, 0]]}): "mask, bias", json.dumps(GOOD | {"b_Q": [1]}): "b_Q",
    json.dumps(GOOD | {"causal": 1}): "causal", json.dumps(GOOD | {"words": ["a"]}): "words",
    json.dumps(GOOD | {"bias": [["a", 0], [0, 0]]}): "bias", json.dumps(GOOD | {"scale": "x"}): "scale",
}  # fmt: skip


def test_a_bad_file_gets_one_line(measured, page):
    for text, name in BAD.items():
        fault = measured(text)["fault"]
        assert fault.startswith(f"{name}: expected") and "\n" not in fault, fault
        assert shown(page, "fault") == fault and not page.locator(".live-found").is_visible()
    f = head([1, 2, 0, 1])
    assert measured(json.dumps(GOOD))["norm"] == about(sigma(f, EYE))


def test_a_file_is_opened_and_nothing_is_sent(measured, page, tmp_path):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    (tmp_path / "head.json").write_text(
        json.dumps(GOOD | {"words": ["<b>", "two"]}), encoding="utf8"
    )
    page.locator("input[type=file]").set_input_files(tmp_path / "head.json")
    page.wait_for_function("live.head.state().n === 2")
    assert page.locator(".live-text").inner_text().split() == ["<b>", "two"] and asked == []


# --- gestures, the same for all ----------------------------------------------------------------

MOVED = {  # what the first thing with a hand on it moves, to the right; the sink has none
    "attention": "tokens[0][0]", "teaser": "tokens[0][0]", "two-points": "p",
    "jacobian": "tokens[0][0]", "crowd": "nudge[0]", "ties": "tokens[0][0]",
    "mask": "order.indexOf(0)", "sink": None, "calculator": None, "head": None,
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_every_picture_follows_every_hand(anew, name):
    """Mouse and keyboard move the same handle, every slider moves, and the address keeps the scene."""
    page, key = anew(name), NUMBER.get(name, "norm")
    state = f"JSON.stringify({STATE.format(name)})"
    address, before = page.url, page.evaluate(state)
    if MOVED[name]:
        handle = page.locator("svg [tabindex='0']").first
        box = handle.locator(".live-dot").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 30, y - 20, steps=4)
        page.mouse.up()
        dragged = page.evaluate(state)
        assert dragged != before, "it stays where it was"
        page.mouse.move(x + 60, y)
        assert page.evaluate(state) == dragged, "it follows after it was let go"
        place = f"live['{name}'].state().{MOVED[name]}"
        handle.focus()
        old = page.evaluate(place)
        page.keyboard.press("ArrowRight")
        assert page.evaluate(place) > old, "the keyboard does not move it"
    if name == "attention":
        scene_in(page, name, {"family": "general"})  # of all kinds, the one with every slider
    for slider in page.locator("input[type=range]:visible").all():
        slider.focus()
        seen = []
        for press in ("Home", *["ArrowRight"] * 3, "End"):
            page.keyboard.press(press)
            seen.append(slider.input_value())
            words = page.locator(".live-words").inner_text()
            assert not re.search(r"NaN|undefined|Infinity|-0", words), words
        assert len(set(seen)) == 5, (slider.get_attribute("name"), seen)
    if name == "calculator":
        for field, text in {"n": "10^6", "a": "8", "radius": "2"}.items():
            page.locator(f"[name={field}]").fill(text)
        assert page.evaluate("(s => [s.n, s.norm, s.a])(live.calculator.state())") == [1e6, 8, 32]
    if name == "head":
        page.locator("[value=minilm]").click()
        page.wait_for_function("live.head.state().n === 10")
    if name == "teaser":
        assert page.url == address, "the first page keeps its address"
        return
    told = shown(page, key)
    kept = "decodeURIComponent(location.hash.slice(6))"  # what follows "#live="
    page.wait_for_function(f"""() => {{
        const now = live['{name}'].state();
        return location.hash && Object.entries(JSON.parse({kept})).every(
            ([key, value]) => JSON.stringify(now[key]) === JSON.stringify(value));
    }}""")
    scene = page.url[page.url.index("#") :]
    assert shown(anew(name, scene), key) == told
    if page.locator("[value=reset]").count():
        page.locator("[value=reset]").click()
        assert page.evaluate(state) == before, "it does not go back to its start"
    for broken in ("#live=[1,2", '#live={"tokens":3,"p":"x","family":7,"order":"x","push":1}'):
        anew(name, broken)
        assert page.locator(f"#live-{name}").is_visible() and number(shown(page, key)) > 0


def test_nothing_moves_by_itself_where_that_is_not_wanted(anew, page):
    """Elsewhere a button starts it."""
    playing = []
    for name in SHARED:
        page.emulate_media(reduced_motion="reduce")
        anew(name)
        assert page.locator("[value=play]:visible").count() == 0, name
        durations = page.locator(".live *").evaluate_all(
            "all => all.map((e) => getComputedStyle(e).transitionDuration)"
        )
        assert set(durations) == {"0s"}, name
        page.emulate_media(reduced_motion="no-preference")
        anew(name)
        if page.locator("[value=play]:visible").count():
            before = page.evaluate(f"JSON.stringify({STATE.format(name)})")
            page.locator("[value=play]").click()
            page.wait_for_function(f"b => JSON.stringify({STATE.format(name)}) !== b", arg=before)
            playing.append(name)
    assert playing == ["crowd", "sink", "ties"]
