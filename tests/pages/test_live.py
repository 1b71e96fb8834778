"""The live pictures: the same numbers as the package, for every hand, and none of them needed to read the page."""

import cmath
import io
import math
import random
import re
import sys
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from checker import PHONE, Watched, check
from PIL import Image
from test_pages import HTML, ROOT, built

sys.path.insert(0, str(ROOT / "book" / "_ext"))
from book_build.dictionary import style_sheet
from book_build.live import compact, scripts

from lipcore import Attention, bounds, local_lipschitz
from lipcore.adversarial import worst_case_inputs
from lipcore.measures import TwoDirac

pytestmark = pytest.mark.usefixtures("no_errors")

LIMIT = 15_000  # bytes of script a page
TOLERANCE = 1e-6
PAGES = {
    "attention": "notebooks/live_attention.html",
    "two-points": "notebooks/live_two_points.html",
}
HOOKS = {name: f"live['{name}']" for name in PAGES}
NUMBERS = {"attention": "norm", "two-points": "constant"}  # what the picture is about
STATE = "(({{ rows, by, ...state }}) => state)({}.state())"  # without what only the scripts need
MOVED = {"attention": "tokens[0][0]", "two-points": "p"}  # where its first handle is

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
    (1e-9, 0.2, 2.0), (0.9, 1.4, 1.1), (0.999, 1.8, 1.3), (4e-6, 1.7, 1.9), (0.07, 0.2, 2.0), (2e-4, 2.0, 1.0),
]  # fmt: skip


@pytest.fixture(scope="module")
def opened(browser, site):
    """One page for each live picture, without faults at the end."""
    watched = {
        name: Watched(browser, site, formulas=False).open(f"{site}/{page}")
        for name, page in PAGES.items()
    }
    yield {name: w.page for name, w in watched.items()}
    faults = [fault for w in watched.values() for fault in w.faults]
    for w in watched.values():
        w.context.close()
    assert faults == []


def scene_in(page, name: str, change: dict) -> dict:
    """Change the scene of a live picture; return what it knows afterwards."""
    hook = HOOKS[name]
    return page.evaluate(
        f"(change) => {{ {hook}.set(change); return {STATE.format(hook)}; }}", change
    )


def state_of(page, name: str):
    return page.evaluate(STATE.format(HOOKS[name]))


def shown(page, name: str) -> str:
    return page.locator(f"[data-show={name}]").first.inner_text()


def number(text: str) -> float:
    """The number that a displayed text stands for: 0.0200, 1,234 or 1.2×10⁻³."""
    plain = text.translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−", "0123456789--"))
    return float(plain.replace(",", "").replace("×10", "e"))


def same(text: str, value: float) -> bool:
    """Whether a displayed number is the value, to the digits displayed."""
    digits = len(re.sub(r"^0\.0*|\D", "", text.partition("×")[0]))
    return abs(number(text) / value - 1) <= 0.51 * 10 ** (1 - min(digits, 3))


