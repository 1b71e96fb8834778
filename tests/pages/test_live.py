"""The live pictures: the same numbers as the package, for every hand, and none of them needed to read the page."""

import re
from pathlib import Path

import pytest
import torch
from checker import PHONE, TYPESET, Watched, check_width

from lipcore import Attention, bounds, local_lipschitz
from lipcore.adversarial import worst_case_inputs
from lipcore.measures import TwoDirac

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
LIMIT = 15_000  # bytes of script a page
TOLERANCE = 1e-6
PAGES = {
    "attention": "notebooks/live_attention.html",
    "two-points": "notebooks/live_two_points.html",
}
HOOKS = {"attention": "liveAttention", "two-points": "liveTwoPoints"}

SCENES = {
    "two points, far apart": {"tokens": [[-1, 0, 1], [1, 0, 63]], "radius": 1, "family": "away", "strength": 1.5},
    "one token": {"tokens": [[0.4, -0.3, 1]], "radius": 0.5, "family": "alike", "strength": 2},
    "all equal": {"tokens": [[0.5, 0.5, 3], [0.5, 0.5, 4]], "radius": 1.2, "family": "rotation", "turn": 35},
    "copies that part": {
        "tokens": [[1.3, -0.7, 5], [-1.2, 0.1, 219]],
        "radius": 1.6, "family": "general", "strength": 2.5, "turn": 300, "second": 0.9,
    },
    "eight tokens": {
        "tokens": [[0.9, 0.1, 1], [0.2, 0.8, 2], [-0.7, 0.4, 3], [-0.5, -0.6, 1],
                   [0.3, -0.9, 9], [0, 0, 5], [0.6, 0.6, 1], [-1, 0.2, 7]],
        "radius": 1.1, "family": "general", "strength": 1.7, "turn": 250, "second": -0.4,
    },
    "symmetric": {
        "tokens": [[1.2, 0.3, 2], [-0.4, 1.1, 1], [-0.8, -0.9, 5]],
        "radius": 1.4, "family": "symmetric", "strength": 1.3, "second": -0.55,
    },
    "antisymmetric": {
        "tokens": [[1.0, 0, 1], [0, 1.2, 30], [-0.5, -0.8, 1]],
        "radius": 1.3, "family": "antisymmetric", "strength": 2.5,
    },
    "masked, in one place": {"tokens": [[0.6, 0.4, 128]], "radius": 1, "family": "away", "causal": True},
    "masked": {
        "tokens": [[-1.3, 0.2, 1], [0.8, 0.9, 20], [1.1, -0.6, 33], [0.1, -1, 4]],
        "radius": 1.5, "family": "away", "strength": 1.1, "causal": True,
    },
    "masked, rotation": {
        "tokens": [[0.5, 0.2, 2], [-0.3, 0.9, 1], [0.7, -0.7, 3], [-0.9, -0.1, 1], [0, 0.4, 6]],
        "radius": 1.6, "family": "rotation", "strength": 2.4, "turn": 120, "causal": True,
    },
    "masked, steep": {
        "tokens": [[-1.6, 0, 1], [1.6, 0, 100]],
        "radius": 1.6, "family": "symmetric", "strength": 2.5, "second": 0.3, "causal": True,
    },
    "small ball": {"tokens": [[3, 3, 1], [-3, 1, 2], [0.1, 0, 1]], "radius": 0.2, "family": "alike", "strength": 0.5},
}  # fmt: skip
PLAIN = {"strength": 1, "turn": 0, "second": 1, "causal": False}

POINTS = [
    (0.5, 1.0, 1.0), (0.02, 1.5, 1.0), (1e-8, 2.0, 2.0), (1e-3, 1.2, 2.0), (0.3, 0.5, 0.4),
    (0.9, 1.4, 1.1), (0.999, 1.8, 1.3), (4e-6, 1.7, 1.9), (0.07, 0.2, 2.0), (2e-4, 2.0, 1.0),
]  # fmt: skip


@pytest.fixture(scope="module")
def opened(browser, site):
    """One page for each live picture, without faults at the end."""
    watched = {name: Watched(browser, site).open(f"{site}/{page}") for name, page in PAGES.items()}
    yield {name: w.page for name, w in watched.items()}
    faults = [fault for w in watched.values() for fault in w.faults]
    for w in watched.values():
        w.context.close()
    assert faults == []


