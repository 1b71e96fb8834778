"""Figures: the numbers they draw, that they are legible, and that the same code gives the same bytes."""

import io

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from lab import plotting

LENGTHS = [4, 16, 64]


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture
def values():
    return np.array([2.0, 4.0, 8.0])[:, None] * np.exp(
        0.1 * np.random.default_rng(0).normal(size=(3, 6))
    )


def draw():
    fig, (left, right) = plotting.figure(columns=2)
    plotting.values_by_length(left, LENGTHS, [[2.0, 3.0], [4.0, 4.5], [8.0, 7.0]], label="demo")
    plotting.attention_heatmap(right, torch.eye(3))
    return fig


def svg(fig):
    """As a notebook writes it."""
    file = io.BytesIO()
    with mpl.rc_context():
        plotting.use_style()
        fig.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def test_figures_are_reproducible_and_legible():
    """The same code gives the same bytes, with letters as outlines, of ten points or more.

    At full width (7.2 inches, 700 pixels) a point of the figure is at least one on the page.
    """
    fig = draw()
    text = svg(fig)
    assert text == svg(draw())
    assert b"<text" not in text and b'style="fill: none"' in text
    assert len(text) < 100_000
    texts = [text for text in fig.findobj(mpl.text.Text) if text.get_text().strip()]
    assert texts and min(text.get_fontsize() for text in texts) >= 10


def test_style_stays_within_its_figure():
    before = mpl.rcParams["font.size"]
    fig, _ = plotting.figure()
    assert fig.get_constrained_layout()
    assert mpl.rcParams["font.size"] == before and mpl.rcParams["svg.hashsalt"] != "lipcore"


def test_values_by_length(values):
    _, ax = plotting.figure()
    plotting.values_by_length(ax, LENGTHS, torch.tensor(values), label="demo")
    single, means = ax.get_lines()
    assert sorted(single.get_xdata()) == [4] * 6 + [16] * 6 + [64] * 6
    np.testing.assert_allclose(single.get_ydata(), values.reshape(-1))
    np.testing.assert_allclose(means.get_ydata(), np.exp(np.log(values).mean(axis=1)))


def test_single_values_are_their_own_means():
    _, ax = plotting.figure()
    plotting.values_by_length(ax, LENGTHS, [1.0, 2.0, 5.0], label="demo")
    (means,) = ax.get_lines()
    np.testing.assert_allclose(means.get_ydata(), [1.0, 2.0, 5.0])


def test_bound_versus_truth(values):
    _, ax = plotting.figure()
    bounds = {"general": [9.0, 18.0, np.inf], "unified": 2 * values}
    plotting.bound_versus_truth(ax, LENGTHS, values, bounds)
    general, _, truth = ax.get_lines()
    assert not np.isfinite(general.get_ydata()[-1])  # an infinite bound leaves the picture
    np.testing.assert_allclose(truth.get_ydata(), np.median(values, axis=1))
    assert len(ax.collections) == 2  # bands over the middle 80 %, where there is a spread
    band = ax.collections[1].get_paths()[0].vertices
    at_first = band[band[:, 0] == LENGTHS[0], 1]
    edges = np.quantile(values[0], [0.1, 0.9])
    np.testing.assert_allclose([at_first.min(), at_first.max()], edges)


def test_attention_heatmap():
    _, ax = plotting.figure()
    P = torch.softmax(torch.arange(12.0).reshape(3, 4), dim=-1).requires_grad_()
    image = plotting.attention_heatmap(ax, P)
    np.testing.assert_allclose(image.get_array(), P.detach().numpy())
    assert ax.get_ylim() == (3.5, 0.5)  # the first query on top


@pytest.mark.parametrize("n", [1, 5, 64])
def test_heatmap_counts_from_one(n):
    _, ax = plotting.figure()
    plotting.attention_heatmap(ax, torch.ones(n, n) / n)
    ticks = ax.get_xticks()
    assert ticks[0] == 1 and ticks[-1] <= n and len(ticks) <= 10


def test_plane_tokens():
    _, ax = plotting.figure()
    X, H = torch.tensor([[1.0, 0.0], [0.0, -2.0]]), torch.tensor([[0.0, 10.0], [0.0, 0.0]])
    plotting.plane_tokens(ax, X, H)
    arrows, points = ax.collections
    np.testing.assert_allclose(points.get_offsets(), X)
    np.testing.assert_allclose(
        [arrows.U, arrows.V], [[0, 0], [1.0, 0]]
    )  # the longest is a quarter of the picture
    assert ax.get_aspect() == 1.0
    low, high = ax.get_xlim()
    assert -low == high > 2


@pytest.mark.parametrize(("low", "high"), [(1.0, 3.0), (0.5, 90.0), (1.0, 1e3), (1.0, 1e9)])
def test_ticks_are_readable(low, high):
    """Three to ten labelled ticks within the range, in plain numbers where the range is short."""
    _, ax = plotting.figure()
    plotting.values_by_length(ax, LENGTHS, [low, (low * high) ** 0.5, high], label="demo")
    bottom, top = ax.get_ylim()
    labels = [
        label.get_text()
        for label, y in zip(ax.get_yticklabels(), ax.get_yticks(), strict=True)
        if bottom <= y <= top
    ]
    assert 3 <= len(labels) <= 10 and all(labels)
    assert ("$" in labels[0]) == (high > 1e4)


def test_many_lengths_get_decades():
    _, ax = plotting.figure()
    plotting.bound_versus_truth(
        ax, np.geomspace(1, 1e9, 40), np.ones(40), {"general": np.full(40, 2.0)}
    )
    assert 3 <= len(ax.get_xticks()) <= 12


def test_reference_slope():
    _, ax = plotting.figure()
    plotting.reference_slope(ax, LENGTHS, 0.5, start=3.0)
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), [3.0, 6.0, 12.0])


def test_lengths_and_values_must_match():
    _, ax = plotting.figure()
    with pytest.raises(ValueError, match=r"^values: "):
        plotting.values_by_length(ax, LENGTHS, [1.0, 2.0], label="demo")
