r"""Causal attention and Hardy's inequality: uniform averaging, and a bound without n (theory §7)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipcore._checks import check_count, check_number
from lipcore.bounds._logarithms import finish, log_add, log_inputs, log_times, smallest
from lipcore.jacobian import LinearOperator

#: Euler's constant γ + 6 log 2: the shift of log n in the norm of causal averaging (Štampach 2022).
_SHIFT = 0.5772156649015329 + 6 * math.log(2)
#: Weights at which a row's moment is looked for before the best is refined.
_GRID = 2048


class CausalAverage(LinearOperator):
    r"""Uniform causal averaging :math:`(C_nh)_i = \frac1i\sum_{j\le i} h_j`, the Cesàro operator.

    It is causal attention with constant scores: weights :math:`P_{ij} = 1/i` for j ≤ i. Products cost O(n).

    Parameters
    ----------
    n : int
    dtype : torch.dtype

    Raises
    ------
    ValueError, TypeError
        If n is not a whole number of at least one.

    Examples
    --------
    >>> import torch
    >>> CausalAverage(3).matvec(torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64))
    tensor([1., 2., 3.], dtype=torch.float64)
    """

    def __init__(self, n: int, *, dtype: torch.dtype = torch.float64) -> None:
        n = check_count("n", n)
        self.batch_shape, self.input_shape, self.output_shape = (), (n,), (n,)
        self.dtype, self.device = dtype, torch.device("cpu")
        self._length = torch.arange(1, n + 1, dtype=dtype)

    def matvec(self, H: Tensor) -> Tensor:
        """Return the running means of H."""
        return self._check("H", H, self.input_shape).cumsum(-1) / self._length

    def rmatvec(self, G: Tensor) -> Tensor:
        """Return, for each token, the sum of G/i over the rows i that see it."""
        return (self._check("G", G, self.output_shape) / self._length).flip(-1).cumsum(-1).flip(-1)


def causal_average_norm(n: int) -> float:
    r"""Norm of causal averaging for large n: an approximation, not a bound.

    .. math:: \|C_n\|_2^2 \approx \frac{4}{1 + 4\pi^2/(\log n + \gamma + 6\log 2)^2}
        = 4 - \frac{16\pi^2}{\log^2 n} + \frac{32\pi^2(\gamma + 6\log2)}{\log^3 n} + O(\log^{-4} n)

    Parameters
    ----------
    n : int

    Returns
    -------
    float

    Notes
    -----
    First term: Wilf (1970); the next: Štampach (2022), who has the expansion on the right.

    Examples
    --------
    >>> round(causal_average_norm(10**5), 3)
    1.865
    """
    return 2 / math.sqrt(1 + (2 * math.pi / (math.log(check_count("n", n)) + _SHIFT)) ** 2)


def row_moment(a: float, q: float) -> float:
    r"""Logarithm of M_q(a), the largest moment that one row of attention can have (this book).

    .. math:: M_q(a)^q = \max_{0\le w\le1}\; w\,\big(1+2a(1-w)\big)^q + (1-w)\,\big|1-2aw\big|^q

    The maximum over rows of :math:`\sum_j P_{ij}\,|g + (g\cdot(x_j-m_i))\,Ax_i|^q`, over unit g and tokens in
    the ball; reached by two antipodal tokens. :math:`M_2^2 = 1+a^2`, and :math:`M_\infty = 1+2a`.

    Parameters
    ----------
    a : float
    q : float
        At least 2; may be infinite.

    Returns
    -------
    float
        The logarithm.

    Raises
    ------
    ValueError, TypeError
        If a < 0 or q < 2.

    Examples
    --------
    >>> round(math.exp(row_moment(3.0, 2.0)) ** 2, 9), round(math.exp(row_moment(3.0, math.inf)), 9)
    (10.0, 7.0)
    """
    a = check_number("a", a, minimum=0)
    if not q >= 2:
        raise ValueError(f"q: expected a number of at least 2, got {q}")
    log_reach = math.log1p(2 * a)
    if q == math.inf:
        return log_reach
    share, rest = 2 * a / (1 + 2 * a), 1 / (1 + 2 * a)  # in units of 1 + 2a: no overflow

    def moment(w: float) -> float:
        return w * (1 - share * w) ** q + (1 - w) * abs(rest - share * w) ** q

    grid = torch.linspace(0, 1, _GRID + 1, dtype=torch.float64)
    values = grid * (1 - share * grid) ** q + (1 - grid) * (rest - share * grid).abs() ** q
    near, step = grid[values.argmax()].item(), 1 / _GRID
    best = -smallest(lambda w: -moment(w), max(near - step, 0.0), min(near + step, 1.0))
    return log_reach + math.log(max(best, values.max().item())) / q + 1e-13  # makes up for rounding


def masked_upper_moments(
    *, radius: float, norm_a: float, norm_v: float, log: bool = False
) -> float:
    r"""Upper bound for causal attention, whatever n (this book).

    .. math:: \mathrm{Lip}(f^m|B_R^n) \le \|V\|_2 \Big( e^a \min_{1\le p<2} \big(\tfrac{2}{2-p}\big)^{1/p}
        M_{p/(p-1)}(a) + a \Big)

    with :func:`row_moment`'s M; p = 1 gives :math:`2(1+2a)e^a + a`, and the best p lies near 1.4 for large a.

    Parameters
    ----------
    radius, norm_a, norm_v, log
        As in :func:`lipcore.bounds.general_upper`.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        As :func:`lipcore.bounds.general_upper`.

    Examples
    --------
    >>> round(masked_upper_moments(radius=1.0, norm_a=0.0, norm_v=1.0), 9)
    2.0
    """
    _, log_a, log_v = log_inputs(1, radius, norm_a, norm_v)
    a = math.exp(log_a) if log_a < 709 else math.inf
    return finish(log_times(log_v, log_add(a + _log_factor(a), log_a)), log)


def _log_factor(a: float) -> float:
    """Logarithm of the least (2/(2−p))^{1/p} M_{p/(p−1)}(a) over p: any p gives a bound."""
    if a == math.inf:
        return math.inf

    def value(p: float) -> float:
        return math.log(2 / (2 - p)) / p + row_moment(a, p / (p - 1))

    return min(smallest(value, 1.01, 1.7), math.log(2) + row_moment(a, math.inf))
