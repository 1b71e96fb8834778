"""Whoever wants to cite finds the same everywhere."""

import re
from pathlib import Path

import pytest
import yaml
from book_build.citations import author_year
from pybtex.database import parse_file

ROOT = Path(__file__).resolve().parents[2]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
PAPER = CITATION["references"][0]


def entry(name: str, key: str) -> dict[str, str]:
    """Return the fields of a BibTeX entry in a file."""
    text = (ROOT / name).read_text(encoding="utf8")
    body = re.search(rf"@\w+\{{{key},\n(.*?)\n\}}", text, re.DOTALL)[1]
    return dict(re.findall(r"(\w+)\s*=\s*\{+(.*?)\}+,?$", body, re.MULTILINE))


@pytest.mark.parametrize("name", ["README.md", "book/index.md"])
def test_the_paper_is_cited_alike(name):
    fields = entry(name, "castin2024")
    authors = " and ".join(f"{a['family-names']}, {a['given-names']}" for a in PAPER["authors"])
    wanted = [authors, PAPER["title"], str(PAPER["year"]), PAPER["collection-title"]]
    assert [fields[key] for key in ("author", "title", "year", "booktitle")] == wanted


def test_every_work_has_a_name_of_its_own():
    works = parse_file(str(ROOT / "book" / "references.bib")).entries
    names = {key: author_year(work) for key, work in works.items()}
    assert len(set(names.values())) == len(names)
    assert names["castin2024"] == ("Castin et al.", "2024")
    assert names["castin2024code"] == ("Castin et al.", "2024, code")
    assert names["hochstenbach2013"][0] == "Hochstenbach" and "and" in names["zhang2019"][0]