def double(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def laid_out(state: dict) -> torch.Tensor:
    """All n tokens of a scene, copies one after another."""
    return torch.cat([double([[x, y]]).expand(int(c), 2) for x, y, c in state["tokens"]])


def attention_of(state: dict) -> Attention:
    A = double(state["A"]).reshape(2, 2)
    return Attention.from_matrices(A, torch.eye(2).double(), causal=state["causal"])


@pytest.fixture(params=SCENES)
def scene(request, opened) -> dict:
    """What the live picture knows of a scene."""
    return scene_in(opened["attention"], "attention", {**PLAIN, **SCENES[request.param]})


def test_the_constant_and_the_worst_nudge_are_those_of_the_package(opened, scene):
    J = attention_of(scene).jacobian(laid_out(scene))
    truth = torch.linalg.matrix_norm(J.dense(), 2).item()
    assert scene["norm"] == pytest.approx(truth, rel=TOLERANCE)
    assert same(shown(opened["attention"], "norm"), truth)
    h = double(scene["h"])
    assert h.norm().item() == pytest.approx(1, rel=TOLERANCE)
    assert J.matvec(h).norm().item() == pytest.approx(truth, rel=TOLERANCE), "not the worst nudge"
    assert torch.allclose(J.matvec(h), double(scene["response"]), atol=TOLERANCE * truth)


def test_the_weights_are_those_of_the_package(scene):
    counts = [int(c) for *_, c in scene["tokens"]]
    last = torch.tensor(counts).cumsum(0) - 1
    rows = attention_of(scene).weights(laid_out(scene))[0][last]  # of the last copy of each token
    P = torch.stack([part.sum(-1) for part in rows.split(counts, dim=-1)], dim=-1)
    assert torch.allclose(double(scene["P"]), P, rtol=TOLERANCE, atol=1e-12)


def test_the_bounds_are_those_of_the_package(opened, scene):
    X = laid_out(scene)
    norm_a = torch.linalg.matrix_norm(double(scene["A"]).reshape(2, 2), 2).item()
    size = {"radius": scene["radius"], "norm_a": norm_a, "norm_v": 1.0}
    causal = scene["causal"]
    truth = {
        "local": bounds.local_upper(attention_of(scene), X).item(),
        "ball": (bounds.masked_upper if causal else bounds.unified_upper)(n=len(X), **size),
        "any": bounds.masked_upper(n=10**40, **size) if causal else bounds.mean_field_upper(**size),
        "published": bounds.general_upper(n=len(X), **size),
    }
    assert scene["bounds"] == pytest.approx(truth, rel=TOLERANCE)
    assert all(same(shown(opened["attention"], key), value) for key, value in truth.items())
    assert (X.norm(dim=1) <= scene["radius"] * (1 + 1e-12)).all(), "a token is outside the ball"


def test_the_kinds_of_a_are_what_they_are_called(opened):
    kinds = {}
    for family in ("away", "alike", "symmetric", "antisymmetric", "rotation", "general"):
        change = {"family": family, "strength": 1.5, "turn": 40, "second": 0.3}
        state = scene_in(opened["attention"], "attention", change)
        kinds[family] = double(state["A"]).reshape(2, 2)
    eye = torch.eye(2).double()
    assert torch.allclose(kinds["away"], -1.5 * eye)
    assert torch.allclose(kinds["alike"], 1.5 * eye)
    assert torch.allclose(kinds["symmetric"], kinds["symmetric"].T)
    assert torch.allclose(kinds["antisymmetric"], -kinds["antisymmetric"].T, atol=1e-6)
    assert torch.allclose(kinds["rotation"].T @ kinds["rotation"], 2.25 * eye, atol=1e-6)
    assert torch.allclose(torch.linalg.svdvals(kinds["general"]), double([1.5, 0.45]))


@pytest.mark.parametrize(
    ("family", "strength"), [("away", 1), ("alike", 2.5), ("antisymmetric", 1.5), ("symmetric", 1)]
)
def test_the_worst_pair_is_nearly_as_bad_as_the_package_finds(opened, family, strength):
    page = opened["attention"]
    start = {"tokens": [[0, 0, 1], [1, 0, 15]], "radius": 1.6, "second": -0.5, "causal": False}
    scene_in(page, "attention", {**start, "family": family, "strength": strength})
    page.get_by_role("button", name="Worst pair").click()
    state = state_of(page, "attention")
    worst = worst_case_inputs(double(state["A"]).reshape(2, 2), 16, 1.6)
    assert state["n"] == 16
    assert state["norm"] > 0.8 * local_lipschitz(attention_of(state), worst).value.item()


def test_the_words_say_what_copying_does(opened):
    page = opened["attention"]
    scene_in(page, "attention", {**PLAIN, **SCENES["symmetric"]})
    assert (
        "multiplies the number by 1.00, however often" in page.locator(".live-words").inner_text()
    )
    part = {**SCENES["copies that part"], "tokens": [[1.3, -0.7, 1], [-1.2, 0.1, 44]]}
    once = scene_in(page, "attention", {**PLAIN, **part})
    assert "copies can part" in page.locator(".live-words").inner_text()
    twice = {"tokens": [[x, y, 2 * c] for x, y, c in once["tokens"]]}
    doubled = scene_in(page, "attention", twice)
    assert once["copied"] == pytest.approx(doubled["norm"], rel=TOLERANCE)
    assert doubled["norm"] > once["norm"] * 1.01


@pytest.mark.parametrize(("p", "radius", "gamma"), POINTS)
def test_two_points_have_the_numbers_of_the_package(opened, p, radius, gamma):
    page = opened["two-points"]
    state = scene_in(page, "two-points", {"p": p, "radius": radius, "gamma": gamma})
    pair = TwoDirac(p, radius, gamma)
    lowest = min(-2 * gamma * radius**2 - 6, math.log(1e-9))
    masses = torch.sigmoid(torch.linspace(lowest, 0, 200_001).double())
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
    assert all(same(shown(page, key), truth[key]) for key in ("constant", "meanField"))


def test_the_experiments_do_what_the_page_says(opened):
    page = opened["attention"]
    page.get_by_role("button", name="Set it up").first.click()
    first = state_of(page, "attention")["tokens"][0]
    told = page.locator(".live-try-root").inner_text()
    for copies in (1, 16, 64, 256):
        found = scene_in(page, "attention", {"tokens": [first, [1.5, 0, copies]]})["norm"]
        assert f"{found:.2f}" in told


def scene_of_copies(page, copies: int) -> dict:
    """One token at the left, and at the right another with its copies."""
    tokens = [[-1.2, 0.5, 1], [1, 0.5, copies]]
    return scene_in(page, "attention", {**PLAIN, "family": "away", "tokens": tokens, "radius": 1.5})


def rays(page, name: str) -> list[tuple[complex, complex]]:
    """Where each arrow of a path starts, and its vector."""
    path = page.locator(f"#live-attention .live-{name}").get_attribute("d")
    found = re.findall(r"M(\S+) (\S+)m(\S+) (\S+)l(\S+) (\S+)l", path)
    numbers = [[float(v) for v in values] for values in found]
    return [(complex(a + c, -b - d), complex(e, -f)) for a, b, c, d, e, f in numbers]


def painted(page, selector: str) -> int:
    """How many pixels of the picture have the colour of an element's lines."""
    colour = page.locator(selector).evaluate("e => getComputedStyle(e).stroke")
    wanted = [int(v) for v in re.findall(r"\d+", colour)[:3]]
    shot = page.locator("#live-attention svg").screenshot()
    pixels = torch.from_numpy(np.array(Image.open(io.BytesIO(shot)).convert("RGB"))).int()
    return ((pixels - torch.tensor(wanted)).abs().amax(-1) < 60).sum().item()


@pytest.mark.parametrize("copies", [1, 27, 256])
def test_copies_that_answer_alike_are_seen_as_many(opened, copies):
    page = opened["attention"]
    state = scene_of_copies(page, copies)
    one = state["response"][-1]
    scale = max(math.hypot(*v) for v in state["h"] + state["response"])
    answers = rays(page, "answer")[-copies:]
    lengths = [abs(ray) for _, ray in answers]
    assert len(rays(page, "answer")) - copies <= 1, "the answer of A, where it is seen"
    assert lengths == pytest.approx([0.6 * math.hypot(*one) / scale] * copies, abs=2e-3)
    middle = sum(ray for _, ray in answers)
    assert math.remainder(cmath.phase(middle) - math.atan2(one[1], one[0]), math.tau) == (
        pytest.approx(0, abs=0.02)
    ), "the middle of the fan is not the answer"
    tips = [start + ray for start, ray in answers]
    least = min((abs(a - b) for a, b in pairwise(tips)), default=1)
    assert least > (0.03 if copies < 100 else 0.0005), "two arrows lie on each other"
    token = complex(*state["tokens"][1][:2])
    assert copies == 1 or min(abs(tip - token) for tip in tips) > 0.16, "hidden by the token"
    counts = page.locator("#live-attention .live-answer-count").all_text_contents()
    assert counts == ([f"×{copies}"] if copies > 1 else [])


def test_many_answers_are_a_mark_on_the_screen(opened):
    """Though each of the 256 is shorter than that of a single copy."""
    page, seen = opened["attention"], {}
    for copies in (1, 27, 256):
        scene_of_copies(page, copies)
        seen[copies] = painted(page, "#live-attention .live-answer")
    assert seen[27] > 3 * seen[1]
    assert seen[256] > 3 * seen[1]


@pytest.mark.parametrize("name", ["two points, far apart", "symmetric", "one token", "masked"])
def test_the_bars_are_as_long_as_the_nudge_and_the_answer(opened, name):
    page = opened["attention"]
    state = scene_in(page, "attention", {**PLAIN, **SCENES[name]})
    nudge, answer = (
        page.locator(f"#live-attention .live-{bar}-bar").bounding_box()["width"]
        for bar in ("nudge", "answer")
    )
    assert answer / nudge == pytest.approx(state["norm"], rel=0.02)
    whole = page.locator("#live-attention .live-lengths").bounding_box()["width"]
    assert max(answer, nudge) == pytest.approx(whole, rel=0.02)


def any_scene(chance: random.Random) -> dict:
    """Tokens anywhere, some of them close together, and any options."""
    centres = [[chance.uniform(-1.5, 1.5), chance.uniform(-1.5, 1.5)] for _ in range(2)]
    spread = chance.choice([0, 0.05, 0.3, 1.5])
    tokens = [
        [x + chance.uniform(-spread, spread), y + chance.uniform(-spread, spread),
         chance.choice([1, 1, 2, 5, 27, 256])]
        for x, y in chance.choices(centres, k=chance.randint(1, 8))
    ]  # fmt: skip
    return {
        "tokens": tokens, "chosen": chance.randrange(len(tokens)), "causal": chance.random() < 0.2,
        "radius": chance.uniform(0.2, 1.6), "strength": chance.choice([0, chance.uniform(0, 2.5)]),
        "family": chance.choice(["away", "alike", "symmetric", "antisymmetric", "general"]),
        "turn": chance.uniform(0, 360), "second": chance.uniform(-1, 1),
    }  # fmt: skip


def any_points(chance: random.Random) -> dict:
    """A mass, a radius and a size, often at their ends."""
    return {
        "p": chance.choice([1e-9, 0.5, 0.999, 10 ** chance.uniform(-9, -0.3)]),
        "radius": chance.choice([0.2, 2, chance.uniform(0.2, 2)]),
        "gamma": chance.choice([0, 0.05, 2, chance.uniform(0, 2)]),
    }


ANY = {"attention": any_scene, "two-points": any_points}


def overlaps(page, selector: str) -> list[str]:
    """Pairs of visible texts of which one covers part of the other."""
    boxes = page.locator(selector).evaluate_all(
        """texts => texts.filter(e => getComputedStyle(e).opacity > 0).map((e) => {
            const {left, right, top, bottom} = e.getBoundingClientRect(), slack = (bottom - top) / 8;
            return [e.textContent, left, right, top + slack, bottom - slack];
        })"""
    )
    return [
        f"{a[0]} and {b[0]}"
        for a, b in combinations(boxes, 2)
        if a[1] < b[2] and b[1] < a[2] and a[3] < b[4] and b[3] < a[4]
    ]


@pytest.mark.parametrize("name", PAGES)
def test_labels_do_not_collide(opened, name):
    chance = random.Random(0)
    texts = {"attention": ".live-notes text", "two-points": "svg text"}[name]
    for _ in range(40):
        scene = ANY[name](chance)
        scene_in(opened[name], name, scene)
        assert overlaps(opened[name], f"#live-{name} {texts}") == [], scene


def test_labels_of_tokens_that_meet_do_not_collide_on_a_phone(phone, site):
    page = phone.open(f"{site}/{PAGES['attention']}").page
    for apart in (0, 0.02, 0.1, 0.2):
        tokens = [[apart * i, 0.1 * apart * i, 1 + i] for i in range(8)]
        scene_in(page, "attention", {**PLAIN, "family": "away", "tokens": tokens})
        assert overlaps(page, "#live-attention .live-notes text") == []


BOUNDED = {
    "attention": ("norm", ("local", "ball", "any", "published")),
    "two-points": ("constant", ("peak", "sharp", "meanField", "published")),
}


@pytest.mark.parametrize("name", PAGES)
def test_no_value_stands_beside_a_bound_that_it_exceeds(opened, name):
    chance = random.Random(1)
    value, limits = BOUNDED[name]
    light = [{"p": 1e-9, "radius": r, "gamma": 2} for r in (0.2, 0.25, 0.4)]
    extra = {"attention": [], "two-points": light}[name]
    for scene in extra + [ANY[name](chance) for _ in range(40)]:
        scene_in(opened[name], name, scene)
        shows = {key: number(shown(opened[name], key)) for key in (value, *limits)}
        assert all(shows[value] <= shows[limit] for limit in limits), (scene, shows)
        words = opened[name].locator(f"#live-{name} .live-words").inner_text()
        for limit in re.findall(r"no mass does more than ([\d.,]+\d)", words):
            assert shows[value] <= number(limit), (scene, words)
        for share in re.findall(r"([\d.,]+)\s% of what is proved", words):
            assert number(share) <= 100, (scene, words)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("p", [1e-9, 0.02, 0.5])
def test_no_scores_read_well(opened, name, p):
    page = opened[name]
    none = {"strength": 0, "gamma": 0, "p": p}
    scene_in(page, name, {**PLAIN, **none} if name == "attention" else {**none, "radius": 1.5})
    assert shown(page, {"attention": "strength", "two-points": "gamma"}[name]) == "0"
    assert shown(page, NUMBERS[name]) == "1.00"
    words = page.locator(f"#live-{name} .live-words").inner_text()
    assert not re.search(r"10⁰|NaN|undefined|Infinity|-0|0\.0 ", words), words
    if name == "two-points":
        assert "With γ = 0 all scores are equal" in words
        assert not page.locator(".live-tick-name").evaluate("e => +e.getAttribute('opacity')")


SLIDERS = {
    "attention": ("copies", "radius", "strength", "turn", "second"),
    "two-points": ("mass", "radius", "gamma"),
}


@pytest.mark.parametrize(("name", "slider"), [(n, s) for n in PAGES for s in SLIDERS[n]])
def test_the_arrow_keys_move_every_slider(opened, name, slider):
    """From either end, one step at a time, and what it says changes with it."""
    page = opened[name]
    if name == "attention":
        scene_of_copies(page, 16)
        scene_in(page, name, {"family": "general", "chosen": 1})
    handle = page.locator(f"#live-{name} input[name={slider}]")
    handle.focus()
    for end, step in [("Home", "ArrowRight"), ("End", "ArrowLeft")]:
        page.keyboard.press(end)
        seen = [shown(page, slider)]
        for _ in range(6):
            page.keyboard.press(step)
            seen.append(shown(page, slider))
        assert len(set(seen)) == 7, f"{step} from {end}: {seen}"


def test_every_slider_is_in_the_tests(opened):
    for name, page in opened.items():
        ranges = page.locator(f"#live-{name} input[type=range]")
        assert tuple(ranges.evaluate_all("all => all.map((e) => e.name)")) == SLIDERS[name]


def test_the_words_tell_how_many_answers_make_up_the_number(opened):
    page = opened["attention"]
    state = scene_of_copies(page, 27)
    words = page.locator("#live-attention .live-words").inner_text()
    each = number(re.search(r"Each of the 27 copies of B answers (\S+) times", words)[1])
    assert "√27 times" in words
    assert math.sqrt(27) * each == pytest.approx(state["norm"], rel=0.01)
    scene_of_copies(page, 1)
    assert "copies of B" not in page.locator("#live-attention .live-words").inner_text()


def centre(locator) -> tuple[float, float]:
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_dragging_with_the_mouse(in_tex, site):
    page = in_tex.open(f"{site}/{PAGES['attention']}").page
    before = state_of(page, "attention")["tokens"]
    number = shown(page, "norm")
    token = page.locator(".live-token").nth(1).locator(".live-dot")
    token.scroll_into_view_if_needed()
    x, y = centre(token)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 60, y + 30, steps=4)
    page.mouse.up()
    page.mouse.move(x + 200, y, steps=2)  # let go: nothing follows any more
    after = state_of(page, "attention")["tokens"]
    assert after[1][0] < before[1][0] - 0.2
    assert after[1][1] < before[1][1] - 0.1
    assert after[0] == before[0]
    assert shown(page, "norm") != number
    assert centre(token) == pytest.approx((x - 60, y + 30), abs=1.5), "it is not under the pointer"
    assert in_tex.faults == []


