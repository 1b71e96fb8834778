"""Weights read from ONNX and from CTranslate2: against what their own runtimes put out."""

from __future__ import annotations

import io
import struct

import pytest
import torch

pytest.importorskip("transformers", reason="needs lipcore[models]")

from lab.models import load, signals, unpack

# What onnxruntime 1.32.0 and ctranslate2 4.8.5 (float32) give for the waves below: four entries of
# the last features, and the norm of all.
ORACLES = {
    "vit": (
        ((0, 0), (1, 100), (128, 200), (256, 300)),
        (0.55429339, 2.79843235, 0.28971818, 1.17343795),
        826.73236,
        2e-4,
    ),
    "whisper": (
        ((0, 0), (1, 100), (700, 200), (1499, 300)),
        (-0.89399338, 0.59513825, -0.90650249, -0.82233244),
        1005.31274,
        2e-3,
    ),
}


def wave(*shape):
    size = torch.Size(shape).numel()
    return torch.arange(size, dtype=torch.float64).mul(0.37).cos().reshape(shape).float()


@pytest.mark.parametrize("name", ORACLES)
def test_features_are_those_of_the_runtime_that_the_file_is_for(name):
    places, entries, norm, tolerance = ORACLES[name]
    inputs = {
        "vit": {"pixel_values": wave(1, 3, 224, 224)},
        "whisper": {"input_features": 0.5 * wave(1, 80, 3000)},
    }[name]
    with torch.no_grad():
        features = load(name).model(**inputs).last_hidden_state[0]
    found = torch.stack([features[place] for place in places])
    torch.testing.assert_close(found, torch.tensor(entries), atol=tolerance, rtol=0)
    assert features.norm().item() == pytest.approx(norm, rel=2e-5)


def test_ctranslate2():
    """Shapes, half precision, another version, and files that end too early."""
    numbers = struct.pack("<H4sB2IBI4f", 4, b"a/b\0", 2, 2, 2, 0, 16, 1, 2, 3, 4)
    numbers += struct.pack("<H2sBIBIe", 2, b"c\0", 1, 1, 4, 2, 0.5)
    content = struct.pack("<IH5sII", 6, 5, b"Spec\0", 1, 2) + numbers
    found = unpack.read_ctranslate2(io.BytesIO(content))
    assert found["a/b"].tolist() == [[1, 2], [3, 4]]
    assert found["c"].dtype == torch.float16 and found["c"].tolist() == [0.5]
    for wrong in (b"\5" + content[1:], content[:3], content[:20], content[:-1]):
        with pytest.raises(ValueError, match="stream"):
            unpack.read_ctranslate2(io.BytesIO(wrong))


class TestSignals:
    def test_patches_are_the_central_square(self):
        image = torch.zeros(3, 30, 50)
        image[:, :, :10], image[:, :, 40:] = 1, 1  # what is cut off
        found = signals.patches(image, 2)
        assert found.shape == (3, 28, 28)
        black = -torch.tensor(signals._MEAN) / torch.tensor(signals._DEVIATION)
        torch.testing.assert_close(found, black[:, None, None].expand_as(found))

    def test_photographs(self):
        found = signals.photographs()
        assert len(found) == 10
        assert found["chelsea"].shape == (3, 300, 451)
        assert all(0 <= image.min() < image.max() <= 1 for image in found.values())

    def test_speech_fills_what_whisper_hears(self):
        sound = signals.speech()
        assert sound.shape == (480_000,) and 0.1 < sound.abs().max() <= 1
        assert signals.spectrogram(sound).shape == (80, 3000)

    def test_shortened_encoder_is_the_whole_one_at_full_length(self):
        whisper = load("whisper")
        columns = 0.5 * wave(1, 80, 3000)
        few = signals.shortened(whisper, 5)
        with torch.no_grad():
            assert few.model(input_features=columns[..., :10]).last_hidden_state.shape[1] == 5
            same = signals.shortened(whisper, 1500).model(input_features=columns)
            torch.testing.assert_close(
                same.last_hidden_state, whisper.model(input_features=columns).last_hidden_state
            )
        weights = (model.model.layers[0].fc1.weight for model in (few, whisper))
        assert len({weight.data_ptr() for weight in weights}) == 1
