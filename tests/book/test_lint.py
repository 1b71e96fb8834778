"""Each fault that `make lint` looks for is found where it is planted, and nothing where it is not."""

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("lint", Path(__file__).parents[1] / "lint.py")
lint = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(lint)

GOOD = """# A page

How large is it?

At $12.5$ and `12.5` it is {glue:text}`it-low:.2f` times that, {doc}`two` says.

```{prf:theorem} Ones
:label: thm-ones
One is one.
```
## One section

```{code-cell} ipython3
x = some(numbers)
```

```{code-cell} ipython3
:tags: [check]

assert x.mean() == 1.5
checked("The sum is right.")
```

```{code-cell} ipython3
:tags: [remove-input]

glue("it-low", decimal(x.min(), rounding="down"))
claim("ones", "One.", status="proved", ratio=x / 1.5, theorem="thm-ones")
```
"""
PLANTED = {
    "“37 %” looks measured": ("At $12.5$", "At 37 %"),
    "“Three times larger” looks measured": ("At $12.5$", "Three times larger, at"),
    "“1.23” looks measured": (":tags: [check]\n", "---\nmystnb: {image: {alt: It is 1.23}}\n---"),
    "“chapter 7” is wrong": ("At $12.5$", "In chapter 7"),
    "27 lines, at most 25": ("assert", "y = 1\n" * 25 + "assert"),
    "80 characters": ("assert", "y" * 76 + " = 1\nassert"),
    "tags ['check', 'hide-input']": ("[check]", "[check, hide-input]"),
    "hide-input is for figures": ("[check]", "[hide-input]"),
    "after the title comes the question": ("is it?", "it is."),
    "no code is shown before": ("## One section\n", ""),
    "at most 8 lines of 68": ("some(", "1\n" * 8 + "some("),
    "the main path shows one cell": ("[check]\n", "[]\n"),
    "a check ends with checked": ('checked("The sum is right.")', "x"),
    "glue and claim stand": ("assert", "glue('x', 1)\nassert"),
    "only the last expression": ('theorem="thm-ones")', 'theorem="thm-ones")\ny = 1'),
    "what is proved names its theorem": (', theorem="thm-ones"', ""),
    "thm-one is no theorem": ('theorem="thm-ones"', 'theorem="thm-one"'),
    "0.99 in a ratio": ("x / 1.5", "0.99 * x"),
}


def found(text: str) -> str:
    page = lint.Page(lint.PATH[0], text)
    checks = (lint.typed_numbers, lint.form, lint.story, lint.claims)
    return "\n".join(what for check in checks for _, what in check(page))


@pytest.mark.parametrize("message", PLANTED)
def test_a_planted_fault_is_found(message):
    assert GOOD.count(PLANTED[message][0]) == 1 and found(GOOD) == ""
    assert message in found(GOOD.replace(*PLANTED[message]))