def scene_in(page, hook: str, change: dict) -> dict:
    return page.evaluate(f"(change) => {{ {hook}.set(change); return {hook}.state(); }}", change)


def shown(page, name: str) -> str:
    return page.locator(f"[data-show={name}]").first.inner_text()


def same(text: str, value: float) -> bool:
    """Whether a displayed number is the value, to the digits displayed."""
    digits = len(re.sub(r"^0\.0*|\D", "", text))
    return abs(float(text.replace(",", "")) / value - 1) <= 0.51 * 10 ** (1 - min(digits, 3))


def laid_out(state: dict) -> torch.Tensor:
    """All n tokens of a scene, copies one after another."""
    return torch.cat(
        [
            torch.tensor([[x, y]], dtype=torch.float64).expand(int(c), 2)
            for x, y, c in state["tokens"]
        ]
    )


def attention_of(state: dict) -> Attention:
    A = torch.tensor(state["A"], dtype=torch.float64).reshape(2, 2)
    return Attention.from_matrices(A, torch.eye(2, dtype=torch.float64), causal=state["causal"])


@pytest.mark.parametrize("name", SCENES)
def test_the_constant_and_the_worst_nudge_are_those_of_the_package(opened, name):
    state = scene_in(opened["attention"], "liveAttention", {**PLAIN, **SCENES[name]})
    X, f = laid_out(state), attention_of(state)
    J = f.jacobian(X)
    truth = torch.linalg.matrix_norm(J.dense(), 2).item()
    assert state["norm"] == pytest.approx(truth, rel=TOLERANCE)
    assert same(shown(opened["attention"], "norm"), truth)
    h, response = (torch.tensor(state[key], dtype=torch.float64) for key in ("h", "response"))
    assert h.norm().item() == pytest.approx(1, rel=TOLERANCE)
    assert J.matvec(h).norm().item() == pytest.approx(truth, rel=TOLERANCE), (
        "the nudge is not the worst"
    )
    assert torch.allclose(J.matvec(h), response, atol=TOLERANCE * truth)


@pytest.mark.parametrize("name", SCENES)
def test_the_weights_are_those_of_the_package(opened, name):
    state = scene_in(opened["attention"], "liveAttention", {**PLAIN, **SCENES[name]})
    counts = [int(c) for *_, c in state["tokens"]]
    last = torch.tensor(counts).cumsum(0) - 1
    rows = attention_of(state).weights(laid_out(state))[0][last]  # of the last copy of each token
    P = torch.stack([part.sum(-1) for part in rows.split(counts, dim=-1)], dim=-1)
    assert torch.allclose(
        torch.tensor(state["P"], dtype=torch.float64), P, rtol=TOLERANCE, atol=1e-12
    )


@pytest.mark.parametrize("name", SCENES)
def test_the_bounds_are_those_of_the_package(opened, name):
    page = opened["attention"]
    state = scene_in(page, "liveAttention", {**PLAIN, **SCENES[name]})
    X, f = laid_out(state), attention_of(state)
    norm_a = {**PLAIN, **SCENES[name]}["strength"]
    size = {"radius": state["radius"], "norm_a": norm_a, "norm_v": 1.0}
    ball = bounds.masked_upper if state["causal"] else bounds.unified_upper
    truth = {
        "local": bounds.local_upper(f, X).item(),
        "ball": ball(n=len(X), **size),
        "any": bounds.masked_upper(n=10**40, **size)
        if state["causal"]
        else bounds.mean_field_upper(**size),
        "published": bounds.general_upper(n=len(X), **size),
    }
    assert state["bounds"] == pytest.approx(truth, rel=TOLERANCE)
    assert all(same(shown(page, key), value) for key, value in truth.items())
    assert (X.norm(dim=1) <= state["radius"] * (1 + 1e-12)).all(), "a token is outside the ball"


