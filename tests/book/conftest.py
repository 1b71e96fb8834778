"""A tiny book, built with the real extension and the real settings."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = """---
jupytext: {text_representation: {extension: .md, format_name: myst, format_version: 0.13}}
kernelspec: {display_name: Python 3, language: python, name: python3}
---
"""

FILES = {
    "_toc.yml": """
format: jb-book
root: book/index
chapters:
- file: notebooks/one
- file: notebooks/two
- file: notebooks/three
- file: book/scoreboard
- file: book/bibliography
""",
    "references.bib": """
@article{castin2024, author={Castin, V. and Ablin, P. and Peyré, G.}, title={How Smooth}, year={2024}, journal={J}}
""",
    "book/index.md": """# Tiny

See {doc}`../notebooks/one`, {cite:t}`castin2024` and {repository}`the list <blob/main/CHANGELOG.md>`.

```{eval-rst}
.. automodule:: tinypkg.numbers
   :members:
```
""",
    "book/scoreboard.md": "# Scoreboard\n\n```{scoreboard}\n```\n",
    "book/bibliography.md": "# Bibliography\n\n```{bibliography}\n:all:\n```\n",
    "data/table.txt": "1",
    "notebooks/one.md": NOTEBOOK
    + r"""
# One

```{index} !growth rate, !‖x‖₂
```

````{prf:theorem} Growth
:label: thm-growth

For $x \in \R$ the norm is $\norm{x}$, as {cite:t}`castin2024` say.
````

```{dropdown} Proof
Squares are positive:

$$
a &= b \\
  &= c
$$ (eq-squares)
```

```{code-cell} python3
from pathlib import Path
with Path("executed.log").open("a") as log:
    log.write("one\n")
from tinypkg import VALUE
print("value", VALUE)
```

```{code-cell} python3
:tags: [remove-input]
from lab.claims import checked, claim
claim("growth", "The norm is at most $2\\sqrt{n}$.", source="paper", status="enclosed",
      ratio=[0.25, 0.5], theorem="thm-growth")
```

```{code-cell} python3
:tags: [check]
assert 1 + 1 == 2
checked("One and one are $2$.")
```

```{code-cell} python3
:tags: [remove-input]
claim("shrinks", "The norm is below $1$.", source="book", status="fails", ratio=3.0, witness="$x = 3$")
```
""",
    "notebooks/two.md": NOTEBOOK
    + """
# Two

By {prf:ref}`thm-growth` and {eq}`eq-squares`.

````{prf:theorem} $\\sqrt n$ & decay
:label: thm-decay

What grows, decays backwards.
````

````{prf:lemma} Without a claim
:label: lem-unclaimed

Nothing is said.
````

```{dropdown} Proof of the theorem
By {prf:ref}`thm-growth` and {prf:ref}`lem-unclaimed`.
```

```{code-cell} python3
:tags: [remove-input]
from lab.claims import claim
claim("decay", "It decays.", source="book", status="checked", ratio=0.5, theorem="thm-decay")
```

```{code-cell} python3
:tags: [remove-input]
claim("backwards", "It does so backwards.", source="book", status="checked", theorem="thm-decay")
```

```{code-cell} python3
from pathlib import Path
with Path("executed.log").open("a") as log:
    log.write("two\\n")
from tinypkg import shapes
print("sides", shapes.sides())
```

```{code-cell} python3
---
mystnb:
  figure:
    name: fig-line
    caption: A line, $n^2$. It rises.
  image:
    alt: a line that rises
---
from lab import colours, plotting
plotting.use_style()
fig, ax = plotting.figure()
ax.plot([1, 2], **colours.line("unified"));
```
""",
    "notebooks/three.md": NOTEBOOK
    + """
# Three

```{code-cell} python3
from pathlib import Path
with Path("executed.log").open("a") as log:
    log.write("three\\n")
import importlib
name = "numbers"
print(importlib.import_module(f"tinypkg.{name}").VALUE)
```
""",
    "tinypkg/__init__.py": '"""A stand-in for the package."""\n\nfrom tinypkg.numbers import VALUE\n',
    "tinypkg/numbers.py": '''"""Numbers."""

VALUE = 1


def value() -> int:
    """Return the value of the theorem (:prf:ref:`thm-growth`)."""
    return VALUE
''',
    "tinypkg/shapes.py": '''"""Shapes."""

from tinypkg.corners import CORNERS


def sides() -> int:
    """Return the sides."""
    return CORNERS
''',
    "tinypkg/corners.py": "CORNERS = 4\n",
}


def settings(folder: Path) -> dict:
    """The book's own settings, with only the paths changed."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))
    config["bibtex_bibfiles"] = ["references.bib"]
    config["sphinx"]["local_extensions"]["book_build"] = str(ROOT / "book" / "_ext")
    config["sphinx"]["config"] |= {
        "book_packages": ["tinypkg"],
        "book_data": ["data"],
        "book_preload": ["json"],
    }
    return config


class TinyBook:
    """A folder with a small book in it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.html = folder / "_build" / "html"
        for name, text in FILES.items():
            self.write(name, text)
        shutil.copytree(ROOT / "book" / "_static", folder / "book" / "_static")
        self.write("_config.yml", yaml.safe_dump(settings(folder), allow_unicode=True))

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf8")

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf8")

    def build(self) -> tuple[int, str]:
        """Build as `make book` does; return the exit code and everything that was printed."""
        program = Path(sys.executable).with_name("jupyter-book")
        command = [str(program), "build", "-W", "-n", "--keep-going", str(self.folder)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment(), timeout=120
        )
        return done.returncode, done.stdout + done.stderr

    def environment(self) -> dict[str, str]:
        """The caller's environment, with this checkout's package."""
        return {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}

    def executed(self) -> list[str]:
        """The notebooks executed since the last call."""
        log = self.folder / "notebooks" / "executed.log"
        names = sorted(log.read_text().split()) if log.exists() else []
        log.unlink(missing_ok=True)
        return names

    @contextlib.contextmanager
    def changed(self, change: dict[str, tuple[str, str]]):
        """Replace words in files for a while: ``{file: (old, new)}``; nothing as old appends."""
        before = {name: self.read(name) for name in change}
        for name, (old, new) in change.items():
            assert old in before[name]
            self.write(name, before[name].replace(old, new) if old else before[name] + new)
        try:
            yield
        finally:
            for name, text in before.items():
                self.write(name, text)


@pytest.fixture(scope="session")
def book(tmp_path_factory) -> TinyBook:
    """The tiny book, built once."""
    tiny = TinyBook(tmp_path_factory.mktemp("book"))
    code, output = tiny.build()
    assert code == 0, output
    assert tiny.executed() == ["one", "three", "two"]
    return tiny
