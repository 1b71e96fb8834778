"""The book's dictionary of colours: what each stands for, on a light and on a dark page.

This is the only place that names a colour. A figure asks for a role and gets the value for the
light page; the build puts the dark value in place of each light one. So two roles with the same
light value have the same dark value.

Colour is never alone: lines differ in their dashes too, and models in their markers. Within a kind
no two hues are alike, also without red or green cones.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

#: The page that a figure stands on: light, dark.
GROUND = ("#ffffff", "#121212")

_INK = ("#1a1a1a", "#ececec")
_GREY = ("#6e6e6e", "#9c9c9c")
_SLATE = ("#46566b", "#a9b6c8")
_BLUE = ("#1a4fb0", "#4eb0ff")
_ORANGE = ("#ae3714", "#f58a45")
_GREEN = ("#0e9658", "#22d186")
_PURPLE = ("#9f4ded", "#ae66ff")
_AMBER = ("#b48b09", "#f5d04a")
_SKY = ("#219ad9", "#84dbff")
_PINK = ("#c23a97", "#fe8cce")

_DASHED = (0, (6, 2))
_DOTTED = (0, (1, 1.5))
_SPARSE = (0, (1, 3))
_DASH_DOT = (0, (4, 1.5, 1, 1.5))
_LONG = (0, (9, 2, 2, 2))
_SHORT = (0, (3, 2))
_FINE = (0, (2, 2))


class Role(NamedTuple):
    """What a colour stands for, and how it is drawn: a line style and a marker of matplotlib."""

    light: str  # #rrggbb on either ground
    dark: str
    label: str  # what a legend calls it
    kind: str  # the group of roles that it belongs to
    dashes: str | tuple = "-"
    marker: str = ""


#: Every role.
ROLES = {
    "ground": Role(*GROUND, "the page, rims of markers", "page"),
    "ink": Role(*_INK, "text, outlines", "page"),
    "axis": Role("#4d4d4d", "#b4b4b4", "axes", "page"),
    "grid": Role("#e3e3e3", "#303030", "grid", "page"),
    "reference": Role(*_GREY, "reference", "page", _FINE),
    "nudge": Role(*_ORANGE, "nudge", "tokens"),
    "answer": Role(*_GREEN, "answer", "tokens"),
    "tokens": Role(*_SLATE, "tokens", "tokens", marker="o"),
    "mean": Role(*_PURPLE, "mean that a token sees", "tokens", marker="*"),
    "attention": Role(*_BLUE, "attention weight", "tokens"),
    "mixing": Role(*_SKY, "mixing", "terms"),
    "own_query": Role(*_AMBER, "own query", "terms", _DASH_DOT),
    "others_keys": Role(*_PURPLE, "others' keys", "terms", _SHORT),
    "truth": Role(*_INK, "local constant", "bounds", marker="o"),
    "best": Role(*_BLUE, "best bound for the ball", "bounds"),
    "unified": Role(*_BLUE, "unified bound", "bounds"),
    "general": Role(*_PINK, "general bound", "bounds", _DASHED),
    "local": Role(*_SKY, "local bound", "bounds", _DASH_DOT),
    "mean_field": Role(*_PURPLE, "mean-field bound", "bounds", _DOTTED),
    "mean_field_paper": Role(*_PINK, "mean-field bound as published", "bounds", _SPARSE),
    "masked": Role(*_AMBER, "masked bound", "bounds", _LONG),
    "lower": Role(*_GREEN, "lower bound", "bounds", _SHORT),
    "lanczos": Role(*_BLUE, "Lanczos", "methods"),
    "power": Role(*_ORANGE, "power iteration", "methods", _DASHED),
    "certificate": Role(*_GREY, "certificate", "methods", _FINE),
    "minilm": Role(*_BLUE, "MiniLM", "models", marker="o"),
    "smollm2": Role(*_ORANGE, "SmolLM2", "models", marker="^"),
    "vit": Role(*_GREEN, "ViT", "models", marker="s"),
    "whisper": Role(*_PURPLE, "Whisper", "models", marker="D"),
    "enclosed": Role(*_PURPLE, "constant enclosed", "claims"),
    "first": Role(*_BLUE, "first of a series", "series"),
    "second": Role(*_ORANGE, "second of a series", "series"),
    "third": Role(*_GREEN, "third of a series", "series"),
    "fourth": Role(*_PURPLE, "fourth of a series", "series"),
    "fifth": Role(*_AMBER, "fifth of a series", "series"),
    "sixth": Role(*_SKY, "sixth of a series", "series"),
    "seventh": Role(*_PINK, "seventh of a series", "series"),
}

#: Roles of the curves of a series without a meaning of their own, as heads or layers.
SERIES = tuple(name for name, role in ROLES.items() if role.kind == "series")

#: Colour maps: some colours of each, on either ground. Small fades into the page; large stands out.
MAPS = {
    "large": (
        (GROUND[0], "#8fc4ea", "#2b7bc0", "#08306b"),
        (GROUND[1], "#174a7c", "#3f9bdc", "#d8eeff"),
    ),
    "signed": (
        ("#7a3a00", "#e0994a", GROUND[0], "#9a8fd0", "#35207a"),
        ("#ffd9a8", "#b5661c", GROUND[1], "#6553c4", "#d5ccff"),
    ),
}


def colour(role: str) -> str:
    """Return the colour of a role, as figures draw it: the light one."""
    return ROLES[role].light


def line(role: str) -> dict:
    """Return how the line of a role is drawn, as keywords of matplotlib's ``plot``."""
    found = ROLES[role]
    style = {"color": found.light, "ls": found.dashes}
    return style | ({"marker": found.marker} if found.marker else {})


def label(role: str) -> str:
    """Return what a legend calls a role."""
    return ROLES[role].label


def nth(i: int) -> str:
    """Return the colour of the i-th curve of a series, from zero; after seven they repeat."""
    return colour(SERIES[i % len(SERIES)])


def shades(count: int) -> list[str]:
    """Return colours for curves in an order, as layers: from small to large, all of them visible."""
    steps = [light for light, _ in scale("large")]
    palest = 0.55  # below, a line has too little contrast
    places = [palest + (1 - palest) * i / max(count - 1, 1) for i in range(count)]
    return [steps[round(place * (len(steps) - 1))] for place in places]


@cache
def scale(name: str) -> tuple[tuple[str, str], ...]:
    """Return the steps of a colour map from small to large, on the light and on the dark page."""
    light, dark = MAPS[name]
    return tuple(zip(_between(light), _between(dark), strict=True))


@cache
def dark_values() -> dict[str, str]:
    """Return the dark value of every light one, of roles and of colour maps."""
    found = {light: dark for name in MAPS for light, dark in reversed(scale(name))}
    return found | {role.light: role.dark for role in ROLES.values()}


def _between(anchors: tuple[str, ...], steps: int = 256) -> list[str]:
    """Interpolate linearly between colours."""
    channels = [[int(anchor[k : k + 2], 16) for anchor in anchors] for k in (1, 3, 5)]
    places = np.linspace(0, len(anchors) - 1, steps)
    mixed = [np.interp(places, range(len(anchors)), channel).round() for channel in channels]
    return ["#" + "".join(f"{int(part):02x}" for part in step) for step in zip(*mixed, strict=True)]