def test_the_kinds_of_a_are_what_they_are_called(opened):
    kinds = {}
    for family in ("away", "alike", "symmetric", "antisymmetric", "rotation", "general"):
        change = {"family": family, "strength": 1.5, "turn": 40, "second": 0.3}
        kinds[family] = (
            torch.tensor(scene_in(opened["attention"], "liveAttention", change)["A"])
            .double()
            .reshape(2, 2)
        )
    eye = torch.eye(2, dtype=torch.float64)
    assert torch.allclose(kinds["away"], -1.5 * eye) and torch.allclose(kinds["alike"], 1.5 * eye)
    assert torch.allclose(kinds["symmetric"], kinds["symmetric"].T)
    assert torch.allclose(kinds["antisymmetric"], -kinds["antisymmetric"].T, atol=1e-6)
    assert torch.allclose(kinds["rotation"].T @ kinds["rotation"], 2.25 * eye, atol=1e-6)
    assert torch.allclose(
        torch.linalg.svdvals(kinds["general"]), torch.tensor([1.5, 0.45], dtype=torch.float64)
    )


@pytest.mark.parametrize(
    ("family", "strength"), [("away", 1), ("alike", 2.5), ("antisymmetric", 1.5), ("symmetric", 1)]
)
def test_the_worst_pair_is_nearly_as_bad_as_the_package_finds(opened, family, strength):
    page = opened["attention"]
    start = {"tokens": [[0, 0, 1], [1, 0, 15]], "radius": 1.6, "second": -0.5, "causal": False}
    scene_in(page, "liveAttention", {**start, "family": family, "strength": strength})
    page.get_by_role("button", name="Worst pair").click()
    state = page.evaluate("liveAttention.state()")
    f = attention_of(state)
    A = torch.tensor(state["A"], dtype=torch.float64).reshape(2, 2)
    known = local_lipschitz(f, worst_case_inputs(A, 16, 1.6)).value.item()
    assert state["n"] == 16
    assert state["norm"] > 0.8 * known


def test_the_words_say_what_copying_does(opened):
    page = opened["attention"]
    scene_in(page, "liveAttention", {**PLAIN, **SCENES["symmetric"]})
    assert "multiplies it by 1.00, however often" in page.locator(".live-words").inner_text()
    state = scene_in(
        page,
        "liveAttention",
        {**SCENES["copies that part"], "tokens": [[1.3, -0.7, 1], [-1.2, 0.1, 44]]},
    )
    assert "copies can part" in page.locator(".live-words").inner_text()
    doubled = scene_in(
        page, "liveAttention", {"tokens": [[x, y, 2 * c] for x, y, c in state["tokens"]]}
    )
    assert state["copied"] == pytest.approx(doubled["norm"], rel=TOLERANCE)
    assert doubled["norm"] > state["norm"] * 1.01


@pytest.mark.parametrize(("p", "radius", "gamma"), POINTS)
def test_two_points_have_the_numbers_of_the_package(opened, p, radius, gamma):
    page = opened["two-points"]
    state = scene_in(page, "liveTwoPoints", {"p": p, "radius": radius, "gamma": gamma})
    pair, a = TwoDirac(p, radius, gamma), gamma * radius**2
    masses = torch.sigmoid(torch.linspace(-2 * a - 6, 0, 200_001, dtype=torch.float64))
    size = {"radius": radius, "norm_a": gamma, "norm_v": 1.0}
    truth = {
        "constant": pair.constant.item(),
        "transverse": pair.transverse_constant.item(),
        "peak": TwoDirac(masses, radius, gamma).constant.max().item(),
        "sharp": bounds.mean_field_upper_sharp(**size),
        "meanField": bounds.mean_field_upper(**size),
        "published": bounds.mean_field_upper_paper(**size),
    }
    assert {key: state[key] for key in truth} == pytest.approx(truth, rel=TOLERANCE)
    assert state["weights"] == pytest.approx(pair.other_weight.tolist(), rel=TOLERANCE)
    assert state["ownQuery"] == pytest.approx(pair.own_query.tolist(), rel=TOLERANCE)
    assert state["matrix"] == pytest.approx(pair.derivative.flatten().tolist(), rel=TOLERANCE)
    at_peak = TwoDirac(state["peakMass"], radius, gamma).constant.item()
    assert at_peak == pytest.approx(truth["peak"], rel=TOLERANCE)
    assert same(shown(page, "constant"), truth["constant"]) and same(
        shown(page, "meanField"), truth["meanField"]
    )


