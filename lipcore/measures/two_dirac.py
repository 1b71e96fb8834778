"""Attention on two Diracs in closed form, the worst case of the mean-field regime."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipcore._checks import check_count, check_number
from lipcore.measures.discrete import DiscreteMeasure


@dataclass(frozen=True, eq=False)
class TwoDirac:
    r"""Two Diracs on a line, :math:`\mu = p\,\delta_{x_1}+(1-p)\,\delta_{x_2}`, A = ±γI, V = I.

    Let :math:`x_i = R\,t_i u` with a unit vector u, and :math:`a = \gamma R^2`. The score of the
    other Dirac exceeds one's own by :math:`b_i = \pm a\, t_i (t_j - t_i)`. With
    :math:`c = \pm a\,(t_j-t_i)^2`, each Dirac gives the other the weight

    .. math:: r_i = \frac{1}{1 + \frac{w_i}{w_j} e^{-b_i}}, \qquad
        \Gamma_\mu(x_i) = (1-r_i)\,x_i + r_i\, x_j,

    and the derivative along u is :math:`J_{ij} = r_i\,(1 + b_i(1-r_i))`,
    :math:`J_{ii} = (1-r_i)\,(1 + (c - b_i)\, r_i)`; across u only :math:`P_{ij} = r_i` is left. For
    A = −γI, Diracs at ∓R have :math:`b = 2a` and :math:`c = -4a`, and the worst mass is
    :math:`p \sim e^{-2a}/3` as a → ∞ (:prf:ref:`prop-mf-two`).

    Parameters
    ----------
    p : float or Tensor
        Mass of the first Dirac, in (0, 1).
    radius, gamma : float
        R and γ, non-negative.
    sign : {-1, 1}
        A = −γI or A = γI.
    positions : tuple of two floats, optional
        The numbers t₁ and t₂. If left out, they are (−1, 1) for A = −γI and (1, ½) for A = γI, the
        worst cases of :prf:ref:`thm-lower-eigen`.

    Examples
    --------
    >>> light = TwoDirac(0.01, 1.0, 2.0)  # the light Dirac pulls all the others
    >>> round(light.other_weight[1].item(), 3), round(light.constant.item(), 3)
    (0.355, 12.829)
    >>> round(TwoDirac(0.5, 1.0, 2.0).constant.item(), 3)
    1.247
    """

    p: float | Tensor
    radius: float
    gamma: float
    sign: int = -1
    positions: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        p = torch.as_tensor(self.p, dtype=torch.float64)
        if not bool(((p > 0) & (p < 1)).all()):
            raise ValueError("p: expected masses between 0 and 1, both excluded")
        if self.sign not in (-1, 1):
            expected = "-1 (A = -gamma I) or 1 (A = gamma I)"
            raise ValueError(f"sign: expected {expected}, got {self.sign!r}")
        positions = self.positions
        if positions is None:
            positions = (-1.0, 1.0) if self.sign < 0 else (1.0, 0.5)
        if len(positions) != 2:
            raise ValueError(f"positions: expected two numbers, got {len(positions)}")
        t = tuple(check_number("positions", place) for place in positions)
        radius = check_number("radius", self.radius, minimum=0)
        gamma = check_number("gamma", self.gamma, minimum=0)
        a = check_number("gamma * radius**2", self.sign * gamma * radius * radius)
        odds = p.log() - (-p).log1p()
        values = {"p": p, "radius": radius, "gamma": gamma, "positions": t, "_signed_a": a}
        values["_t"] = torch.tensor(t, dtype=torch.float64)
        values["_c"] = a * (t[1] - t[0]) ** 2
        values["_log_odds"] = torch.stack([odds, -odds], dim=-1)  # log(w_i/w_j), (…, 2)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def score_gaps(self) -> Tensor:
        """The b_i, by which the score of the other Dirac exceeds one's own: shape (2,)."""
        return self._signed_a * self._t * (self._t.flip(0) - self._t)

    @property
    def other_weight(self) -> Tensor:
        """The r_i, the weight that each Dirac gives to the other: shape (…, 2)."""
        return torch.sigmoid(self.score_gaps - self._log_odds)

    @property
    def own_weight(self) -> Tensor:
        """The 1 − r_i to full precision, shape (…, 2)."""
        return torch.sigmoid(self._log_odds - self.score_gaps)

    @property
    def images(self) -> Tensor:
        """The Γ_μ(x_i)·u, shape (…, 2)."""
        return self.radius * (self._t + self.other_weight * (self._t.flip(0) - self._t))

    @property
    def derivative(self) -> Tensor:
        """The matrix of D_μF along u, in the orthonormal coordinates √w_i h_i, shape (…, 2, 2)."""
        r = self.other_weight
        own = self.own_weight
        b = self.score_gaps
        return self._in_mass(own * (1 + (self._c - b) * r), r * (1 + b * own))

    @property
    def constant(self) -> Tensor:
        """The norm ‖D_μF‖ in L²(μ) in dimension one, that is, along u: shape (…)."""
        return torch.linalg.matrix_norm(self.derivative, 2)

    @property
    def transverse_constant(self) -> Tensor:
        """The norm ‖P‖ in L²(μ), that is, across u: shape (…).

        In more dimensions ‖D_μF‖ is the larger of this and ``constant``.
        """
        matrix = self._in_mass(self.own_weight, self.other_weight)
        return torch.linalg.matrix_norm(matrix, 2)

    @property
    def own_query(self) -> Tensor:
        """‖C_i A‖, the effect of moving a copy of each Dirac alone: shape (…, 2).

        For A = −γI, Diracs at R and 0 and p = 1/γR², it is 1 − p for the heavy one, while
        ``constant`` is about √p, as its own query then cancels mixing. The gain of mass splitting
        grows as √a (:prf:ref:`prop-split-gain`).
        """
        return abs(self._c) * self.other_weight * self.own_weight

    def measure(self, dim: int = 1) -> DiscreteMeasure:
        """Return the measure itself, for a single p, with u the first basis vector."""
        check_count("dim", dim)
        if self.p.ndim:
            got = tuple(self.p.shape)
            raise ValueError(f"p: expected one mass to make a measure of, got shape {got}")
        points = torch.zeros(2, dim, dtype=torch.float64)
        points[:, 0] = self.radius * self._t
        return DiscreteMeasure(points, torch.stack([self.p, 1 - self.p]))

    def _in_mass(self, diagonal: Tensor, off_diagonal: Tensor) -> Tensor:
        """Return W^{1/2} J W^{-1/2} of J_ii = diagonal and J_ij = off_diagonal: shape (…, 2, 2)."""
        scaled = off_diagonal * (self._log_odds / 2).exp()
        return torch.diag_embed(diagonal) + torch.diag_embed(scaled).flip(-1)