@pytest.mark.parametrize(
    ("name", "read", "way"),
    [("attention", "tokens[0][1]", (0, 1)), ("two-points", "p", (-1, 0))],
)
def test_dragging_with_a_finger(browser, site, name, read, way):
    watched = Watched(browser, site, viewport=PHONE, has_touch=True, is_mobile=True)
    page = watched.open(f"{site}/{PAGES[name]}").page
    handle = page.locator(f"#live-{name} svg [tabindex='0']").first
    handle.scroll_into_view_if_needed()
    box = handle.locator(".live-touch").bounding_box()
    assert min(box["width"], box["height"]) >= 36, "too small for a finger"
    before = page.evaluate(f"{HOOKS[name]}.state().{read}")
    scrolled = page.evaluate("scrollY")
    start = centre(handle.locator(".live-dot"))
    touch = page.context.new_cdp_session(page)
    for kind, far in [("Start", 0), ("Move", 20), ("Move", 40), ("Move", 60), ("End", None)]:
        at = (
            []
            if far is None
            else [{k: c + far * w for k, c, w in zip("xy", start, way, strict=True)}]
        )
        touch.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": at})
    page.wait_for_function(f"before => {HOOKS[name]}.state().{read} < before", arg=before)
    moved = centre(handle.locator(".live-dot"))
    followed = sum((m - s) * w for m, s, w in zip(moved, start, way, strict=True))
    assert followed == pytest.approx(60, abs=3), "it does not follow the finger"
    assert page.evaluate("scrollY") == scrolled, "the page moved under the finger"
    watched.context.close()