def centre(locator) -> tuple[float, float]:
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_dragging_with_the_mouse(browser, site):
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/{PAGES['attention']}").page
        before, number = page.evaluate("liveAttention.state()"), shown(page, "norm")
        token = page.locator(".live-token").nth(1).locator(".live-dot")
        token.scroll_into_view_if_needed()
        x, y = centre(token)
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 60, y + 30, steps=4)
        page.mouse.up()
        page.mouse.move(x + 200, y, steps=2)  # let go: nothing follows any more
        after = page.evaluate("liveAttention.state()")
        assert after["tokens"][1][0] < before["tokens"][1][0] - 0.2
        assert after["tokens"][1][1] < before["tokens"][1][1] - 0.1
        assert after["tokens"][0] == before["tokens"][0]
        assert shown(page, "norm") != number
        moved = centre(token)
        assert moved == pytest.approx((x - 60, y + 30), abs=1.5), (
            "the token is not under the pointer"
        )
    assert watched.faults == []


@pytest.mark.parametrize(("name", "read"), [("attention", "tokens[0][1]"), ("two-points", "p")])
def test_dragging_with_a_finger(browser, site, name, read):
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(f"{site}/{PAGES[name]}")
    page.evaluate(TYPESET)  # nothing moves any more
    handle = page.locator(f"#live-{name} svg [tabindex='0']").first
    handle.scroll_into_view_if_needed()
    box = handle.locator(".live-touch").bounding_box()
    assert min(box["width"], box["height"]) >= 36, "too small for a finger"
    before, scrolled = page.evaluate(f"{HOOKS[name]}.state().{read}"), page.evaluate("scrollY")
    x, y = centre(handle.locator(".live-dot"))
    way = (0, 1) if name == "attention" else (-1, 0)
    touch = page.context.new_cdp_session(page)
    for kind, far in [
        ("touchStart", 0),
        ("touchMove", 20),
        ("touchMove", 40),
        ("touchMove", 60),
        ("touchEnd", None),
    ]:
        points = [] if far is None else [{"x": x + way[0] * far, "y": y + way[1] * far}]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    page.wait_for_function(f"before => {HOOKS[name]}.state().{read} < before", arg=before)
    moved = centre(handle.locator(".live-dot"))
    along = 0 if way[0] else 1
    assert moved[along] - (x, y)[along] == pytest.approx(60 * way[along], abs=3), (
        "it does not follow the finger"
    )
    assert page.evaluate("scrollY") == scrolled, "the page moved under the finger"
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_the_keyboard_alone(browser, site, name):
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/{PAGES[name]}").page
        handle = page.locator(f"#live-{name} svg [tabindex='0']").first
        for _ in range(60):  # it can be reached
            page.keyboard.press("Tab")
            if handle.evaluate("e => e === document.activeElement"):
                break
        assert handle.evaluate("e => e.matches(':focus-visible')")
        assert (
            handle.locator(".live-touch").evaluate("e => getComputedStyle(e).stroke") != "none"
        ), "focus is not seen"
        # in the units of the picture three pixels would cover the page
        assert handle.evaluate("e => getComputedStyle(e).outlineStyle") == "none"
        place = "tokens[0][0]" if name == "attention" else "p"
        read = f"Math.round(1e4 * {HOOKS[name]}.state().{place})"
        start, label = page.evaluate(read), handle.evaluate("e => e.outerHTML")
        page.keyboard.press("ArrowRight")
        one = page.evaluate(read)
        page.keyboard.press("Shift+ArrowRight")
        assert one > start and page.evaluate(read) - one > 3 * (one - start)
        assert handle.evaluate("e => e.outerHTML") != label, "its name does not tell where it is"
        words = page.locator(f"#live-{name} .live-words").inner_text()
        page.wait_for_function(
            f"() => document.querySelector('#live-{name} [role=status]').textContent"
        )
        assert page.locator(f"#live-{name} [role=status]").inner_text() == words
    assert watched.faults == []


@pytest.mark.parametrize("name", PAGES)
def test_the_controls_and_the_experiments(browser, site, name):
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/{PAGES[name]}").page
        numbers = [page.evaluate(f"JSON.stringify({HOOKS[name]}.state())")]
        tries = page.get_by_role("button", name="Set it up")
        assert tries.count() == 3
        for index in range(3):
            tries.nth(index).click()
            numbers.append(page.evaluate(f"JSON.stringify({HOOKS[name]}.state())"))
        page.locator(f"#live-{name} [name=radius]").focus()
        page.keyboard.press("ArrowLeft")
        numbers.append(page.evaluate(f"JSON.stringify({HOOKS[name]}.state())"))
        assert len(set(numbers)) == 5
        page.get_by_role("button", name="Reset").click()
        assert page.evaluate(f"JSON.stringify({HOOKS[name]}.state())") == numbers[0]
    assert watched.faults == []


