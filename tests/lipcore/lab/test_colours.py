"""The dictionary of colours: told apart by everybody, visible on both grounds, one dark value each."""

import itertools

import numpy as np
import pytest

from lab import colours

MODES = ("light", "dark")
#: Not to be read (the page itself, and what stays behind everything else), and written in words.
BEHIND = ("ground", "grid")
WORDS = ("ink", "axis", "reference")
#: Viénot, Brettel & Mollon 1999, in linear light: without red cones, without green cones.
SIGHT = {
    "protanopia": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
    "deuteranopia": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
}


def srgb(colour):
    return np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])


def linear_light(colour):
    """Red, green and blue without the gamma correction of sRGB."""
    parts = srgb(colour)
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def as_seen(colour, sight):
    """CIE L*a*b* of a colour as somebody sees it who lacks a kind of cone."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    seen = np.clip(SIGHT[sight] @ linear_light(colour), 0, 1)
    x, y, z = np.cbrt(np.array(to_xyz) @ seen / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one, other):
    """Contrast ratio of the web's accessibility guidelines."""
    dim, bright = sorted(linear_light(x) @ [0.2126, 0.7152, 0.0722] for x in (one, other))
    return (bright + 0.05) / (dim + 0.05)


def values(mode, kind=""):
    roles = colours.ROLES.items()
    return {name: getattr(role, mode) for name, role in roles if kind in ("", role.kind)}


@pytest.mark.parametrize("mode", MODES)
def test_colours_are_told_apart(mode):
    """Colours that meet in one figure differ without red or green cones too."""
    of = values(mode)
    beside = {"series": ["truth"], "terms": ["truth", "best"]}
    for kind, sight in itertools.product(("tokens", "terms", "bounds", "models", "series"), SIGHT):
        together = {*values(mode, kind).values(), *(of[name] for name in beside.get(kind, ()))}
        for pair in itertools.combinations(sorted(together), 2):
            one, other = (as_seen(value, sight) for value in pair)
            assert np.linalg.norm(one - other) > 17.5, (mode, sight, pair)


@pytest.mark.parametrize("mode", MODES)
def test_colours_show_on_their_ground(mode):
    """Contrast of 3 for lines and markers, of 4.5 for words, as the web's guidelines ask."""
    of = values(mode)
    assert of["ground"] == colours.GROUND[MODES.index(mode)]
    for name, value in of.items():
        least = 0 if name in BEHIND else 4.5 if name in WORDS else 3
        assert contrast(value, of["ground"]) >= least, (mode, name)
    for name in colours.MAPS:  # words on a strong cell have the colour of the ground
        strong = colours.scale(name)[-1][MODES.index(mode)]
        assert contrast(strong, of["ground"]) >= 4.5
    for value in colours.shades(8):
        value = value if mode == "light" else colours.dark_values()[value]
        assert contrast(value, of["ground"]) >= 3, value


def test_lines_of_a_kind_differ_by_more_than_colour():
    for kind in ("bounds", "models", "terms"):
        roles = [role for role in colours.ROLES.values() if role.kind == kind]
        for one, other in itertools.combinations(roles, 2):
            if {one.label, other.label} == {"best bound for the ball", "unified bound"}:
                continue  # the unified bound is the best one, where it is drawn alone
            assert (str(one.dashes), one.marker) != (str(other.dashes), other.marker), (one, other)


def test_each_light_value_has_one_dark_value():
    """Else the dark version of a figure would be ambiguous."""
    dark = colours.dark_values()
    for role in colours.ROLES.values():
        assert dark[role.light] == role.dark
    for name in colours.MAPS:
        steps = colours.scale(name)
        assert len(steps) == 256
        off = [np.abs(srgb(dark[light]) - srgb(value)).max() for light, value in steps]
        assert max(off) < 0.02


@pytest.mark.parametrize("index", [0, 1])
def test_large_stands_out_from_the_page(index):
    """The map goes away from the ground without turning back, on either page."""
    seen = [contrast(step[index], colours.GROUND[index]) for step in colours.scale("large")]
    assert seen[0] == 1 and (np.diff(seen) > -0.02).all() and np.diff(seen[::16]).min() > 0
    seen = [contrast(step[index], colours.GROUND[index]) for step in colours.scale("signed")]
    assert min(seen) < 1.05 and 110 < np.argmin(seen) < 146