def reach(page, handle) -> None:
    """Press Tab until a handle has the focus."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if handle.evaluate("e => e === document.activeElement"):
            return
    pytest.fail("the keyboard does not reach it")


@pytest.mark.parametrize("name", PAGES)
def test_the_keyboard_alone(in_tex, site, name):
    page = in_tex.open(f"{site}/{PAGES[name]}").page
    handle = page.locator(f"#live-{name} svg [tabindex='0']").first
    reach(page, handle)
    assert handle.evaluate("e => e.matches(':focus-visible')")
    ring = handle.locator(".live-touch").evaluate("e => getComputedStyle(e).stroke")
    assert ring != "none", "the focus is not seen"
    # in the units of the picture three pixels would cover the page
    assert handle.evaluate("e => getComputedStyle(e).outlineStyle") == "none"
    place = f"Math.round(1e4 * {HOOKS[name]}.state().{MOVED[name]})"
    start = page.evaluate(place)
    label = handle.evaluate("e => e.outerHTML")
    page.keyboard.press("ArrowRight")
    one = page.evaluate(place)
    page.keyboard.press("Shift+ArrowRight")
    assert one > start and page.evaluate(place) - one > 3 * (one - start)
    assert handle.evaluate("e => e.outerHTML") != label, "its name does not tell where it is"
    words = page.locator(f"#live-{name} .live-words").inner_text()
    status = f"#live-{name} [role=status]"
    told = "([status, words]) => document.querySelector(status).textContent === words"
    page.wait_for_function(told, arg=[status, words])
    assert in_tex.faults == []


@pytest.mark.parametrize("name", PAGES)
def test_it_starts_as_the_figure_and_its_controls_change_it(in_tex, site, name):
    """What the package worked out when the page was executed is in the prose."""
    page = in_tex.open(f"{site}/{PAGES[name]}").page
    assert page.locator(f"#live-{name}").is_visible()
    assert not page.locator(f"figure[id=fig-live-{name}]").is_visible(), "it steps aside"
    told = page.locator("article p").filter(has_text=re.compile("^At the start")).inner_text()
    states = [state_of(page, name)]
    assert f"{states[0][NUMBERS[name]]:.3f}" in told
    tries = page.get_by_role("button", name="Set it up")
    assert tries.count() == 3
    for index in range(3):
        tries.nth(index).click()
        states.append(state_of(page, name))
    page.locator(f"#live-{name} [name=radius]").focus()
    page.keyboard.press("ArrowLeft")
    states.append(state_of(page, name))
    assert len({str(state) for state in states}) == 5
    page.get_by_role("button", name="Reset").click()
    assert state_of(page, name) == states[0]
    assert in_tex.faults == []


@pytest.mark.parametrize("name", PAGES)
def test_the_address_keeps_the_scene(in_tex, site, name):
    page = in_tex.open(f"{site}/{PAGES[name]}").page
    assert "#live" not in page.url, "the address changes by itself"
    number = scene_in(page, name, {"radius": 0.85})[NUMBERS[name]]
    page.wait_for_url("**#live=*")
    copied = page.url
    page.evaluate("location.hash = 'exercises'")
    page.wait_for_timeout(600)
    assert page.url.endswith("#exercises"), "other anchors are overwritten"
    kept = state_of(in_tex.renew().open(copied).page, name)
    assert (kept["radius"], kept[NUMBERS[name]]) == pytest.approx((0.85, number), rel=1e-9)
    for broken in ("#live=", "#live=[1,2", '#live={"tokens":3,"p":"x","family":7}'):
        page.goto("about:blank")
        in_tex.open(f"{site}/{PAGES[name]}{broken}")
        assert page.locator(f"#live-{name}").is_visible()
    assert in_tex.faults == []


@pytest.mark.parametrize("name", PAGES)
def test_without_scripts_a_figure_stands_there(browser, site, name):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}/{PAGES[name]}")
    still = page.locator(f"figure[id=fig-live-{name}] img:visible")
    assert still.count() == 1 and still.bounding_box()["width"] > 300
    assert not page.locator(f"#live-{name}").is_visible()
    assert page.get_by_role("button", name="Set it up").count() == 0
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_it_works_on_a_phone_and_from_a_file(phone, name):
    page = phone.open((HTML / PAGES[name]).as_uri()).page
    scene_in(page, name, {"radius": 1.3})
    page.wait_for_url("**#live=*")
    assert page.locator(f"#live-{name} svg").bounding_box()["width"] > 300
    assert phone.faults + check(page, "width") == []


@pytest.mark.parametrize("name", PAGES)
def test_the_scripts_are_small_and_only_on_their_page(name):
    loaded = re.findall(r"<script[^>]+src=\"[^\"]*(live[^\"?]*)", built(PAGES[name]))
    assert loaded == scripts([name])
    assert sum((HTML / "_static" / script).stat().st_size for script in loaded) < LIMIT
    pages = {p: p.read_text(encoding="utf8") for p in HTML.rglob("*.html")}
    users = [str(p.relative_to(HTML)) for p, text in pages.items() if loaded[-1] in text]
    assert users == [PAGES[name]]


def test_a_script_is_made_smaller_without_a_change_of_what_it_does():
    script = "// One.\nconst a = 'http://x'; // two\n\tconst b = 3;\n\n\t// three\nb / a;\n"
    assert compact(script) == "const a = 'http://x';const b = 3;b / a;"


TEASER = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Teaser</title>
<meta name="viewport" content="width=device-width"><style>{style}</style>
<body>{markup}{scripts}</body></html>"""


