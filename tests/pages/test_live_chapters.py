"""The live pictures of the chapters, each on a small page of its own: the package's numbers, for every hand.

They need no built book.
"""

import json
import math
import re

import pytest
import torch
from book_build.dictionary import style_sheet
from book_build.live import SHARED, compact, markup, scripts
from checker import PHONE
from test_live import (
    LIMIT,
    STATE,
    TEASER,
    TOLERANCE,
    centre,
    double,
    number,
    overlaps,
    reach,
    same,
    shown,
)
from test_pages import ROOT

from lipcore import Attention
from lipcore.bounds import large_radius
from lipcore.lab.sink import TOKENS
from lipcore.measures import TwoDirac

pytestmark = pytest.mark.usefixtures("no_errors")

NAMES = ("jacobian", "crowd", "ties", "mask", "sink")
NUMBERS = {"jacobian": "norm", "crowd": "norm", "ties": "norm", "mask": "norm", "sink": "constant"}
EYE = torch.eye(2).double()


@pytest.fixture(scope="module")
def addresses(tmp_path_factory) -> dict[str, str]:
    """For each picture, the address of a page with nothing else."""
    style = ":root { --pst-color-link: #0a7d91; }"  # what the theme brings
    style += style_sheet() + (ROOT / "book/_static/live.css").read_text(encoding="utf8")
    folder, found = tmp_path_factory.mktemp("live"), {}
    for name in SHARED:
        sources = [(ROOT / "book/_static" / s).read_text(encoding="utf8") for s in scripts([name])]
        page = TEASER.format(
            style=style,
            markup=markup(ROOT, name),
            scripts="".join(f"<script>{compact(source)}</script>" for source in sources),
        )
        path = folder / f"{name}.html"
        path.write_text(page, encoding="utf8")
        found[name] = path.as_uri()
    return found


@pytest.fixture(scope="module")
def opened(browser, addresses, errors):
    """A page for each picture, with no error when it starts."""
    errors.clear()
    pages = {name: browser.new_page() for name in SHARED}
    for name, page in pages.items():
        page.goto(addresses[name])
    assert errors == []
    yield pages
    for page in pages.values():
        page.close()


@pytest.fixture(scope="module")
def windows(browser):
    """A window of each kind, for all tests: a new one costs a third of a second."""
    kinds = {
        "desktop": {},
        "phone": {"viewport": PHONE, "has_touch": True, "is_mobile": True},
        "still": {"java_script_enabled": False},
    }
    pages = {kind: browser.new_context(**options).new_page() for kind, options in kinds.items()}
    yield pages
    for page in pages.values():
        page.context.close()


@pytest.fixture
def anew(windows, addresses):
    """Open the page of a picture as if nobody had touched it."""

    def go(name: str, kind: str = "desktop", scene: str = ""):
        page = windows[kind]
        page.goto("about:blank")
        page.mouse.move(0, 0)
        page.goto(addresses[name] + scene)
        return page

    return go


def scene_in(page, name: str, change: dict) -> dict:
    hook = f"live['{name}']"
    return page.evaluate(
        f"change => {{ {hook}.set(change); return {STATE.format(hook)}; }}", change
    )


def head(gamma_turn, **options) -> Attention:
    return Attention.from_matrices(double(gamma_turn).reshape(2, 2), EYE, **options)


def sigma(f: Attention, X: torch.Tensor) -> float:
    return torch.linalg.matrix_norm(f.jacobian(X).dense(), 2).item()


PUSHES = {
    "the start": {},
    "no scores": {"strength": 0},
    "sharp": {"strength": 1.5, "chosen": 3, "push": [-0.4, 0.1]},
    "small": {"chosen": 0, "push": [0.03, -0.08]},
    "two tokens in one place": {
        "tokens": [[1, 0.2, 1], [1, 0.2, 1], [-0.9, 1, 1], [0, -1.5, 1], [0.3, 0.3, 1]],
        "chosen": 2, "strength": 1, "push": [0.9, 0.9],
    },
}  # fmt: skip


