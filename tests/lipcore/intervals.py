"""Rigorous enclosures of largest values: interval arithmetic in place of a grid.

Values on an interval are enclosed as they stand, by the mean value theorem, and by an end of the
interval where the derivative has a sign. What may hold the largest value is halved.
"""

import heapq

from flint import arb, arb_series


def hull(low, high):
    """The ball that holds two numbers and what lies between them."""
    return arb(low).union(arb(high))


def power(x, q):
    """|x|^q for q ≥ 2, of a ball or of a series of two terms; x may be zero."""
    if isinstance(x, arb_series):
        slope = q * power(x[0], q - 1) * (x[0].sgn() if x[0] != 0 else hull(-1, 1))
        return arb_series([power(x[0], q), slope * x[1]])
    low, high = x.abs_lower(), x.abs_upper()
    ends = [(q * end.log()).exp() if end > 0 else arb(0) for end in (low, high)]
    return ends[0].union(ends[1])


def above(function, low, high):
    """A number that the function does not exceed between low and high."""
    middle = (low + high) / 2
    inside = hull(low, high)
    try:
        series = function(arb_series([inside, 1]))
    except ValueError:  # a denominator may be zero on so long an interval
        return arb.pos_inf()
    value, slope = series[0], series[1]
    if not slope.is_finite():
        return value.upper() if value.is_finite() else arb.pos_inf()
    if slope > 0 or slope < 0:
        return _number(function(arb(high if slope > 0 else low)).upper())
    by_mean = _number((function(arb(middle)) + slope * (inside - middle)).upper())
    return by_mean.min(value.upper()) if value.is_finite() else by_mean


def _number(bound):
    """The bound, or none at all where it is not a number."""
    return arb.pos_inf() if bound.is_nan() else bound


def largest(function, low, high, width):
    """Enclose the largest value on [low, high], two floats, in a ball of at most this width."""
    ends = [function(arb(x)).lower() for x in (low, (low + high) / 2, high)]
    best = max(ends, key=float)
    heap = [(-above(function, low, high), low, high)]  # keys are exact: balls of radius zero
    for _ in range(20_000):
        bound, low, high = heapq.heappop(heap)
        if -bound < best + width:
            return best.union(best.max(-bound))
        middle = (low + high) / 2
        best = best.max(function(arb(middle)).lower())
        for part in ((low, middle), (middle, high)):
            heapq.heappush(heap, (-above(function, *part), *part))
    raise AssertionError(f"not enclosed to {width}: between {best} and {-bound}")


def smallest(function, low, high, width):
    """Enclose the least value."""
    return -largest(lambda x: -function(x), low, high, width)


def root(function, near, width):
    """Enclose a zero of a function that increases, within a relative width of a float near it."""
    low, high = near * (1 - width / 2), near * (1 + width / 2)
    assert function(arb(low)) < 0 < function(arb(high)), f"no change of sign near {near}"
    return hull(low, high)