@pytest.fixture(scope="module")
def teaser(tmp_path_factory) -> str:
    """The address of a page with nothing but the small picture."""
    style = style_sheet() + (ROOT / "book/_static/live.css").read_text(encoding="utf8")
    sources = [(ROOT / "book/_static" / s).read_text(encoding="utf8") for s in scripts(["teaser"])]
    assert sum(len(compact(source).encode()) for source in sources) < LIMIT
    page = TEASER.format(
        style=style,
        markup=(ROOT / "book/_live/teaser.html").read_text(encoding="utf8"),
        scripts="".join(f"<script>{compact(source)}</script>" for source in sources),
    )
    path = tmp_path_factory.mktemp("teaser") / "teaser.html"
    path.write_text(page, encoding="utf8")
    return path.as_uri()


def drawn(page) -> list[float]:
    """The arrows of the small picture, and its number."""
    paths = [
        page.locator(f"#live-teaser .live-{k}").get_attribute("d") for k in ("nudge", "answer")
    ]
    text = " ".join([*paths, shown(page, "norm")])
    return [float(v) for v in re.findall(r"-?\d*\.?\d+", text)]


def test_the_small_picture_has_the_numbers_of_the_package(browser, teaser):
    page = browser.new_page()
    page.goto(teaser)
    chance = random.Random(2)
    for _ in range(6):
        tokens = [[chance.uniform(-1, 1), chance.uniform(-1, 1), k] for k in (1, 9, 4, 1)]
        page.evaluate("tokens => live.teaser.set({tokens})", tokens)
        state = page.evaluate(STATE.format("live.teaser"))
        f = Attention.from_matrices(-torch.eye(2).double(), torch.eye(2).double())
        truth = torch.linalg.matrix_norm(f.jacobian(laid_out(state)).dense(), 2).item()
        assert state["norm"] == pytest.approx(truth, rel=TOLERANCE)
        assert same(shown(page, "norm"), truth)
        assert overlaps(page, "#live-teaser .live-notes text") == []
    page.close()


