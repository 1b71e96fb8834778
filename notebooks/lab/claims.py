"""What a page of the book claims and has checked, with the evidence.

A page that proves, checks or refutes something ends a cell with a :class:`Claim`. The claim refuses
evidence that contradicts it. A cell that only compares ends with a :class:`Checked`, one sentence.
Both leave a machine-readable copy in the notebook: from it the build writes the foot of a theorem's
box, the line above a folded check, and the scoreboard.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from lab.numbers import power

__all__ = [
    "CHECKED_TYPE",
    "MIME_TYPE",
    "RATIO_TOLERANCE",
    "SOURCES",
    "STATUSES",
    "Checked",
    "Claim",
    "checked",
    "claim",
    "format_ratio",
]

MIME_TYPE = "application/vnd.lipcore.claim+json"
CHECKED_TYPE = "application/vnd.lipcore.checked+json"
STATUSES = ("enclosed", "proved", "checked", "fails", "open")  # from the strongest down
SOURCES = ("paper", "book")  # or the key of a work in the bibliography
RATIO_TOLERANCE = 1e-9  # allowed relative rounding error of a ratio that should not pass 1

_KEY = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_CITATION = re.compile(r"[a-z]+[0-9]{4}[a-z0-9]*")
_LABEL = re.compile(r"[a-z]+(-[a-z0-9]+)+")
# Mathematics in a statement.
MATHS = re.compile(r"\$([^$]+)\$")


@dataclass(frozen=True)
class Claim:
    r"""One statement with its source, its status and the evidence for it.

    Parameters
    ----------
    key : str
        Short name, unique in the book: lower-case words joined by hyphens.
    statement : str
        One sentence; mathematics between dollars.
    source : str
        ``"paper"``, ``"book"``, or the key of a work in the bibliography such as ``"yudin2025"``.
    status : str
        ``"proved"`` (proof on the page, and checked), ``"enclosed"`` (proved, and the numbers that
        the statement or its proof rests on are enclosed in intervals by the tests), ``"checked"``
        (numerically only), ``"fails"`` (a witness contradicts it) or ``"open"``.
    ratio : float, optional
        Largest value seen of what should not pass 1: truth over an upper bound, or a lower bound
        over the truth.
    witness : str, optional
        For ``"fails"``: an input on which the statement is false, in one sentence.
    theorem : str, optional
        Label of the theorem on the same page that says this, such as ``"thm-sqrt-n"``; the book
        shows the claim in the theorem's box.

    Raises
    ------
    ValueError
        If a field has no meaning, if the ratio is not a finite number ≥ 0, if a claim that neither
        fails nor is open has a ratio above 1, or if a claim that fails comes without a witness.

    Examples
    --------
    >>> print(Claim("sqrt-n", "The norm is at most $\\sqrt{n}$.", "paper", "proved", ratio=0.5))
    proved [paper]: The norm is at most $\sqrt{n}$. (largest ratio 0.5)
    >>> Claim("too-good", "The norm is at most 1.", "book", "checked", ratio=1.5)
    Traceback (most recent call last):
    ...
    ValueError: claim 'too-good' is said to be checked, but a ratio of 1.5 contradicts it
    """

    key: str
    statement: str
    source: str
    status: str
    ratio: float | None = None
    witness: str | None = None
    theorem: str | None = None

    def __post_init__(self) -> None:
        """Refuse a claim without meaning, and one that its own evidence contradicts."""
        _check_words(self)
        if self.ratio is not None:
            _check_ratio(self)
        if self.status == "fails" and not (self.witness or "").strip():
            raise ValueError(
                f"claim {self.key!r} fails, so a witness is needed: an input that shows it"
            )

    def __str__(self) -> str:
        """Return one line of text."""
        seen = "" if self.ratio is None else f" (largest ratio {format_ratio(self.ratio)})"
        witness = f" Witness: {self.witness}" if self.witness else ""
        return f"{self.status} [{self.source}]: {self.statement}{seen}{witness}"

    def _repr_html_(self) -> str:
        """Return a box whose mathematics is typeset in the book and in Jupyter."""
        seen = "" if self.ratio is None else f"largest ratio seen {format_ratio(self.ratio)}"
        facts = " · ".join(filter(None, [self.source, seen]))
        witness = ""
        if self.witness:
            witness = f'<p class="claim-witness">Witness: {_typeset(self.witness)}</p>'
        return (
            f'<div class="claim claim-{self.status} tex2jax_process" id="claim-{self.key}">'
            f'<p><span class="claim-status">{self.status}</span> {_typeset(self.statement)}</p>'
            f'{witness}<p class="claim-facts">{html.escape(facts)}</p></div>'
        )

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        """Return the claim as HTML, as text, and as data for the scoreboard."""
        return {"text/html": self._repr_html_(), "text/plain": str(self), MIME_TYPE: asdict(self)}


def claim(
    key: str,
    statement: str,
    *,
    source: str,
    status: str,
    ratio=None,
    witness: str | None = None,
    theorem: str | None = None,
) -> Claim:
    """Make a :class:`Claim` from any number of observed ratios.

    Parameters
    ----------
    key, statement, source, status, witness, theorem
        The fields of :class:`Claim`.
    ratio : float or nested sequence or array or tensor of floats, optional
        Observed values of what should not pass 1; the largest counts.

    Returns
    -------
    Claim
        The claim, checked against its own evidence.

    Raises
    ------
    ValueError
        If :class:`Claim` refuses it, or there is no ratio or one that is not a number among them.

    Examples
    --------
    >>> claim("demo", "Slack > 0.", source="book", status="checked", ratio=[0.25, 0.75]).ratio
    0.75
    """
    largest = None if ratio is None else _largest(ratio)
    return Claim(key, statement, source, status, largest, witness, theorem)


@dataclass(frozen=True)
class Checked:
    """One sentence that says what a cell has checked, and how close it came.

    Parameters
    ----------
    text : str
        The sentence; mathematics between dollars.

    Raises
    ------
    ValueError
        If there is no sentence, or a dollar without its pair.
    """

    text: str

    def __post_init__(self) -> None:
        """Refuse what is no sentence."""
        if not isinstance(self.text, str) or not self.text.strip():
            raise ValueError(
                f"text must be a sentence that says what was checked, got {self.text!r}"
            )
        if self.text.count("$") % 2:
            raise ValueError(f"text has an unpaired dollar: {self.text!r}")

    def __str__(self) -> str:
        """Return one line of text."""
        return f"✓ {self.text}"

    def _repr_html_(self) -> str:
        """Return one line whose mathematics is typeset in Jupyter."""
        return f'<p class="checked tex2jax_process">✓ {_typeset(self.text)}</p>'

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        """Return the line as HTML, as text, and as data for the build."""
        return {
            "text/html": self._repr_html_(),
            "text/plain": str(self),
            CHECKED_TYPE: asdict(self),
        }


def checked(text: str) -> Checked:
    """Say what a cell has checked: the last expression of the cell.

    Parameters
    ----------
    text : str
        One sentence; mathematics between dollars.

    Returns
    -------
    Checked

    Raises
    ------
    ValueError
        If :class:`Checked` refuses it.

    Examples
    --------
    >>> print(checked("The formula and automatic differentiation agree to " + power(3e-11) + "."))
    ✓ The formula and automatic differentiation agree to 3×10⁻¹¹.
    """
    return Checked(text)


def format_ratio(ratio: float) -> str:
    """Return a ratio with three digits, and so that one below 1 never reads as 1.

    Examples
    --------
    >>> format_ratio(0.93112), format_ratio(0.99999), format_ratio(1.0), format_ratio(1.2e-9)
    ('0.931', '0.9999', '1', '1×10⁻⁹')
    """
    if 0.999 < ratio < 1:  # downwards
        return f"{math.floor(1e4 * ratio) / 1e4:g}"
    return power(ratio) if 0 < ratio < 1e-3 or ratio >= 1e3 else f"{ratio:.3g}"


def _check_words(item: Claim) -> None:
    if not isinstance(item.key, str) or not _KEY.fullmatch(item.key):
        raise ValueError(f"key must be lower-case words joined by hyphens, got {item.key!r}")
    refused = f"claim {item.key!r}:"
    if not isinstance(item.statement, str) or not item.statement.strip():
        raise ValueError(f"{refused} statement must be a sentence, got {item.statement!r}")
    if item.statement.count("$") % 2:
        raise ValueError(f"{refused} statement has an unpaired dollar")
    if item.source not in SOURCES and not _CITATION.fullmatch(str(item.source)):
        raise ValueError(
            f"{refused} source must be one of {SOURCES} or a citation key such as 'yudin2025', "
            f"got {item.source!r}"
        )
    if item.status not in STATUSES:
        raise ValueError(f"{refused} status must be one of {STATUSES}, got {item.status!r}")
    if item.theorem is not None and not _LABEL.fullmatch(str(item.theorem)):
        raise ValueError(
            f"{refused} theorem must be the label of a theorem such as 'thm-sqrt-n', "
            f"got {item.theorem!r}"
        )


def _check_ratio(item: Claim) -> None:
    ratio = float(item.ratio)
    if not 0 <= ratio < math.inf:
        raise ValueError(f"claim {item.key!r}: ratio must be a finite number ≥ 0, got {ratio}")
    if item.status not in ("fails", "open") and ratio > 1 + RATIO_TOLERANCE:
        raise ValueError(
            f"claim {item.key!r} is said to be {item.status}, "
            f"but a ratio of {ratio:.10g} contradicts it"
        )
    object.__setattr__(item, "ratio", ratio)


def _largest(values) -> float:
    """Return the largest of arbitrarily nested numbers; NaN is refused, not skipped."""
    found = list(_flatten(values))
    if not found:
        raise ValueError("ratio must hold at least one value, got none")
    if any(math.isnan(value) for value in found):
        raise ValueError("ratio must not contain NaN")
    return max(found)


def _flatten(values) -> Iterable[float]:
    if hasattr(values, "tolist"):  # arrays and tensors, of any dimension
        values = values.tolist()
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        for value in values:
            yield from _flatten(value)
    else:
        yield float(values)


def _typeset(text: str) -> str:
    r"""Escape for HTML and mark mathematics as ``\(…\)``, which MathJax reads everywhere."""
    return MATHS.sub(lambda match: rf"\({match[1]}\)", html.escape(text, quote=False))
