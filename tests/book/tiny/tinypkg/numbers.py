"""Numbers."""

VALUE = 1


def value() -> int:
    """Return the value of the theorem (:prf:ref:`thm-growth`)."""
    return VALUE