def test_the_small_picture_is_still_where_scripts_are_off(browser, teaser):
    """And it is the scene with which the script begins."""
    with browser.new_context(java_script_enabled=False) as still, browser.new_context() as moving:
        pages = [context.new_page() for context in (still, moving)]
        for page in pages:
            page.goto(teaser)
        assert drawn(pages[0]) == pytest.approx(drawn(pages[1]), abs=2e-3)
        assert all(page.locator("#live-teaser svg").is_visible() for page in pages)
        assert [page.locator("#live-teaser .live-hands").is_visible() for page in pages] == [
            False,
            True,
        ]
        assert [page.locator("#live-teaser [tabindex]").count() for page in pages] == [0, 4]


def test_the_small_picture_follows_every_hand(browser, teaser):
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(teaser)
    address, start = page.url, drawn(page)
    token = page.locator("#live-teaser .live-token").first
    reach(page, token)
    page.keyboard.press("ArrowRight")
    by_key = drawn(page)
    assert by_key != start
    x, y = centre(token.locator(".live-dot"))
    touch = context.new_cdp_session(page)
    for kind, far in [("Start", 0), ("Move", 30), ("End", None)]:
        at = [] if far is None else [{"x": x, "y": y + far}]
        touch.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": at})
    page.wait_for_function("y => live.teaser.state().tokens[0][1] < y", arg=0.3)
    assert drawn(page) != by_key
    page.wait_for_function("document.querySelector('#live-teaser [role=status]').textContent")
    assert page.locator("#live-teaser [role=status]").inner_text().startswith("The answer is")
    assert page.url == address, "the first page keeps its address"
    assert page.locator("#live-teaser svg").bounding_box()["width"] > 300
    context.close()
