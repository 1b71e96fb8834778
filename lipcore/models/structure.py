"""Where a model keeps its attention and its blocks, found by structure and not by their names."""

from __future__ import annotations

import re

from torch import nn

# children that project tokens to queries, or to queries, keys and values at once
_QUERY = re.compile(r"(to_?|w_?)?q(uery)?(_(a|b))?(_?(proj|lin|linear|projection|states))?", re.I)
_FUSED = re.compile(
    r"(to_?|w_?)?(qkv|kv|query_key_value|query_value|in)(_?(proj|lin|linear|projection))?|c_attn",
    re.I,
)
_KEY = re.compile(r"(to_?|w_?)?k(ey)?(_(a|b))?(_?(proj|lin|linear|projection|states))?", re.I)
_VALUE = re.compile(r"(to_?|w_?)?v(alue)?(_(a|b))?(_?(proj|lin|linear|projection|states))?", re.I)
_OF_QUERIES = re.compile(r"(q|k|query|key|qk|query_key)_?(layer_?)?(norm|ln|layernorm)\d?", re.I)


def attention_modules(model: nn.Module) -> list[str]:
    """Return the names of a model's attention modules, in the order in which the model lists them.

    An attention module is an ``nn.MultiheadAttention``, or has a query and a key projection, or one
    for both, among its children; or its class is called attention and none is inside.

    Examples
    --------
    >>> layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    >>> attention_modules(nn.TransformerEncoder(layer, 2))
    ['layers.0.self_attn', 'layers.1.self_attn']
    """
    modules = dict(model.named_modules())
    attention = [name for name, module in modules.items() if is_attention(module)]
    named = [name for name, module in modules.items() if "attention" in _kind(module).lower()]
    # what compares queries and keys without values, such as an indexer, serves what it is in
    attention = [
        a for a in attention if _has_values(modules[a]) or not any(_is_inside(a, b) for b in named)
    ]
    alone = [a for a in named if not any(_is_inside(b, a) for b in attention + named)]
    wanted = set(attention) | {a for a in alone if any(True for _ in modules[a].parameters())}
    return [name for name in modules if name in wanted]


def blocks(model: nn.Module) -> list[str]:
    """Return the names of a model's blocks, list entries with attention and other matrices in them.

    In a model without attention they are the entries of the longest list of one class.

    Examples
    --------
    >>> layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    >>> blocks(nn.TransformerEncoder(layer, 2))
    ['layers.0', 'layers.1']
    """
    attention = attention_modules(model)
    modules = dict(model.named_modules())
    inside = [name for name in modules if name and _is_list(modules[name.rpartition(".")[0]])]
    whole = [name for name in inside if _is_whole(name, modules[name], attention)]
    if attention:
        return [a for a in whole if not any(_is_inside(b, a) for b in whole)]
    lists = [[a for a in inside if a.rpartition(".")[0] == outer] for outer in modules]
    alike = [names for names in lists if len({type(modules[a]) for a in names}) == 1]
    return max(alike, key=len, default=[])


def remarks(module: nn.Module) -> str:
    """Return in words what an attention module has besides attention, or lacks of it."""
    if isinstance(module, nn.MultiheadAttention):
        return ""
    named = module.named_children()
    norms = [name for name, child in named if "norm" in _kind(child).lower()]
    norms = [x for x in norms if not _OF_QUERIES.fullmatch(re.sub("^(q|k)v?_a", r"\1", x))]
    if norms:
        return f"includes {', '.join(norms)} and what is added before it"
    is_bare = is_attention(module) and not projections(module)["output"]
    return "without output projection" if is_bare else ""


def is_attention(module: nn.Module) -> bool:
    """Return whether a module has the projections of attention among its children."""
    if isinstance(module, nn.MultiheadAttention):
        return True
    parameters = module.named_parameters(remove_duplicate=False)
    matrices = [name for name, x in parameters if x.ndim >= 2 and "." in name]
    names = {name.partition(".")[0] for name in matrices}
    patterns = (_QUERY, _KEY, _FUSED)
    has_query, has_key, has_fused = (any(map(p.fullmatch, names)) for p in patterns)
    is_called = "atten" in _kind(module).lower()
    return (has_query and (has_key or has_fused)) or (has_fused and is_called)


def _has_values(module: nn.Module) -> bool:
    parts = projections(module)
    return isinstance(module, nn.MultiheadAttention) or bool(parts["value"] or parts["fused"])


def projections(module: nn.Module) -> dict[str, list[nn.Module]]:
    """Return the children of an attention module, as query, key, value, fused and output."""
    patterns = {"query": _QUERY, "key": _KEY, "value": _VALUE, "fused": _FUSED}
    children: dict[str, list[nn.Module]] = {role: [] for role in (*patterns, "output")}
    for name, child in module.named_children():
        weight = getattr(child, "weight", None)
        if weight is None or weight.ndim < 2 or isinstance(child, nn.Embedding):
            continue
        roles = (role for role, pattern in patterns.items() if pattern.fullmatch(name))
        children[next(roles, "output")].append(child)
    return children


def norm_role(name: str) -> str | None:
    """Return whether a child of this name normalises queries or keys, or None."""
    is_norm = _OF_QUERIES.fullmatch(name)
    return {"q": "query", "k": "key"}[name[0].lower()] if is_norm else None


def _kind(module: nn.Module) -> str:
    return type(module).__name__


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.Sequential)


def _is_inside(inner: str, outer: str) -> bool:
    return inner != outer and (inner.startswith(f"{outer}.") or outer == "")


def _is_whole(name: str, block: nn.Module, attention: list[str]) -> bool:
    """Return whether a list entry holds attention, and matrices elsewhere, as a block does."""
    own = [inner for inner in attention if _is_inside(inner, name)]
    around = {_part(inner.removeprefix(f"{name}.")) for inner in own}
    matrices = {_part(part) for part, x in block.named_parameters() if x.ndim >= 2}
    if len(own) == 1 and len(matrices) == 1 and matrices == around:  # a wrapper of one child?
        (part,) = matrices
        inner = f"{name}.{part}"
        return inner not in attention and _is_whole(inner, block.get_submodule(part), attention)
    return bool(own) and not matrices <= around


def _part(name: str) -> str:
    """Return the first part of a dotted name, with its number where it is a list."""
    return re.match(r"[^.]*(\.\d+)?", name).group()
