"""What a page of the book claims and has checked, with the evidence.

A page that proves, checks or refutes something ends a cell with a :class:`Claim`, which refuses
evidence that contradicts it; a cell that only compares ends with a :class:`Checked`, one sentence.
The build writes boxes of theorems and the scoreboard from the machine-readable copies of both.
"""

import html
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from lab.numbers import power

MIME_TYPE = "application/vnd.lipcore.claim+json"
CHECKED_TYPE = "application/vnd.lipcore.checked+json"
# From the strongest down; enclosed: proved, and the tests enclose its constants in intervals.
STATUSES = ("enclosed", "proved", "checked", "fails", "open")
SOURCES = ("paper", "book")  # or the key of a work in the bibliography
RATIO_TOLERANCE = 1e-9  # allowed relative rounding error of a ratio that should not pass 1
MATHS = re.compile(r"\$([^$]+)\$")  # in a statement

_KEY = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_CITATION = re.compile(r"[a-z]+[0-9]{4}[a-z0-9]*")
_LABEL = re.compile(r"[a-z]+(-[a-z0-9]+)+")


@dataclass(frozen=True)
class Claim:
    """One statement with its source, its status and the evidence for it."""

    key: str
    statement: str
    source: str
    status: str
    ratio: float | None = None  # the largest value seen of what should not pass 1
    witness: str | None = None  # one sentence, if it fails
    theorem: str | None = None  # the label of the theorem on the page that says this

    def __post_init__(self) -> None:
        _require(_matches(_KEY, self.key), "key", "lower-case words joined by hyphens", self.key)
        _check_sentence("statement", self.statement)
        known = self.source in SOURCES or _matches(_CITATION, self.source)
        _require(known, "source", f"one of {SOURCES} or a work's key", self.source)
        _require(self.status in STATUSES, "status", f"one of {STATUSES}", self.status)
        labelled = self.theorem is None or _matches(_LABEL, self.theorem)
        _require(labelled, "theorem", "a label such as 'thm-sqrt-n'", self.theorem)
        if self.status == "fails":
            _check_sentence("witness", self.witness)
        if self.ratio is not None:
            ratio = float(self.ratio)
            _require(0 <= ratio < math.inf, "ratio", "a finite number ≥ 0", ratio)
            kept = self.status in ("fails", "open") or ratio <= 1 + RATIO_TOLERANCE
            expected = f"at most 1, as {self.key!r} is said to be {self.status}"
            _require(kept, "ratio", expected, f"{ratio:.10g}, which contradicts it")
            object.__setattr__(self, "ratio", ratio)

    def __str__(self) -> str:
        seen = "" if self.ratio is None else f" (largest ratio {format_ratio(self.ratio)})"
        witness = f" Witness: {self.witness}" if self.witness else ""
        return f"{self.status} [{self.source}]: {self.statement}{seen}{witness}"

    def _repr_html_(self) -> str:
        facts = self.source
        if self.ratio is not None:
            facts += f" · largest ratio seen {format_ratio(self.ratio)}"
        text = _typeset(self.witness or "")
        witness = f'<p class="claim-witness">Witness: {text}</p>' if text else ""
        return (
            f'<div class="claim claim-{self.status} tex2jax_process" id="claim-{self.key}">'
            f'<p><span class="claim-status">{self.status}</span> {_typeset(self.statement)}</p>'
            f'{witness}<p class="claim-facts">{html.escape(facts)}</p></div>'
        )

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        return {"text/html": self._repr_html_(), "text/plain": str(self), MIME_TYPE: asdict(self)}


def claim(key: str, statement: str, *, ratio=None, **fields) -> Claim:
    """Make a :class:`Claim` from any number of observed ratios, of which the largest counts."""
    if ratio is not None:
        seen = list(_flatten(ratio))
        # max would skip over NaN
        is_number = bool(seen) and not any(map(math.isnan, seen))
        _require(is_number, "ratio", "at least one number, and no NaN", seen)
        ratio = max(seen)
    return Claim(key, statement, ratio=ratio, **fields)


@dataclass(frozen=True)
class Checked:
    """One sentence that says what a cell has checked, and how close it came."""

    text: str

    def __post_init__(self) -> None:
        _check_sentence("text", self.text)

    def __str__(self) -> str:
        return f"✓ {self.text}"

    def _repr_html_(self) -> str:
        return f'<p class="checked tex2jax_process">✓ {_typeset(self.text)}</p>'

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        data = asdict(self)
        return {"text/html": self._repr_html_(), "text/plain": str(self), CHECKED_TYPE: data}


checked = Checked  # what a page calls, as the last expression of a cell


def format_ratio(ratio: float) -> str:
    """Return a ratio with three digits, and so that one below 1 never reads as 1.

    >>> format_ratio(0.93112), format_ratio(0.99999), format_ratio(1.0), format_ratio(1.2e-9)
    ('0.931', '0.9999', '1', '1×10⁻⁹')
    """
    if 0.999 < ratio < 1:  # downwards
        return f"{math.floor(1e4 * ratio) / 1e4:g}"
    return power(ratio) if 0 < ratio < 1e-3 or ratio >= 1e3 else f"{ratio:.3g}"


def _require(ok: object, name: str, expected: str, got: object) -> None:
    # as in lipcore's checks, which import torch: a build of the book goes without
    if not ok:
        raise ValueError(f"{name}: expected {expected}, got {got}")


def _matches(pattern: re.Pattern, text: object) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None


def _check_sentence(name: str, text: object) -> None:
    is_sentence = isinstance(text, str) and text.strip() and text.count("$") % 2 == 0
    _require(is_sentence, name, "a sentence, with each dollar in a pair", repr(text))


def _flatten(values) -> Iterable[float]:
    """Yield the numbers of nested sequences, arrays and tensors."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        for value in values:
            yield from _flatten(value)
    else:
        yield float(values)


def _typeset(text: str) -> str:
    r"""Escape for HTML and mark mathematics as ``\(…\)``, which MathJax reads everywhere."""
    return MATHS.sub(lambda match: rf"\({match[1]}\)", html.escape(text, quote=False))