@pytest.mark.parametrize("push", PUSHES)
def test_the_pieces_of_the_derivative(opened, push):
    page = opened["jacobian"]
    page.get_by_role("button", name="Reset").click()
    state = scene_in(page, "jacobian", PUSHES[push])
    X = double(state["tokens"])[:, :2]
    j, h, A = state["chosen"], double(state["push"]), double(state["A"]).reshape(2, 2)
    f, H = head(state["A"]), torch.zeros(len(X), 2).double()
    H[j] = h
    J, P = f.jacobian(X), f.weights(X)[0]
    off = X[j] - P @ X
    spread = (X - (P @ X)[j]).T @ (P[j, :, None] * (X - (P @ X)[j]))
    truth = {
        "mixing": P @ H,
        "keys": P[:, j, None] * off * (X @ A.T @ h)[:, None],
        "own": torch.zeros(len(X), 2).double(),
    }
    truth["own"][j] = spread @ A @ h
    for name, piece in truth.items():
        assert torch.allclose(double(state["pieces"][name]), piece, atol=TOLERANCE), name
        assert state["ratios"][name] == pytest.approx(
            (piece.norm() / h.norm()).item(), abs=TOLERANCE
        )
    assert torch.allclose(double(state["answer"]), J.matvec(H), atol=TOLERANCE)
    assert torch.allclose(double(state["outputs"]), f(X), atol=TOLERANCE)
    assert torch.allclose(double(state["real"]), f(X + H), atol=TOLERANCE)
    assert state["norm"] == pytest.approx(sigma(f, X), rel=TOLERANCE)
    column = J.dense()[:, 2 * j : 2 * j + 2]
    assert state["column"] == pytest.approx(
        torch.linalg.matrix_norm(column, 2).item(), rel=TOLERANCE
    )
    assert same(shown(page, "norm"), state["norm"])


def test_the_worst_direction_of_a_token_is_answered_most(opened):
    page = opened["jacobian"]
    page.get_by_role("button", name="Reset").click()
    page.get_by_role("button", name="Worst direction").click()
    state = scene_in(page, "jacobian", {})
    assert state["ratios"]["answer"] == pytest.approx(state["column"], rel=TOLERANCE)
    before = number(shown(page, "off"))
    page.get_by_role("button", name="Halve the push").click()
    assert number(shown(page, "off")) < 0.75 * before, "the derivative is no better for less"


@pytest.mark.parametrize("a", [0.5, 1.5, 3.0])
@pytest.mark.parametrize("count", [1, 2, 11, 97, 4096])
def test_the_crowd(opened, count, a):
    state = scene_in(opened["crowd"], "crowd", {"count": count, "a": a, "nudge": [0.2, -0.3]})
    X = double([[-1, 0]] + [[1, 0]] * count)
    if count < 100:
        f = head([-a, 0, 0, -a])
        assert state["norm"] == pytest.approx(sigma(f, X), rel=TOLERANCE)
        H = torch.zeros(count + 1, 2).double()
        H[0] = double(state["nudge"])
        answers = f.jacobian(X).matvec(H)[1:]
        assert torch.allclose(answers, double(state["answer"]).expand_as(answers), atol=TOLERANCE)
        assert state["all"] == pytest.approx((answers.norm() / H.norm()).item(), rel=TOLERANCE)
        assert state["weight"] == pytest.approx(f.weights(X)[0, -1, 0].item(), rel=TOLERANCE)
    else:
        pair = TwoDirac(1 / (count + 1), 1.0, a)
        parts = (pair.constant, pair.transverse_constant, pair.own_query[1])
        assert state["norm"] == pytest.approx(max(v.item() for v in parts), rel=TOLERANCE)
    assert same(shown(opened["crowd"], "norm"), state["norm"])
    assert state["limit"] == pytest.approx(math.exp(2 * a))


def test_the_growth_of_the_crowd_ends_near_the_tick(opened):
    for a in (1.5, 2.0, 3.0):
        found = {k: scene_in(opened["crowd"], "crowd", {"count": k, "a": a}) for k in
                 sorted({round(2 ** (i / 4)) for i in range(49)})}  # fmt: skip
        top = max(found, key=lambda k: found[k]["norm"])
        assert 1 < top / math.exp(2 * a) < 4
        told = {k: s["norm"] for k, s in found.items()}
        assert all(
            told[k] > told[j] for j, k in zip(told, list(told)[1:], strict=False) if k <= top
        )


