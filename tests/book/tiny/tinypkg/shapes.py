"""Shapes."""

from tinypkg.corners import CORNERS


def sides() -> int:
    """Return the sides."""
    return CORNERS
