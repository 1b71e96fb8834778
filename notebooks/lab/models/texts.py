"""Texts to run the models on, and how they are cut into sequences of equal length."""

from __future__ import annotations

import functools
import os
import re
from importlib import metadata, util
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor

from lab.models.loaded import LoadedModel
from lab.models.sources import DATA, fetch
from lipcore._checks import check_count, require

# Where the text "licences" comes from: package and file, one long licence or more in each.
_LICENCES = (
    ("hypothesis", "LICENSE.txt"),  # Mozilla Public License 2.0
    ("transformers", "LICENSE"),  # Apache License 2.0
    ("typing_extensions", "LICENSE"),  # Python's own, with its history
    ("docutils", "COPYING.txt"),
    ("sympy", "LICENSE"),
    ("distlib", "LICENSE.txt"),
)
_MODULES = ("argparse", "dataclasses", "functools")  # of the standard library: the text "code"
_BIBLE_CHARACTERS = 300_000  # how much of it is read: Genesis and most of Exodus

_LINE_START = re.compile(r"(?m)^[ \t]*(?:#+|//|\*)?[ \t]*")  # marks of comments and lists
_PLAIN_WORD = re.compile(r"[(\"“]?[A-Za-z][a-z'’-]*[.,;:)\"”]*")


def load_text(name: str | os.PathLike) -> str:
    """Return a text by name, or the text of any file (UTF-8), with each paragraph on one line.

    The names are ``"pydoc"``, Python's manual; ``"licences"``, those of six packages; ``"code"``,
    three modules of Python's library; ``"bible"``, the opening of the King James Version; and the
    texts of the paper, ``"alice"`` (needs NLTK) and ``"ag_news"`` (``datasets``).
    """
    if str(name) in _READERS:
        return _READERS[str(name)]()
    path = Path(name).expanduser()
    known = f"one of {', '.join(_READERS)}, or a text file"
    require(path.is_file(), "text", known, repr(str(name)))
    return _join_paragraphs(path.read_text(encoding="utf-8"))


def sequences(
    model: LoadedModel,
    text: str | Tensor,
    n: int,
    count: int = 1,
    *,
    start: int = 0,
    special_tokens: bool = False,
) -> Tensor:
    """Cut a text into consecutive token sequences that do not overlap, of shape (count, n).

    The text, or its token ids from ``model.encode``, is cut from token ``start`` on. With
    ``special_tokens``, every sequence gets the model's opening and closing tokens ([CLS] … [SEP]
    for BERT), which count among the n. Without, they are plain pieces, as in Castin, Ablin & Peyré
    (2024).
    """
    n = model.check_length(check_count("n", n))
    count = check_count("count", count)
    opening, closing = model.special_tokens() if special_tokens else ([], [])
    piece = n - len(opening) - len(closing)
    require(piece > 0, "n", "more than the special tokens", n)
    ids = model.encode(text) if isinstance(text, str) else text
    end = check_count("start", start, minimum=0) + piece * count
    wanted = f"at least {count} × {piece} tokens from token {start}"
    require(len(ids) >= end, "text", wanted, f"{len(ids)} in all")
    pieces = ids[start:end].reshape(count, piece)
    before, after = (pieces.new_tensor(ends).expand(count, -1) for ends in (opening, closing))
    return torch.cat([before, pieces, after], dim=1)


def _join_paragraphs(text: str) -> str:
    """Undo line breaks, so that each paragraph is on one line, and change nothing else."""
    text = re.sub(r"(\w-)[ \t]*\n[ \t]*(?=\w)", r"\1", text)  # a compound word broken at its hyphen
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return "\n".join(paragraph for paragraph in paragraphs if paragraph)


def _pydoc() -> str:
    """Return the paragraphs of the manual that are running English, each once, without code."""
    manual = "\n\n".join(topics[topic] for topic in sorted(topics))
    paragraphs = _join_paragraphs(manual).splitlines()
    english = [x for x in paragraphs if x[0].isupper() and x[-1] in ".:" and _is_words(x)]
    return "\n".join(dict.fromkeys(english))


def _licences() -> str:
    """Return the paragraphs and clauses of the licences that are running English, each once."""
    paragraphs = []
    for package, file in _LICENCES:
        places = metadata.files(package) or []
        place = next(x for x in places if x.name == file and ".dist-info" in x.parts[0])
        raw = re.sub(_LINE_START, "", place.locate().read_text(encoding="utf-8"))
        paragraphs += _join_paragraphs(raw).splitlines()
    return "\n".join(dict.fromkeys(x for x in paragraphs if x[-1] in ".:;" and _is_words(x)))


def _code() -> str:
    """Return the sources of the modules, one after the other, unchanged."""
    paths = [Path(util.find_spec(name).origin) for name in _MODULES]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def _bible() -> str:
    """Return the first paragraphs, without the brackets around words that translators added."""
    (file,) = DATA["bible"].files
    module = (fetch("bible") / file).read_text(encoding="utf-8")
    whole = module.split('"""')[1].translate(str.maketrans("", "", "[]"))
    paragraphs = _join_paragraphs(whole.replace("\n", "\n\n"))
    return paragraphs[: paragraphs.rindex("\n", 0, _BIBLE_CHARACTERS)]


def _is_words(paragraph: str) -> bool:
    """Return whether these are mostly words."""
    words = paragraph.split()
    plain = sum(_PLAIN_WORD.fullmatch(word) is not None for word in words)
    return len(words) >= 8 and plain >= 0.8 * len(words)


def _alice() -> str:
    import nltk

    try:
        nltk.data.find("corpora/gutenberg")
    except LookupError:
        if not nltk.download("gutenberg", quiet=True):
            raise ConnectionError("text 'alice' cannot be downloaded: pass a file") from None
    return _join_paragraphs(nltk.corpus.gutenberg.raw("carroll-alice.txt"))


def _ag_news() -> str:
    import datasets

    news = datasets.load_dataset("fancyzhx/ag_news", split="test")
    return _join_paragraphs("\n\n".join(news["text"]))


_READERS = {
    reader.__name__[1:]: functools.cache(reader)
    for reader in (_pydoc, _licences, _code, _bible, _alice, _ag_news)
}