def test_the_experiments_do_what_the_page_says(opened):
    page, counts = opened["attention"], [1, 16, 64, 256]
    page.get_by_role("button", name="Set it up").first.click()
    start = page.evaluate("liveAttention.state()")
    found = [
        scene_in(page, "liveAttention", {"tokens": [start["tokens"][0], [1.5, 0, k]]})["norm"]
        for k in counts
    ]
    told = page.locator(".live-try-root").inner_text()
    assert all(f"{value:.2f}" in told for value in found)


@pytest.mark.parametrize("name", PAGES)
def test_the_address_keeps_the_scene(browser, site, name):
    hook, change = HOOKS[name], {"radius": 0.85}
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/{PAGES[name]}").page
        assert "#live" not in page.url, "the address changes by itself"
        state = scene_in(page, hook, change)
        page.wait_for_url("**#live=*")
        copied = page.url
        page.evaluate("location.hash = 'exercises'")
        page.wait_for_timeout(600)
        assert page.url.endswith("#exercises"), "other anchors are overwritten"
        other = watched.context.new_page()
        other.goto(copied)
        kept = other.evaluate(f"{hook}.state()")
        number = "norm" if name == "attention" else "constant"
        assert (kept["radius"], kept[number]) == pytest.approx((0.85, state[number]), rel=1e-9)
        for broken in ("#live=", "#live=[1,2", '#live={"tokens":3,"p":"x","family":7}'):
            page.goto("about:blank")
            watched.open(f"{site}/{PAGES[name]}{broken}")
            assert page.locator(f"#live-{name}").is_visible()
    assert watched.faults == []


@pytest.mark.parametrize("name", PAGES)
def test_without_scripts_a_figure_stands_there(browser, site, name):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}/{PAGES[name]}")
    still = page.locator(f"figure[id=fig-live-{name}] img")
    assert still.is_visible() and still.bounding_box()["width"] > 300
    assert not page.locator(f"#live-{name}").is_visible()
    assert page.get_by_role("button", name="Set it up").count() == 0
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_with_scripts_the_picture_takes_its_place(opened, name):
    assert opened[name].locator(f"#live-{name}").is_visible()
    assert not opened[name].locator(f"figure[id=fig-live-{name}]").is_visible()


@pytest.mark.parametrize("name", PAGES)
def test_it_starts_with_the_scene_of_the_figure(browser, site, name):
    """What the package worked out when the page was executed is in the prose."""
    with Watched(browser, site) as watched:
        page = watched.open(f"{site}/{PAGES[name]}").page
        state = page.evaluate(f"{HOOKS[name]}.state()")
        told = page.locator("article p").filter(has_text=re.compile("^At the start")).inner_text()
        assert f"{state['norm' if name == 'attention' else 'constant']:.3f}" in told


@pytest.mark.parametrize("name", PAGES)
def test_it_works_on_a_phone_and_from_a_file(browser, name):
    page_file = HTML / PAGES[name]
    with Watched(browser, page_file.as_uri(), viewport=PHONE) as watched:
        page = watched.open(page_file.as_uri()).page
        scene_in(page, HOOKS[name], {"radius": 1.3})
        page.wait_for_url("**#live=*")
        assert page.locator(f"#live-{name} svg").bounding_box()["width"] > 300
        assert check_width(page) == []
    assert watched.faults == []


@pytest.mark.parametrize("name", PAGES)
def test_the_script_is_small_and_only_on_its_page(name):
    script = ROOT / "book" / "_static" / f"live-{name}.js"
    assert script.stat().st_size < LIMIT
    pages = {p: p.read_text(encoding="utf8") for p in HTML.rglob("*.html")}
    users = [str(p.relative_to(HTML)) for p, text in pages.items() if script.name in text]
    assert users == [PAGES[name]]
    loaded = re.findall(
        r"<script[^>]+src=\"[^\"]*(live[^\"?]*)", (HTML / PAGES[name]).read_text(encoding="utf8")
    )
    assert loaded == [f"live-{name}.js"]
