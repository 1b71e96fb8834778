"""From a module of PyTorch or transformers to an :class:`~lipcore.attention.Attention`, verified.

A module says where its weights are, but not always how it orders them, scales scores or rotates
positions. There are few possibilities, and each is tried against the output of the module.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from lipcore._checks import require
from lipcore._heads import head_outputs
from lipcore.attention import Attention
from lipcore.guard import draw_normal
from lipcore.models.capture import Captured, captured, record, slow_path
from lipcore.models.structure import is_attention, norm_role, projections

#: How far the outputs of module and layer may differ, relative to the largest entry.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-6}
#: Masks of transformers hide keys by the most negative number of their precision.
_HIDDEN = -1e4
#: What to do with a module that does not say what it attends to.
_PASS = "pass what it is called with in its model"
#: How far the probes are from the tokens, beside the larger of their size and one.
PROBES = (0.1, 1.0)
_TOKENS = 5
#: Attributes of modules that do not see all keys, however these are masked.
_OWN_WINDOW = re.compile(r"(?<!sliding_)window|chunk|dilat|block_size", re.I)


def from_module(module: nn.Module, *args, **inputs) -> Attention:
    r"""Return the attention layer that a module is, verified against the module on the spot.

    Parameters
    ----------
    module : torch.nn.Module
        An ``nn.MultiheadAttention``, the ``self_attn`` of an ``nn.TransformerEncoderLayer``, or an
        attention class of transformers or of your own with projections under usual names.
    *args, **inputs
        The inputs of the module: tokens, masks, positions. If left out, they are random tokens,
        with a causal mask if the module is marked causal, with the positions of its config, and
        with its sliding window, whose width is that of the masks that its library makes for it.

    Returns
    -------
    Attention
        The same map, to 1e-5 of its largest entry in float32, at these tokens and at others nearby.
        A mask among the inputs fixes its number of tokens.

    Raises
    ------
    ValueError
        If no reading gives the module's output: it has more than an Attention has, such as a
        residual. :func:`~lipcore.models.capture.capture` then measures it by autodiff.

    Examples
    --------
    >>> import torch
    >>> module = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> f = from_module(module)
    >>> X = torch.randn(3, 5, 8)
    >>> torch.allclose(f(X), module(X, X, X)[0], atol=1e-6)
    True
    """
    kind = type(module).__name__
    require(isinstance(module, nn.Module), "module", "a torch.nn.Module", kind, TypeError)
    require(is_attention(module), "module", "attention with its projections", kind)
    if args or inputs:
        (call,) = record(module, [""], *args, **inputs)
        return read(captured(call))
    # without inputs, what the module would be masked by in its model must be known from itself
    causal = _is_causal(module)
    window, mask = _window(module, causal)
    try:
        args, inputs = _example(module, mask)
        (call,) = record(module, [""], *args, **inputs)
    except (TypeError, RuntimeError, AttributeError, IndexError, AssertionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"module: cannot be run on tokens alone ({reason}): {_PASS}") from error
    attention = read(captured(call))
    return (
        attention if mask is None else replace(attention, mask=None, causal=causal, window=window)
    )


def read(fn: Captured) -> Attention:
    """Return captured attention as an Attention, with its mask; ValueError if it is none."""
    module = fn.call.module
    X = fn.X
    require(X.dtype in TOLERANCE, "module", "float32 or float64", X.dtype)
    # where tokens are equal, or small beside biases, a mask or a scale is not seen at them
    size = X.square().mean().sqrt().clamp(min=1) * draw_normal(X.shape).to(X)
    with torch.no_grad(), slow_path():  # the fast path holds all attention weights at once
        probes = [X, *(X + share * size for share in PROBES)]
        truths = [fn(probe) for probe in probes]
        for attention in _candidates(module, fn):
            if _agree(attention, probes, truths):
                return attention
    cure = "measure it by autodiff, with lipcore.capture"
    got = f"{fn.name or 'one'} ({fn.kind}), whose output no reading of its weights gives"
    raise ValueError(f"module: expected what an Attention can compute, got {got}: {cure}")


def _agree(attention: Attention, probes: list[Tensor], truths: list[Tensor]) -> bool:
    """Return whether the outputs at X agree, and how they change towards each of the probes.

    Changes are compared, since beside a large bias of the output their differences would be small;
    where so large a bias leaves them few digits, nothing is agreed upon. A small change may be less
    exact, as some modules work in float32 inside, whatever their dtype.
    """
    outputs = []
    for X, Y, share in zip(probes, truths, (1.0, *PROBES), strict=True):
        try:
            heads = head_outputs(attention, X)  # in memory linear in n
            outputs.append(attention.join_heads(attention.gated(heads, X), bias=True))
        except (ValueError, RuntimeError):  # a mask, or a norm, that does not fit
            return False
        if outputs[-1].shape != Y.shape:
            return False
        is_first = len(outputs) == 1
        move = Y if is_first else Y - truths[0]
        error = (outputs[-1] if is_first else outputs[-1] - outputs[0]) - move
        size = move.abs().amax()
        rounding = 16 * torch.finfo(X.dtype).eps * Y.abs().amax()
        is_close = error.abs().amax() <= TOLERANCE[X.dtype] / share * size + rounding
        if not bool(is_close and rounding <= 1e-3 * size):
            return False
    return True


def _candidates(module: nn.Module, fn: Captured) -> Iterator[Attention]:
    """Yield every reading of a module, the most usual first."""
    heads = _number(module, "num_attention_heads", "num_heads", "n_heads", "n_head", "heads")
    key_heads = _number(module, "num_key_value_heads", "num_kv_heads", "n_kv_heads") or heads
    if heads is None:
        return
    sinks = getattr(module, "sinks", None)
    options = {} if sinks is None else {"sinks": sinks.detach().to(fn.X)}
    cap = _number(module, "attn_logit_softcapping", "softcap", "logit_softcapping")
    options |= {"softcap": float(cap)} if cap else {}
    tables = [*_tables(fn, heads)]
    for parts in weights_of(module, heads, key_heads):
        k = parts["query"].shape[1]
        scales = [_number(module, "scaling", "scale", "softmax_scale", "norm_factor"), k**-0.5, 1.0]
        scales = list(dict.fromkeys(scale for scale in scales if scale is not None))
        turned = [*_turned(parts, fn)]
        for (weights, factor, order), table, scale in itertools.product(turned, tables, scales):
            given = options | table | _norms(module, order)
            try:
                yield Attention(**weights, **given, scale=float(scale) * factor)
            except (ValueError, TypeError):  # shapes that do not fit: not this reading
                continue


class _Reordered(nn.Module):
    """A norm of vectors whose entries are in another order."""

    def __init__(self, norm: nn.Module, order: Tensor) -> None:
        super().__init__()
        self.norm = norm
        self.register_buffer("order", order)
        self.eval()

    def forward(self, vectors: Tensor) -> Tensor:
        return self.norm(vectors[..., self.order.argsort()])[..., self.order]


def _norms(module: nn.Module, order: Tensor | None) -> dict[str, nn.Module]:
    """Return the norms that the module applies to each head's queries and keys."""
    norms = {norm_role(name): child for name, child in module.named_children()}
    norms = {f"{role}_norm": norm for role, norm in norms.items() if role is not None}
    return norms if order is None else {k: _Reordered(norm, order) for k, norm in norms.items()}


