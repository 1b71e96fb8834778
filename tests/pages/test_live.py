"""The live pictures: the numbers of the package, and the same gestures in each.

Every picture stands on a small page of its own, so that no built book is needed.
"""

import json
import math
import re

import pytest
import torch
from book_build.figures import style_sheet
from book_build.live import SHARED, markup, scripts
from test_pages import ROOT

from lipcore import Attention, bounds, local_lipschitz
from lipcore.adversarial import worst_case_inputs
from lipcore.bounds import large_radius
from lipcore.measures import TwoDirac

LIMIT = 24_000  # bytes of script a picture
TOLERANCE = 1e-6
NUMBER = {"two-points": "constant", "sink": "constant"}  # what a picture is about, if not "norm"
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


FOUR = {"tokens": [[0.3, -0.8, 1], [-0.9, 0.4, 9], [0.2, 1, 4], [1, 1, 1]]}


@pytest.mark.parametrize("scene", [{}, FOUR])
def test_teaser(at, page, scene):
    state = at("teaser", **scene)
    truth = sigma(head([-1, 0, 0, -1]), laid_out(state))
    assert state["norm"] == about(truth) and same(shown(page, "norm"), truth)


def test_the_teaser_is_as_good_without_scripts(browser, addresses):
    """Its markup holds what the script draws at the start."""
    seen = []
    for scripted in (False, True):
        with browser.new_context(java_script_enabled=scripted) as context:
            page = context.new_page()
            page.goto(addresses["teaser"])
            drawn = [page.locator(f".live-{k}").get_attribute("d") for k in ("nudge", "answer")]
            text = " ".join([*drawn, shown(page, "norm")])
            seen.append([float(v) for v in re.findall(r"-?\d*\.?\d+", text)])
            page.close()
    assert seen[0] == pytest.approx(seen[1], abs=2e-3)


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


# --- gestures, the same for all ----------------------------------------------------------------

MOVED = {  # what the first thing with a hand on it moves, to the right; the sink has none
    "attention": "tokens[0][0]", "teaser": "tokens[0][0]", "two-points": "p",
    "jacobian": "tokens[0][0]", "crowd": "nudge[0]", "ties": "tokens[0][0]",
    "mask": "order.indexOf(0)", "sink": None,
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