PLACES = {
    "the start": {},
    "small": {"t": 0.3},
    "large": {"t": 10},
    "between": {"t": 3.7, "tokens": [[1.2, 0.3, 1], [0.1, 0.9, 1], [-1, 0.4, 1],
                                     [0.3, -0.2, 1], [-0.5, -1.1, 1], [0.8, -0.7, 1]]},
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_tokens_that_grow(opened, place):
    page = opened["ties"]
    page.get_by_role("button", name="Reset").click()
    state = scene_in(page, "ties", PLACES[place])
    X, f = double(state["tokens"])[:, :2], head([0.6, -0.8, 0.8, 0.6])
    assert state["norm"] == pytest.approx(sigma(f, state["t"] * X), rel=TOLERANCE)
    assert torch.allclose(double(state["P"]), f.weights(state["t"] * X)[0], atol=TOLERANCE)
    law = large_radius(X, double([[0.6, -0.8], [0.8, 0.6]]), EYE)
    assert state["q"] == law.most_attended.int().item()
    assert state["looks"] == law.weights.argmax(-1).tolist()
    assert same(shown(page, "norm"), state["norm"])


def test_a_token_on_a_border_stays_torn(opened):
    page = opened["ties"]
    page.get_by_role("button", name="Reset").click()
    chosen = scene_in(page, "ties", {"t": 10})["chosen"]
    page.get_by_role("button", name="Move the chosen token onto a border").click()
    state = scene_in(page, "ties", {})
    assert 0 <= state["gaps"][chosen] < 1e-9
    near = scene_in(page, "ties", {"t": 5})["norm"]
    assert state["norm"] / near == pytest.approx(4, rel=0.05), "it does not grow like t²"
    assert "grows for ever" in page.locator(".live-words").inner_text()


def test_the_map_has_the_colour_of_the_key_that_is_listened_to(opened):
    page = opened["ties"]
    page.get_by_role("button", name="Reset").click()
    state = scene_in(page, "ties", {"t": 10})
    for (x, y, _), key in zip(state["tokens"], state["looks"], strict=True):
        seen, wanted = page.evaluate(
            """([x, y, name]) => {
                const c = document.querySelector("#live-ties canvas"), pen = c.getContext("2d");
                const at = (v) => Math.floor((v / 1.6 + 1) / 2 * c.width);
                const hex = getComputedStyle(c).getPropertyValue("--colour-" + name).trim();
                const wanted = [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
                return [[...pen.getImageData(at(x), at(-y), 1, 1).data].slice(0, 3), wanted];
            }""",
            [x, y, ("first", "second", "third", "fourth", "fifth", "sixth")[key]],
        )
        assert seen == pytest.approx(wanted, abs=40)


ORDERS = {
    "the start": {},
    "last": {"order": [1, 2, 3, 4, 5, 6, 7, 0]},
    "no scores": {"gamma": 0},
    "all at zero": {"values": [0] * 8},
    "steep": {"gamma": 2, "order": [3, 1, 0, 2, 7, 6, 5, 4], "values": [-1.4, 1, 0.2, -0.7, 0.4, 1.3, -1.2, 0.9]},
}  # fmt: skip


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_the_mask(opened, order, causal):
    page = opened["mask"]
    page.get_by_role("button", name="Reset").click()
    state = scene_in(page, "mask", {**ORDERS[order], "causal": causal})
    values = [state["values"][token] for token in state["order"]]
    X, gamma = double([[v, 0] for v in values]), state["gamma"]
    masked, plain = (head([-gamma, 0, 0, -gamma], causal=c) for c in (True, False))
    assert state["masked"] == pytest.approx(sigma(masked, X), rel=TOLERANCE)
    assert state["plain"] == pytest.approx(sigma(plain, X), rel=TOLERANCE)
    f = masked if causal else plain
    assert state["norm"] == state["masked" if causal else "plain"]
    assert torch.allclose(double(state["P"]), f.weights(X)[0], atol=TOLERANCE)
    assert torch.allclose(double(state["outputs"]), f(X), atol=TOLERANCE)
    h = double(state["h"])
    assert f.jacobian(X).matvec(h).norm().item() == pytest.approx(state["norm"], rel=TOLERANCE)
    assert sum(state["nudged"]) == pytest.approx(1) == pytest.approx(sum(state["answered"]))


def test_the_odd_token_counts_most_where_it_comes_first(opened):
    page = opened["mask"]
    page.get_by_role("button", name="Reset").click()
    scene_in(page, "mask", {"chosen": 0})
    found = {}
    for place in ("last", "first"):
        page.get_by_role("button", name=f"The chosen one {place}").click()
        found[place] = scene_in(page, "mask", {})
    assert found["last"]["order"][-1] == found["first"]["order"][0] == 0
    assert found["first"]["masked"] > 1.5 * found["last"]["masked"]
    assert found["first"]["plain"] == pytest.approx(found["last"]["plain"], rel=TOLERANCE)
    page.get_by_role("button", name="All at zero").click()
    assert scene_in(page, "mask", {})["plain"] == pytest.approx(1)
    page.get_by_text("Causal mask").click()
    assert scene_in(page, "mask", {})["causal"] is False


@pytest.mark.parametrize("n", [2, 3, 10, 31, TOKENS])
def test_the_sink_is_the_one_that_is_stored(opened, n):
    """That the stored one is the package's, tests/lipcore/lab/test_sink.py says."""
    page = opened["sink"]
    stored = json.loads((ROOT / "book/_live/sink.json").read_text(encoding="utf8"))
    state = scene_in(page, "sink", {"n": n})
    P = torch.zeros(n, n).double()
    for i, row in enumerate(stored["weights"][:n]):
        P[i, : i + 1] = double(row)
    assert state["received"][:n] == pytest.approx(P.sum(0).tolist(), rel=TOLERANCE)
    assert state["received"][n:] == [0] * (TOKENS - n)
    assert state["norm"] == stored["norms"][n - 1]
    assert state["norm"] == pytest.approx(torch.linalg.matrix_norm(P, 2).item(), rel=TOLERANCE)
    assert state["constant"] == stored["constants"][n - 1]
    words = page.locator("#live-sink .live-text").inner_text().split()
    assert words == [word.strip() for word in stored["words"]]
    assert page.locator("#live-sink .live-unread").count() == TOKENS - n
    bars = page.locator("#live-sink .live-read i").evaluate_all(
        "all => all.map(e => e.offsetHeight)"
    )
    assert bars[0] == max(bars) == pytest.approx(7 * 16 * P[:, 0].sum().item() / TOKENS, abs=1)


@pytest.mark.parametrize("name", NAMES)
def test_the_scripts_are_small(name):
    sources = [(ROOT / "book/_static" / s).read_text(encoding="utf8") for s in scripts([name])]
    # without comments and indentation
    lines = [re.sub(r"\s+// .*", "", line.strip()) for text in sources for line in text.split("\n")]
    assert sum(len(s.encode()) + 1 for s in lines if s and not s.startswith("//")) < LIMIT


HANDLES = {  # the first thing with a hand on it, and what it moves: to the right, and up
    "jacobian": ("tokens[0][0]", "tokens[0][1]"),
    "crowd": ("nudge[0]", "nudge[1]"),
    "ties": ("tokens[0][0]", "tokens[0][1]"),
    "mask": ("order.indexOf(0)", "values[0]"),
}


@pytest.mark.parametrize("name", HANDLES)
def test_the_keyboard_alone(anew, name):
    page = anew(name)
    handle = page.locator(f"#live-{name} svg [tabindex='0']").first
    reach(page, handle)
    ring = handle.locator(".live-touch").evaluate("e => getComputedStyle(e).stroke")
    assert ring != "none", "the focus is not seen"
    places = [f"live['{name}'].state().{place}" for place in HANDLES[name]]
    label = handle.get_attribute("aria-label")
    for key, place, way in [("ArrowRight", places[0], 1), ("ArrowDown", places[1], -1)]:
        if name == "mask" and way < 0:  # it stands at the lower end
            key, way = "ArrowUp", 1
        before = page.evaluate(place)
        page.keyboard.press(key)
        assert (page.evaluate(place) - before) * way > 0, key
    assert handle.get_attribute("aria-label") != label, "its name does not tell where it is"
    page.wait_for_function(f"document.querySelector('#live-{name} [role=status]').textContent")


def test_the_push_is_turned_with_the_keyboard(anew):
    page = anew("jacobian")
    tip = page.locator("#live-jacobian .live-tip")
    reach(page, tip)
    before = page.evaluate("live.jacobian.state().push")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Shift+ArrowDown")
    after = page.evaluate("live.jacobian.state().push")
    assert [a - b for a, b in zip(after, before, strict=True)] == pytest.approx([-0.05, -0.25])


@pytest.mark.parametrize("name", HANDLES)
def test_a_finger(anew, name):
    page = anew(name, "phone")
    handle = page.locator(f"#live-{name} svg [tabindex='0']").first
    box = handle.locator(".live-touch").bounding_box()
    assert min(box["width"], box["height"]) >= 34, "too small for a finger"
    place = f"live['{name}'].state().{HANDLES[name][1]}"
    before = page.evaluate(place)
    x, y = centre(handle.locator(".live-dot"))
    touch = page.context.new_cdp_session(page)
    for kind, far in [("Start", 0), ("Move", -10), ("Move", -25), ("End", None)]:
        at = [] if far is None else [{"x": x, "y": y + far}]
        touch.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": at})
    page.wait_for_function(f"before => {place} > before", arg=before)
    assert page.evaluate("scrollY") == 0, "the page moved under the finger"


def test_a_token_is_dragged_along_the_order(anew):
    page = anew("mask")
    token = page.locator("#live-mask .live-token").nth(0).locator(".live-dot")
    others = [page.locator("#live-mask .live-token").nth(i).locator(".live-dot") for i in (3, 4)]
    (x, y), (u, _), (v, _) = centre(token), *map(centre, others)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move((u + v) / 2 + 5, y, steps=5)
    page.mouse.up()
    assert page.evaluate("live.mask.state().order") == [1, 2, 3, 4, 0, 5, 6, 7]


@pytest.mark.parametrize("name", sorted({*SHARED} - {"sink"}))
def test_a_mouse_drags_something_in_every_picture(anew, name):
    page = anew(name)
    handle = page.locator(f"#live-{name} svg [tabindex='0']").first
    x, y = centre(handle.locator(".live-dot"))
    before = handle.evaluate("e => e.outerHTML")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 30, y - 20, steps=4)
    page.mouse.up()
    assert handle.evaluate("e => e.outerHTML") != before, "it stays where it was"


