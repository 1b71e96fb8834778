"""Convert weights in formats that transformers reads slowly or not at all to float32, once."""

from __future__ import annotations

import contextlib
import io
import struct
import tempfile
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from lab.models.loaded import library
from lab.models.sources import Source, cache_dir, fetch
from lipcore._checks import require


def unpacked(source: Source) -> Path:
    """Return the folder of a source's checkpoint, or of its copy in float32 for another format."""
    folder = fetch(source.name)
    write = _WRITERS.get(source.weights.rpartition(".")[2])
    if write is None:
        return folder
    plain = cache_dir() / f"{source.name}-float32"
    if plain.is_dir():
        return plain
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=cache_dir()) as scratch:
        staging = Path(scratch) / "copy"
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that heeds no setting
            write(folder / source.weights, source, staging)
        with contextlib.suppress(OSError):  # another process was faster
            staging.rename(plain)
    return plain


def _save(weights: dict[str, Tensor], config, target: Path) -> None:
    from safetensors.torch import save_file

    config.save_pretrained(target)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def _write_gguf(file: Path, source: Source, target: Path) -> None:
    """Write a language model in four bits as a checkpoint, with its tokenizer."""
    transformers = library()
    options = {"gguf_file": file.name, "local_files_only": True}
    model = transformers.AutoModel.from_pretrained(file.parent, dtype=torch.float32, **options)
    del model.config.quantization_config  # it is plain float32 from here on
    _save(model.state_dict(), model.config, target)
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **options)
    tokenizer.backend_tokenizer.save(str(target / "tokenizer.json"))


def _write_onnx(file: Path, source: Source, target: Path) -> None:
    """Write the backbone of a vision transformer, without what follows its features."""
    config = library().Dinov2Config(
        hidden_size=source.d,
        num_hidden_layers=source.layers,
        num_attention_heads=source.heads,
        image_size=518,
        patch_size=14,
        use_mask_token=False,
        architectures=["Dinov2Model"],
    )
    _save(_dinov2_weights(file), config, target)


def _dinov2_weights(file: Path) -> dict[str, Tensor]:
    """Return the initializers of an ONNX file under the names that Dinov2 checkpoints have."""
    import onnx

    graph = onnx.load(file).graph
    found = {
        entry.name: torch.from_numpy(onnx.numpy_helper.to_array(entry).copy())
        for entry in graph.initializer
    }
    inside = "backbone."
    # vectors have these names already; a matrix is known by the product that it enters, transposed
    weights = {name.removeprefix(inside): x for name, x in found.items() if name.startswith(inside)}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in found:
            place = node.name.removeprefix("/backbone/").removesuffix("/MatMul")
            weights[f"{place.replace('/', '.')}.weight"] = found[node.input[1]].T.contiguous()
    kinds = ("onnx::Concat_", "onnx::Reshape_")  # of the class token, of the patches
    positions = [x for kind in kinds for name, x in found.items() if name.startswith(kind)]
    return weights | {"embeddings.position_embeddings": torch.cat(positions, dim=1)}


def _write_ctranslate2(file: Path, source: Source, target: Path) -> None:
    """Write the encoder of a Whisper model, without its decoder."""
    with file.open("rb") as stream:
        found = read_ctranslate2(stream)
    weights = _whisper_weights(found, source.layers)
    config = library().WhisperConfig(
        d_model=source.d,
        encoder_layers=source.layers,
        encoder_attention_heads=source.heads,
        encoder_ffn_dim=len(weights["layers.0.fc1.weight"]),
        num_mel_bins=weights["conv1.weight"].shape[1],
        max_source_positions=len(weights["embed_positions.weight"]),
        decoder_layers=0,
        is_encoder_decoder=False,
        architectures=["WhisperEncoder"],
    )
    _save(weights, config, target)


#: The name that CTranslate2 gives a part of a layer of Whisper, and the name in transformers.
_PARTS = (
    ("self_attention/layer_norm", "self_attn_layer_norm"),
    ("self_attention/linear_1", "self_attn.out_proj"),
    ("ffn/layer_norm", "final_layer_norm"),
    ("ffn/linear_0", "fc1"),
    ("ffn/linear_1", "fc2"),
)
_KINDS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def _whisper_weights(found: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Return the encoder's weights in float32 under the names of transformers' WhisperEncoder."""
    found = {name: x.float() for name, x in found.items() if name.startswith("encoder/")}
    parts = [("conv1", "conv1"), ("conv2", "conv2"), ("layer_norm", "layer_norm")]
    weights = {"embed_positions.weight": found["encoder/position_encodings/encodings"]}
    for layer in range(layers):
        before = f"layer_{layer}"
        after = f"layers.{layer}"
        parts += [(f"{before}/{old}", f"{after}.{new}") for old, new in _PARTS]
        for kind in ("weight", "bias"):
            joined = found[f"encoder/{before}/self_attention/linear_0/{kind}"]
            for role, part in zip("qkv", joined.chunk(3), strict=True):
                weights[f"{after}.self_attn.{role}_proj.{kind}"] = part.contiguous()
        del weights[f"{after}.self_attn.k_proj.bias"]  # Whisper has none: these are zeros
    for (old, new), (kind, name) in ((part, kind) for part in parts for kind in _KINDS.items()):
        if f"encoder/{old}/{kind}" in found:
            weights[f"{new}.{name}"] = found[f"encoder/{old}/{kind}"]
    return weights


_TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)


def read_ctranslate2(stream: BinaryIO) -> dict[str, Tensor]:
    """Return the variables of a model in the binary format of CTranslate2, version 6."""
    version = _number(stream, "I")
    require(version == 6, "stream", "version 6 of CTranslate2's format", version)
    _name(stream)  # of the specification, and its revision
    _number(stream, "I")
    found = {}
    for _ in range(_number(stream, "I")):
        name = _name(stream)
        shape = [_number(stream, "I") for _ in range(_number(stream, "B"))]
        kind = _TYPES[_number(stream, "B")]
        content = bytearray(_bytes(stream, _number(stream, "I")))
        found[name] = torch.frombuffer(content, dtype=kind).reshape(shape)
    return found


def _bytes(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    require(len(content) == size, "stream", "a whole file of CTranslate2", "one that ends early")
    return content


def _number(stream: BinaryIO, kind: str) -> int:
    return struct.unpack(f"<{kind}", _bytes(stream, struct.calcsize(f"<{kind}")))[0]


def _name(stream: BinaryIO) -> str:
    return _bytes(stream, _number(stream, "H"))[:-1].decode()  # a zero is at the end


_WRITERS = {"gguf": _write_gguf, "onnx": _write_onnx, "bin": _write_ctranslate2}
