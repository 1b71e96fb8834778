"""The controls of a text."""

from __future__ import annotations

import pytest
import torch

from lipcore.lab.controls import controls

TEXT = torch.arange(300).reshape(3, 100)
VOCABULARY = torch.tensor([7, 1000, 2000])


def made(seed=0):
    return controls(TEXT, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def test_shuffled_keeps_every_token_and_moves_most_also_between_pieces():
    shuffled = made()["shuffled"]
    assert torch.equal(shuffled.flatten().sort().values, TEXT.flatten())
    assert (shuffled == TEXT).sum() < 10
    assert (shuffled // 100 == TEXT // 100).float().mean() < 0.5


def test_random_is_uniform_over_the_vocabulary():
    drawn = made()["random"]
    assert drawn.shape == TEXT.shape
    counts = torch.tensor([(drawn == token).sum() for token in VOCABULARY])
    assert counts.sum() == 300
    assert ((counts - 100).abs() < 5 * 8.2).all()  # five standard deviations


def test_repeated_is_one_token_of_the_text_in_each_piece():
    repeated = made()["repeated"]
    assert (repeated == repeated[:, :1]).all()
    assert torch.isin(repeated, TEXT).all()
    assert len({tuple(made(seed)["repeated"][:, 0].tolist()) for seed in range(5)}) == 5


def test_bad_input_is_refused():
    draw = torch.Generator()
    with pytest.raises(ValueError, match=r"ids: expected shape \(count, n\)"):
        controls(torch.arange(3), VOCABULARY, generator=draw)
    with pytest.raises(ValueError, match="vocabulary: expected a vector"):
        controls(TEXT, VOCABULARY[:0], generator=draw)
