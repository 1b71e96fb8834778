r"""How far the vectors of a Lanczos run have drifted from orthogonality, without looking at them.

In :math:`t_kv_{k+1} = J^\top Jv_k - d_kv_k - t_{k-1}v_{k-1} + \text{rounding}`, d and t as in :mod:`lipcore._ritz`,
the products :math:`\omega_{kj} = v_k\cdot v_j` obey nearly the same recurrence as the vectors,

.. math:: t_k\,\omega_{k+1,j} = t_j\,\omega_{k,j+1} + (d_j-d_k)\,\omega_{kj} + t_{j-1}\,\omega_{k,j-1}
   - t_{k-1}\,\omega_{k-1,j} + \text{rounding},

so they can be followed on the host. As long as all of them are below the root of the rounding unit, T_k is exact to
rounding (Simon 1984), and no vector need be orthogonalised against more than the two before it.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray

#: Rounding of one step, in units in the last place of ‖T‖: sums of some hundred terms lose about that much.
_ROUNDING = 2
#: The recurrence is run with so many draws of the rounding errors: in one alone they may happen to cancel.
_DRAWS = 8
_TINY = np.finfo(np.float64).tiny  # instead of nothing at all


class Drift:
    """The products ω of the newest vector with those before it, for each member of a batch."""

    def __init__(self, members: int, steps: int, eps: float) -> None:
        self._eps, self._rng = eps, np.random.default_rng(0)
        self._before, self._now = np.zeros(
            (2, steps + 2, _DRAWS, members)
        )  # row j: with v_j, and row 0 empty
        self._now[1] = 1

    def step(self, diagonal: ndarray, below: ndarray) -> ndarray:
        """Go from v_k to v_{k+1}, given T_k as in :mod:`lipcore._ritz`; the largest ω of each member."""
        k = diagonal.shape[1]
        d, t = diagonal.T[:, None], below.T[:, None]  # (k, 1, members)
        now, new = (
            self._now,
            self._before,
        )  # what was before is no longer needed when it is written over
        rounding = _ROUNDING * self._eps * (d + t).max(0) + _TINY
        omega = t[:-1] * now[2 : k + 1] + (d[:-1] - d[-1]) * now[1:k]
        omega[1:] += t[:-2] * now[1 : k - 1]
        omega -= t[k - 2 : k - 1] * new[1:k]
        new[1 : k + 1] = rounding * self._rng.standard_normal((k, _DRAWS, 1))
        new[1:k] += omega
        new[1 : k + 1] /= np.maximum(
            t[-1], rounding
        )  # nothing left of v_{k+1}: the Krylov space has ended
        new[k + 1] = 1
        self._before, self._now = now, new
        return np.abs(new[1 : k + 1]).max((0, 1))
