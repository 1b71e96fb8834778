"""Published constants are needed: a tenth less, or one term less, and some number is contradicted."""

import inspect
import math
from collections import Counter

import pytest
import torch

import mutants
import witnesses
from lab import rivals
from lipcore import Attention, bounds
from lipcore.adversarial import ascend
from lipcore.bounds import lower, normalised

F64 = torch.float64
EYE = torch.eye(2, dtype=F64)

#: What states no bound: inputs, and the words of a class.
NO_BOUNDS = {
    "lower.construction_inputs",
}
#: Bounds around one input, held by tests of their own: ascent that finds each a tenth too small, and
#: the formula typed again by loops (``test_change.py``, ``test_rounding.py``, ``test_attack.py``).
AROUND_AN_INPUT = {"change_upper", "tangent_error_upper", "rounding_upper"}
THEIR_PARTS = ("change.", "rounding.", "_matrices.std_and_radius")
#: Functions whose constants no truth contradicts, only the formula typed again; and why.
BY_THE_LETTER = {
    "causal.log_cubes": "cells multiply the bound, and the crowd that is bad for a head lies in one",
    "causal.log_voronoi": "the same",
    "best._separate_terms": "1 + a adds the longest mixing to the longest pull; no row has both",
    "causal.causal_average_norm": "an expansion for large n, not a bound",
    "_matrices.covariances": "own query and others' keys are bounded apart; no input has both large",
    "lower._within_range": "a limit for sizes beyond 10¹⁰⁰, far from every witness",
    "ball.mean_field_upper_paper": "its exponent is twice the one that measures reach",
    "rivals._kim2021": "the fourth root of n is the order of the truth, the root that of the bound",
    "rivals.castin2024_released_compute_bound": "not a bound: an input contradicts it as it is",
    "rivals.emadi2026_token_upper": "of the largest-token norm, which no witness here measures",
    "rivals.kim2021_l2_upper_restated": "not a bound: an input contradicts it as it is",
    "ball.log_general": "the root of 3 pays for three terms that are never large together",
}


@pytest.fixture(scope="module")
def known(truth):
    """All witnesses, with coarser numerical methods than the package's: they are sharp enough here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalised, "_BISECTIONS", 60)
        patch.setattr(lower, "_SHARES", 16)
        yield witnesses.all_witnesses(truth)


def test_witnesses_hold(known):
    assert not [witness.name for witness in known if witness.red(witness.found())]


def test_every_bound_has_a_witness(known):
    functions = {name for name in bounds.__all__ if inspect.isfunction(getattr(bounds, name))}
    functions |= {
        n
        for n, f in vars(rivals).items()
        if getattr(f, "__module__", "") == "lab.rivals" and n[0] != "_"
    }
    functions |= {"l2_attention_upper", "row_moment", "largest_affine_norm"}
    inputs = {name for name in functions if name.endswith("_inputs")}
    assert functions - inputs - AROUND_AN_INPUT <= {witness.name for witness in known}
    assert {*lower._FAMILIES} == {witness.family for witness in known} - {None}


def fate(mutant, chosen):
    """How a mutant ends: contradicted by a truth, by the letter, refused, no more than before, or
    as a survivor, which says more than the bound and is contradicted by nothing."""
    stronger = False
    try:
        with mutant.in_place():
            for witness, before in chosen:
                found = witness.found()
                if witness.red(found):
                    return "letter" if witness.kind == "letter" else "truth"
                stronger |= witness.stronger(found, before)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        return "refused"
    return "survivor" if stronger else "no more"


def about(function, paths):
    """The witnesses of a function: its own, else those of its module, else all that reach it."""
    found = [pair for pair, path in paths if function.key in path]
    own = {other.name for other in mutants.functions() if other.module is function.module}
    for names in ({function.name}, own):
        closest = [pair for pair in found if pair[0].name in names]
        if closest:
            return closest, found
    return found, found


def test_every_constant_and_every_term_is_needed(known):
    """Of all mutants none survives; ``pytest -s`` prints how they end."""
    known = sorted(known, key=lambda witness: witness.kind == "letter")
    paths = [((w, w.found()), mutants.reached(w.call)) for w in known]
    count = Counter()
    survivors = []
    letter_alone = set()
    for function in mutants.functions():
        changes = list(mutants.mutants(function))
        elsewhere = str(function) in NO_BOUNDS or str(function).startswith(THEIR_PARTS)
        if elsewhere or not changes:
            continue
        chosen, everything = about(function, paths)
        assert chosen, f"{function}: no witness reaches it"
        ends = [fate(mutant, chosen) for mutant in changes]
        if "letter" in ends and "truth" not in ends:
            ends = [fate(mutant, everything) for mutant in changes]
        if "letter" in ends and "truth" not in ends:
            letter_alone.add(str(function))
        count.update(ends)
        survivors += [str(m) for m, end in zip(changes, ends, strict=True) if end == "survivor"]
    print("\nmutants:", sum(count.values()), dict(count), "by the letter:", sorted(letter_alone))
    assert not survivors, survivors
    assert letter_alone == set(BY_THE_LETTER)


@pytest.mark.parametrize(("V", "limit"), [("I", 12.4), ("any", 200.0)])
def test_order_of_the_constant(V, limit):
    """Upper over lower bound of measures: below what is proved, and never below one."""
    generator = torch.Generator().manual_seed(0)
    widths = []
    for trial in range(64):
        d = 2 + trial % 3
        M = torch.randn(d, d, generator=generator, dtype=F64)
        A = (M, M + M.mT, M - M.mT, M @ M.mT, -M @ M.mT, torch.outer(M[0], M[1]))[trial % 6]
        A = A / torch.linalg.matrix_norm(A, 2)
        W = torch.randn(1 + trial % 2, d, generator=generator, dtype=F64)
        head = {"A": A, "V": torch.eye(d, dtype=F64) if V == "I" else W, "log": True}
        for a in (0.1, 4.0, 50.0, 1e4):
            size = {"radius": math.sqrt(a)}
            widths.append(bounds.best_upper(**head, **size) - bounds.best_lower(**head, **size))
    assert min(widths) >= -1e-9
    assert math.exp(max(widths)) < (limit if V == "I" else 20.0)


def test_slack_of_the_published_bound():
    """No input is known that reaches nine tenths of it: √3 pays for three equal terms."""
    found = []
    for a, n in ((0.3, 2), (1.0, 4), (3.0, 8)):
        start = torch.randn(6, n, 2, generator=torch.Generator().manual_seed(n), dtype=F64)
        start = start / start.norm(dim=-1, keepdim=True)
        f = Attention.from_matrices(-a * EYE, EYE)
        top = ascend(f, start, 1.0, steps=60, progress=False).value.max().item()
        found.append(top / bounds.general_upper(n=n, radius=1.0, norm_a=a, norm_v=1.0))
    assert 0.2 < max(found) < 0.5
