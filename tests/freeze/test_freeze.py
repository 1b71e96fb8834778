"""Every number of the public interface is what it was, under whatever name: see values.py."""

import numpy as np
import pytest
from freeze.values import NAMES, STORED, call, difference, values


@pytest.mark.timeout(1800)
def test_no_number_has_changed():
    """Compare all values with those stored, and say which differ, by how much, and where."""
    with np.load(STORED) as file:
        stored = dict(file)
    names = {name for name in stored if not name.endswith(" ±")}
    today = values()
    assert names <= {*today}, f"no longer computed: {sorted(names - {*today})}"
    changed = []
    for name in sorted(names):
        rows = today[name]
        if rows is None:  # removed, and names.toml says why
            continue
        if sum(map(len, rows)) != len(stored[name]) or len(rows) != len(stored[f"{name} ±"]):
            changed.append(f"{name}: as many numbers as were stored are expected")
            continue
        old = np.split(stored[name], np.cumsum([len(row) for row in rows])[:-1])
        apart = [difference(x, y) for x, y in zip(old, rows, strict=True)]
        too_far = [i for i, x in enumerate(apart) if x > stored[f"{name} ±"][i]]
        if too_far:
            worst = max(too_far, key=apart.__getitem__)
            changed.append(
                f"{name}: {len(too_far)} of {len(rows)}, by {apart[worst]:.1e} at {worst}"
            )
    assert not changed, "\n".join(changed)


def test_every_new_name_has_a_reason():
    for old, entry in NAMES.items():
        assert {"new", "why"} <= {*entry} <= {"new", "why", "arguments", "call"} and entry["why"], (
            old
        )


def test_a_name_that_is_gone_must_be_in_the_table():
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        call("lipcore.bounds.no_such_upper")