def _number(module: nn.Module, *names: str):
    """Return the first of the attributes that the module, or its config, has."""
    for holder, name in itertools.product((module, getattr(module, "config", None)), names):
        value = getattr(holder, name, None)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    return None


def weights_of(module: nn.Module, heads: int, key_heads: int) -> Iterator[dict[str, Tensor]]:
    """Yield weights and biases of queries, keys, values and output, as an Attention takes them."""
    if isinstance(module, nn.MultiheadAttention):
        if module.bias_k is not None or module.add_zero_attn:
            return
        joined, bias = module.in_proj_weight, module.in_proj_bias
        separate = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
        weights = separate if joined is None else joined.chunk(3)
        biases = [None] * 3 if bias is None else bias.chunk(3)
        pairs = [*zip(weights, biases, strict=True)]
        yield _parts(pairs, (heads,) * 3) | output_of(module.out_proj)
        return
    children = projections(module)
    outputs = [output_of(child) for child in children["output"]] or [{}]
    counts = (heads, key_heads, key_heads)
    single = [children[name] for name in ("query", "key", "value")]
    if all(len(children) == 1 for children in single):
        pairs = [_matrix(children[0]) for children in single]
        parts = _separate(pairs, counts)
        yield from (parts | output for output in outputs)
    if len(children["fused"]) == 1:
        weight, bias = _matrix(children["fused"][0])
        for order in _orders(len(weight), heads, key_heads):  # the reading that agrees is taken
            pairs = [(weight[rows], None if bias is None else bias[rows]) for rows in order]
            parts = _parts(pairs, counts)
            yield from (parts | output for output in outputs)