def test_a_push_is_dragged(anew):
    page = anew("jacobian")
    tip = page.locator("#live-jacobian .live-tip .live-touch")
    x, y = centre(tip)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 60, y + 10, steps=4)
    page.mouse.up()
    assert centre(tip) == pytest.approx((x - 60, y + 10), abs=2), "it is not under the pointer"


SLIDERS = {
    "jacobian": ["strength"], "crowd": ["crowd", "a"], "ties": ["scale"], "mask": ["gamma"], "sink": ["n"],
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_slider_changes_the_number(opened, name):
    page = opened[name]
    page.locator(f"#live-{name} [value=reset]").click()
    ranges = page.locator(f"#live-{name} input[type=range]")
    assert ranges.evaluate_all("all => all.map((e) => e.name)") == SLIDERS[name]
    for slider in SLIDERS[name]:
        page.locator(f"#live-{name} [name={slider}]").focus()
        page.keyboard.press("Home")
        seen = {shown(page, NUMBERS[name])}
        for _ in range(5):
            for _ in range(4):
                page.keyboard.press("ArrowRight")
            seen.add(shown(page, NUMBERS[name]))
        assert len(seen) > 3, slider
        for end in ("Home", "End"):
            page.keyboard.press(end)
            text = page.locator(f"#live-{name} .live-words").inner_text()
            assert not re.search(r"NaN|undefined|Infinity|-0", text), text


@pytest.mark.parametrize("name", ["crowd", "ties", "sink"])
def test_play_runs_to_the_end_and_stops_at_a_hand(browser, addresses, name):
    page = browser.new_page()
    page.clock.install()
    page.goto(addresses[name])
    slider = page.locator(f"#live-{name} input[type=range]").first
    button = page.locator(f"#live-{name} [value=play]")
    place = "Array.from(document.querySelectorAll('input[type=range]'))[0].value"
    slider.focus()
    page.keyboard.press("Home")
    start = float(page.evaluate(place))
    assert button.inner_text() == "Play"
    button.click()
    page.wait_for_function(f"start => {place} > start", arg=start)
    assert button.inner_text() == "Pause"
    button.click()
    stopped = page.evaluate(place)
    page.wait_for_timeout(200)
    assert page.evaluate(place) == stopped and button.inner_text() == "Play"
    button.click()
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert button.inner_text() == "Play", "it runs on under another hand"
    button.click()
    page.clock.fast_forward(10_000)  # it takes six seconds, or eight
    page.wait_for_function("document.querySelector('[value=play]').textContent === 'Play'")
    assert float(page.evaluate(place)) == float(slider.get_attribute("max"))
    page.close()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_moves_by_itself_where_that_is_not_wanted(anew, windows, name):
    windows["desktop"].emulate_media(reduced_motion="reduce")
    page = anew(name)
    assert page.locator("[value=play]:visible").count() == 0
    durations = page.locator(".live *").evaluate_all(
        "all => all.map((e) => getComputedStyle(e).transitionDuration)"
    )
    page.emulate_media(reduced_motion="no-preference")
    assert set(durations) == {"0s"}


@pytest.mark.parametrize("name", NAMES)
def test_it_fits_a_phone_and_is_hidden_without_scripts(anew, name):
    page = anew(name, "phone")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.locator(f"#live-{name} svg").first.bounding_box()["width"] > 300
    assert overlaps(page, f"#live-{name} .live-chart text") == []
    assert not anew(name, "still").locator(f"#live-{name}").is_visible()


@pytest.mark.parametrize("name", NAMES)
def test_the_address_keeps_the_scene(anew, name):
    page = anew(name)
    assert "#" not in page.url, "the address changes by itself"
    slider = page.locator(f"#live-{name} input[type=range]").last
    slider.focus()
    page.keyboard.press("ArrowRight")
    told = shown(page, NUMBERS[name])
    page.wait_for_url("**#live=*")
    scene = page.url[page.url.index("#") :]
    assert shown(anew(name, scene=scene), NUMBERS[name]) == told
    for broken in (
        "#live=",
        "#live=[1,2",
        '#live={"tokens":3,"order":"x","n":7,"push":1,"nudge":2}',
    ):
        anew(name, scene=broken)
        assert page.locator(f"#live-{name}").is_visible()
        assert number(shown(page, NUMBERS[name])) > 0


@pytest.mark.parametrize("name", ["attention", "teaser"])
def test_no_count_lies_across_an_arrow(opened, name):
    """At the start, the numbers of copies stand clear of the arrows."""
    hit = opened[name].evaluate(
        """() => {
            const points = [...document.querySelectorAll(".live-nudge, .live-answer")].flatMap((path) => {
                const far = path.getTotalLength();
                return Array.from({length: 2000}, (_, i) => path.getPointAtLength(far * i / 2000));
            });
            const hit = (text) => {
                const {x, y, width, height} = text.getBBox();
                return points.some((p) =>
                    p.x > x + 0.02 && p.x < x + width - 0.02 && p.y > y + 0.03 && p.y < y + height - 0.03);
            };
            return [...document.querySelectorAll(".live-notes text")].filter(hit).map((t) => t.textContent);
        }"""
    )
    assert hit == []


def test_whoever_runs_no_scripts_sees_a_figure_made_by_the_package():
    """One that steps aside for the live picture, or one before it in its section that says the same."""
    for path in sorted((ROOT / "notebooks").glob("*.md")):
        text = path.read_text(encoding="utf8")
        for name in re.findall(r"^```\{live\} (\S+)", text, re.MULTILINE):
            assert name in SHARED, path.name
            before, _, after = text.partition(f"{{live}} {name}")
            section = before.rpartition("\n## ")[2]
            aside = f"name: fig-live-{name}\n" in after
            assert aside or "\n    name: fig-" in section, path.name
