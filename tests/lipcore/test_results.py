"""Results that can be read: a line a member, a table, JSON, numbers, members, and attribution."""

import json
import re

import pytest
import torch

from lipcore import Attention, local_lipschitz, spectral_norm
from lipcore.lipschitz import moves_by_term
from lipcore.spectral import SHOWN

LINE = r"^(\[\d+\]  )?σ = [\d.]+  in \[[\d.]+, [\d.]+\] with probability 0.999; \d+ products"


def test_printing_is_a_line_a_member(randn):
    found = local_lipschitz(lambda X: X.sin(), randn(3, 6, 8))
    lines = str(found).splitlines()
    assert len(lines) == 3 and all(re.search(LINE, line) for line in [*lines, str(found[1])])
    assert repr(found) == str(found) == f"{found}" and "tensor" not in str(found)
    many = str(spectral_norm(randn(SHOWN + 5, 3, 3))).splitlines()
    assert len(many) == SHOWN + 1 and "5 more" in many[-1]
    assert str(spectral_norm(randn(2, 3, 4, 4))).splitlines()[4].startswith("[1, 1]  σ = ")
    html = spectral_norm(randn(4, 3, 3))._repr_html_()
    assert html.count("<tr>") == 5 and html.count("<td>") == 28


def test_printing_says_what_is_not_known(randn):
    M = randn(30, 30)
    assert "without a certificate" in str(spectral_norm(M, probability=None))
    assert str(spectral_norm(M, max_iterations=1)).endswith("not converged")


def test_numbers(randn):
    found = spectral_norm(randn(4, 5, 5))
    assert float(found[2]) == found.value[2].item() and f"{found[2]:.3f}" == f"{found.value[2]:.3f}"
    assert float(spectral_norm(torch.eye(3)[None])) == pytest.approx(1)
    with pytest.raises(TypeError, match=r"^float: "):
        float(found)


def test_comparisons(randn):
    one, several = spectral_norm(3 * torch.eye(3)), spectral_norm(randn(4, 5, 5))
    assert one > 2 and one >= 3 and not one < 3 and one <= 3.5 and one.item() == float(one)
    assert torch.equal(several > 3, several.value > 3) and torch.equal(several <= 3, ~(several > 3))


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_table(randn, shape):
    found = spectral_norm(randn(*shape, 4, 4))
    table = found.to_pandas()
    assert table["value"].tolist() == found.value.flatten().tolist()
    assert (table["probability"] == 0.999).all() and (table["remark"] == "").all()
    place = {(): 0, (3,): 2, (2, 2): (1, 1)}[shape]
    assert table.index[-1] == place and table["upper"].iloc[-1] == found.upper.flatten()[-1]


@pytest.mark.parametrize("shape", [(4,), (2, 3)])
def test_members(randn, shape):
    found = local_lipschitz(Attention.from_matrices(randn(3, 3), randn(2, 3)), randn(*shape, 5, 3))
    assert len([*found]) == len(found) == shape[0]
    for i, member in enumerate(found):
        for name in ("value", "upper", "left", "right", "iterations", "converged", "tokens"):
            assert torch.equal(getattr(member, name), getattr(found, name)[i]), name
        torch.testing.assert_close(member.by_term(), found.by_term()[i])
    one = spectral_norm(randn(3, 3))
    with pytest.raises(IndexError, match="no members"):
        one[0]
    with pytest.raises(TypeError, match="no length"):
        len(one)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_json(randn, shape):
    found = spectral_norm(randn(*shape, 4, 4), probability=None)
    numbers = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert numbers["value"] == found.value.tolist() and numbers["probability"] is None
    assert set(str(numbers["upper"])) <= set("None, []")
    assert not {"value", "lower", "residual", "iterations", "converged"} - {*numbers}


@pytest.mark.parametrize("options", [{}, {"norm": "token"}, {"differentiable": True}])
def test_what_was_not_checked_says_so(randn, options):
    """In print, in a notebook, in JSON, and of each member; what is checked says nothing."""

    def fn(X):
        return X.sin() + X.detach()  # autodiff does not see the whole: refused if it is checked

    X = randn(2, 4, 3)
    with pytest.raises(ValueError, match=r"^fn: "):
        local_lipschitz(fn, X, **options)
    found = local_lipschitz(fn, X, check=False, **options)
    for said in (str(found), found._repr_html_(), found.to_dict()["remark"], str(found[0])):
        assert "unchecked" in said
    layer = Attention.from_matrices(randn(3, 3), randn(3, 3))
    for checked in (local_lipschitz(torch.sin, X, **options),
                    local_lipschitz(layer, X, check=False)):  # fmt: skip
        assert checked.remark == "" and "unchecked" not in str(checked) + str(checked.to_dict())


# --- attribution ---------------------------------------------------------------------------------


def test_tokens_heads_and_terms_share_sigma(every_case):
    f, X = every_case.attention, every_case.X
    found = local_lipschitz(f, X, tol=1e-10)
    left, right = found.by_token()
    assert left.shape == right.shape == X.shape[:-1]
    torch.testing.assert_close(right, found.right.norm(dim=-1))
    torch.testing.assert_close(left.square().sum(-1), torch.ones_like(found.value))
    heads, terms = found.by_head(), found.by_term()
    assert heads.shape == (*found.value.shape, f.heads)
    assert terms.shape[-1] == (3 if f.gate is None else 4)
    torch.testing.assert_close(heads.sum(-1), found.value)
    torch.testing.assert_close(terms.sum(-1), found.value)


def along(f, X, H):
    """D_X f[H] by dense autograd."""
    return torch.einsum("iajb,jb->ia", torch.autograd.functional.jacobian(f, X), H)


def test_a_heads_share_is_that_of_its_own_jacobian(make_case, monkeypatch):
    """⟨u_h, J_h v⟩ with the dense Jacobian of each head alone; in pieces, too."""
    case = make_case("grouped keys, biases")
    found = local_lipschitz(case.attention, case.X, tol=1e-10)
    heads = [case.attention.head(h) for h in range(case.attention.heads)]
    truth = [(found.left * along(head, case.X, found.right)).sum().item() for head in heads]
    assert found.by_head().tolist() == pytest.approx(truth, rel=1e-9, abs=1e-9)
    monkeypatch.setattr("lipcore.lipschitz.ROWS", 2)
    assert found.by_head().tolist() == pytest.approx(truth, rel=1e-9, abs=1e-9)


def test_moves_by_term_sum_to_the_jacobians(every_case, randn):
    """For any move, with masks, biases, rotary positions and projections; not with gates."""
    f, X = every_case.attention, every_case.X
    if f.gate is not None:
        pytest.skip("the derivative of gates is a fourth term")
    H = randn(*X.shape)
    torch.testing.assert_close(moves_by_term(f, X, H).sum(0), f.jacobian(X).matvec(H))


@pytest.mark.parametrize("name", ["by_head", "by_term", "by_token"])
def test_what_has_no_heads_or_tokens_says_so(randn, name):
    found = local_lipschitz(lambda X: X.sum(-2), randn(4, 3))
    with pytest.raises(ValueError, match=f"^{name}: "):
        getattr(found, name)()