def _orders(size: int, heads: int, key_heads: int) -> Iterator[list[Tensor]]:
    """Yield the rows of queries, keys and values in one weight, in three parts or by groups."""
    total = heads + 2 * key_heads
    if size % total:
        return
    k = size // total
    rows = torch.arange(size).reshape(total, k)
    yield [part.flatten() for part in rows.split([heads, key_heads, key_heads])]
    groups = rows.reshape(key_heads, heads // key_heads + 2, k)
    yield [groups[:, :-2].flatten(), groups[:, -2].flatten(), groups[:, -1].flatten()]


def _separate(pairs: list, counts: tuple[int, ...]) -> dict[str, Tensor | None]:
    """Return queries, keys and values of three projections; half of double queries are gates."""
    heads, key_heads, _ = counts
    parts = _parts(pairs, counts)
    (query, _), (key, _), _ = pairs
    if len(query) * key_heads == 2 * len(key) * heads:
        for name, gate in (("query", "gate"), ("query_bias", "gate_bias")):
            both = (None, None) if parts[name] is None else parts[name].chunk(2, dim=1)
            parts[name], parts[gate] = (x if x is None else x.contiguous() for x in both)
    return parts


def _matrix(child: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the weight (out, in) and the bias of a projection."""
    weight, bias = child.weight.detach(), getattr(child, "bias", None)
    weight = weight.mT if type(child).__name__ == "Conv1D" else weight
    return weight, None if bias is None else bias.detach()


def _parts(pairs, counts) -> dict[str, Tensor | None]:
    """Return weights and biases of queries, keys and values by their names, head by head."""
    parts = {}
    for name, pair, count in zip(("query", "key", "value"), pairs, counts, strict=True):
        parts[name], parts[f"{name}_bias"] = (split_heads(part, count) for part in pair)
    return parts


def split_heads(weight: Tensor | None, heads: int) -> Tensor | None:
    """Reshape (heads·k, …) to (heads, k, …); None stays None."""
    if weight is None:
        return None
    return weight.detach().reshape(heads, -1, *weight.shape[1:]).contiguous()


def output_of(child: nn.Module) -> dict[str, Tensor | None]:
    """Return weight and bias of an output projection, as an Attention takes them."""
    weight, bias = _matrix(child)
    return {"output": weight.contiguous(), "output_bias": bias}


def _tables(fn: Captured, heads: int) -> Iterator[dict]:
    """Yield what can hide keys or be added to scores, from the arguments, first none and causal."""
    each = [
        list(_readings(table, fn, heads))
        for name, table in fn.call.inputs.items()
        if name not in fn.varied and any(word in name for word in ("mask", "bias", "alibi"))
        if isinstance(table, Tensor) and table.ndim > 1
    ]
    for readings in itertools.product(*each):  # together, such as ALiBi and a mask
        together = {name: x for reading in readings for name, x in reading.items()}
        masks = [reading["mask"] for reading in readings if "mask" in reading]
        if masks:
            together["mask"] = functools.reduce(torch.logical_and, masks)
        yield together
    yield {}
    yield {"causal": True}


def _readings(table: Tensor, fn: Captured, heads: int) -> Iterator[dict]:
    *batch, n, _ = fn.X.shape
    members = batch[0] if batch else 1
    if table.ndim == 2 and len(table) == members and table.shape[1] >= n:
        yield from _readings(table[:, None, None], fn, heads)  # padding of each sequence
        if members != n:
            return
    table = table[..., :n, :n]
    if table.ndim == 3 and len(table) == members * heads and len(table) != heads:
        table = table.unflatten(0, (members, heads))
    if table.ndim == 4 and not batch:
        table = table[0]
    if table.dtype == torch.bool:
        yield {"mask": table}
        yield {"mask": ~table}
        return
    if not table.is_floating_point():
        return
    table = table.to(fn.X)
    hidden = table <= _HIDDEN
    if bool((table.masked_fill(hidden, 0) == 0).all()):
        yield {"mask": ~hidden}
        return
    for causal in (False, True):
        yield {"bias": table.masked_fill(hidden, -torch.inf), "causal": causal}


def _turned(parts: dict, fn: Captured) -> Iterator[tuple[dict, float, Tensor | None]]:
    """Yield weights with rotary frequencies, in the order of dimensions that an Attention has.

    Rotary positions come in as (cos, sin), (…, n, r): r of the k dimensions are rotated, in pairs
    (s, s + r/2) or (2s, 2s + 1). The pairs of an Attention are (s, s + k/2), and those that are not
    rotated have frequency zero. A factor of cos and sin goes into the scale. The order comes last,
    unless it is that of the module.
    """
    pairs = fn.call.inputs.get("position_embeddings")
    if not isinstance(pairs, tuple | list) or len(pairs) != 2:
        yield parts, 1.0, None
        return
    cos, sin = (part.reshape(-1, *part.shape[-2:])[0].double() for part in pairs)
    k = parts["query"].shape[1]
    r = cos.shape[-1]
    if k % 2:
        return
    factor = float((cos[0].square() + sin[0].square()).mean())
    angles = torch.atan2(sin, cos)
    step = angles[1] - angles[0] if len(angles) > 1 else 0 * angles[0]
    turning = torch.arange(r)
    for first, second, omega in (
        (turning[: r // 2], turning[r // 2 :], step[: r // 2]),
        (turning[::2], turning[1::2], step[::2]),
        (turning, turning + r, step),  # cos and sin without their repetition
    ):
        rest = torch.arange(2 * len(first), k).chunk(2) if 2 * len(first) < k else (first[:0],) * 2
        order = torch.cat([first, rest[0], second, rest[1]])
        if len(order) != k or len(first) != len(second):
            continue
        names = [n for n in ("query", "query_bias", "key", "key_bias") if parts[n] is not None]
        turned = parts | {name: parts[name][:, order] for name in names}
        turned["rotary"] = torch.cat([omega, omega.new_zeros(len(rest[0]))]).to(parts["query"])
        yield turned, factor, None if torch.equal(order, torch.arange(k)) else order


def _is_causal(module: nn.Module) -> bool:
    """Return whether a module alone is causal; ValueError if it does not say, or reads a memory."""
    kind = type(module).__name__
    causal = bool(getattr(module, "is_causal", False))
    is_told = {"is_causal", "is_decoder"} & {*inspect.signature(type(module).__init__).parameters}
    reads_memory = getattr(module, "is_decoder", False) and not causal
    is_crossed = "cross" in kind.lower() or getattr(module, "is_cross_attention", False)
    got = f"{kind} that reads a memory: {_PASS}"
    require(not (reads_memory or is_crossed), "module", "self-attention", got)
    sees_images = hasattr(getattr(module, "config", None), "patch_size")
    is_known = causal or is_told or sees_images or "create_causal_mask" not in _home(module)
    got = f"{kind}, which models call both with and without a causal mask: {_PASS}"
    require(is_known, "module", "one that says whether it is causal", got)
    return causal


def _window(module: nn.Module, causal: bool) -> tuple[int | None, Tensor | None]:
    """Return a module's sliding window, and a mask (tokens, tokens) of who sees whom, or None.

    What a window of transformers includes depends on the masks that the model makes. They are made
    here with the window set to two, which tells how the true one is to be read.
    """
    places = torch.arange(_TOKENS)
    behind = places[:, None] - places
    size = _declared_window(module)
    if size is None:
        return None, behind >= 0 if causal else None
    kind = "causal" if causal else "bidirectional"
    names = ("create_sliding_window_causal_mask", "create_bidirectional_sliding_window_mask")
    make = _home(module).get(names[0] if causal else names[1])
    if make is not None:
        config = copy.deepcopy(module.config)
        config.sliding_window = 2
        config._attn_implementation = "eager"
        required = [*inspect.signature(make).parameters.values()]
        given = {p.name: None for p in required if p.default is p.empty and p.kind != p.VAR_KEYWORD}
        given |= {p.name: False for p in required if p.name.startswith("allow_is_")}
        tokens = torch.zeros(1, _TOKENS, 1)
        mask = make(**given | {"config": config, "inputs_embeds": tokens})[0, 0]
        mask = mask if mask.dtype == torch.bool else mask > _HIDDEN
        for more in (0, 1):
            seen = (behind.abs() < 2 + more) & (behind >= 0 if causal else True)
            declared = getattr(module, "sliding_window", size + more)
            if torch.equal(mask.cpu(), seen) and declared in (None, size + more):
                return size + more, seen
    got = f"a {kind} window of {size} whose masks are made elsewhere: {_PASS}"
    raise ValueError(f"module: expected one whose window is known, got {got}")


def _declared_window(module: nn.Module) -> int | None:
    """Return the size of the window that a module, or the config for its layer, declares."""
    own = [name for name, x in vars(module).items() if _OWN_WINDOW.search(name) and x is not None]
    # a module that cuts its keys itself, or whose model does in other ways, would be read wrongly
    is_local = getattr(module, "attention_type", None) == "local"
    got = f"one that makes a window itself ({', '.join(own) or 'attention_type'})"
    require(not own and not is_local, "module", "one whose keys are known", got)
    config = getattr(module, "config", None)
    kind = _layer_type(module)
    size = getattr(config, "sliding_window", None)
    if getattr(module, "sliding_window", size) is None or kind == "full_attention":
        return None
    chunks = getattr(config, "attention_chunk_size", None)
    got = f"attention in chunks, whose masks the model makes: {_PASS}"
    is_whole = chunks is None and kind != "chunked_attention"
    require(is_whole, "module", "one whose keys are known", got)
    is_told = kind is not None or getattr(config, "layer_types", None) is None
    require(is_told, "module", "one that says whether it has a window", f"none: {_PASS}")
    return size


def _layer_type(module: nn.Module) -> str | None:
    """Return the kind of a layer, in models whose layers are of several kinds."""
    kinds = getattr(getattr(module, "config", None), "layer_types", None)
    place = getattr(module, "layer_idx", None)
    by_place = kinds[place] if kinds is not None and isinstance(place, int) else None
    own = getattr(module, "layer_type", None)
    return own if isinstance(own, str) else by_place


def _home(module: nn.Module) -> dict:
    """Return the contents of the file that defines a module's class."""
    return vars(sys.modules[type(module).__module__])


def _example(module: nn.Module, mask: Tensor | None) -> tuple[tuple, dict]:
    """Return arguments to call a module with: random tokens, a mask, positions."""
    like = next(module.parameters())
    d = _number(module, "embed_dim", "hidden_size", "embedding_size", "dim", "d_model", "n_embd")
    if d is None:
        d = _matrix((projections(module)["query"] + projections(module)["fused"])[0])[0].shape[1]
    X = draw_normal((1, _TOKENS, d)).to(like)
    if isinstance(module, nn.MultiheadAttention):
        X = X if module.batch_first else X.transpose(0, 1)
        return (X, X, X), {}
    inputs = {}
    if mask is not None:
        table, hidden = X.new_zeros(1, 1, _TOKENS, _TOKENS), ~mask.to(X.device)
        inputs["attention_mask"] = table.masked_fill(hidden, torch.finfo(X.dtype).min)
    rotary = [x for name, x in _home(module).items() if name.endswith("RotaryEmbedding")]
    if rotary and hasattr(module, "config"):
        positions = torch.arange(_TOKENS, device=X.device)[None]
        turn = rotary[0](module.config).to(X.device)
        kinds = "layer_type" in inspect.signature(turn.forward).parameters
        of_layer = {"layer_type": _layer_type(module)} if kinds else {}
        inputs["position_embeddings"] = turn(X, positions, **of_layer)
    return (X,), inputs
