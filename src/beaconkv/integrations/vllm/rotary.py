"""The rotation of a layer's queries by the model's own modules, and a test of it on each layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ... import ops
from ...types import Rope, RotaryFn


class LayerRope:
    """cos and sin of all positions.

    Args:
        cos, sin: (positions, D_rot), in the dtype of the queries.
        apply: function that rotates them.
    """

    def __init__(self, cos: Tensor, sin: Tensor, apply: RotaryFn) -> None:
        self.cos, self.sin, self.apply = cos, sin, apply

    def steps(self, start: int, stop: int) -> Rope:
        """The rope of the logical positions ``[start, stop)``."""
        if stop > self.cos.shape[0]:
            raise ValueError(f"position {stop - 1} is beyond the {self.cos.shape[0]} that the model has a rotation for")
        return Rope(self.cos[None, start:stop], self.sin[None, start:stop], self.apply)


def attention_parents(model: nn.Module, layers: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The module around each attention layer, which has the projections and the rotation.

    Raises:
        ValueError: a layer that is not in the model.
    """
    names = {id(layer): name for name, layer in layers.items()}
    parents = {
        names[id(child)]: module for module in model.modules() for child in module.children() if id(child) in names
    }
    if missing := sorted(set(layers) - set(parents)):
        raise ValueError(f"{type(model).__name__}: no module holds the attention layer {missing[0]}: cannot be bounded")
    return parents


def layer_rope(
    name: str,
    parent: nn.Module,
    queries_at: Callable[[nn.Module, int, Tensor], Tensor],
    hidden: Tensor,
    shared: dict[int, LayerRope],
) -> LayerRope:
    """The rotation of one layer, tested on the layer itself.

    The layer computes the query of one random hidden state at several positions. Before RoPE all these queries must be
    equal; a layer that never rotates its queries is recognised, too.

    Args:
        name: name of the layer.
        parent: its module, see :func:`attention_parents`.
        queries_at: (parent, position, hidden (1, size)) -> the query (1, H, D) that reaches the attention.
        hidden: (1, size) random hidden states, in the dtype of the queries and where they are.
        shared: tables made before, by the module they came from: layers that share one are stepped together.

    Raises:
        ValueError: the query before RoPE cannot be recovered.
    """
    kind = f"{type(parent).__name__} ({name})"
    parameters = inspect.signature(type(parent).forward).parameters
    if not {"positions", "hidden_states"} <= set(parameters):
        raise ValueError(f"{kind} does not take positions and hidden_states: cannot be bounded")
    needed = [name for name, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if more := sorted(set(needed) - {"self", "positions", "hidden_states"}):
        raise ValueError(f"{kind} also needs {', '.join(more)}: cannot be bounded")
    table = getattr(getattr(parent, "rotary_emb", None), "cos_sin_cache", None)
    last = 91 if table is None else table.shape[0] - 1  # far away, where a scale by the position is visible
    positions = sorted({0, min(91, last), last})
    queries = [queries_at(parent, position, hidden).float().transpose(0, 1)[None] for position in positions]
    if not queries[0].abs().max() > 0:
        raise ValueError(f"{kind}: its queries are zero or no numbers: cannot be bounded")
    if all(torch.equal(query, queries[0]) for query in queries):
        if id(None) not in shared:
            still = torch.ones(1, 1, dtype=hidden.dtype, device=hidden.device).expand(1 << 30, 1)
            shared[id(None)] = LayerRope(still, still, ops.apply_identity)
        return shared[id(None)]
    if table is None:
        raise ValueError(f"{kind}: its rotary_emb has no cos_sin_cache: its queries cannot be un-rotated")
    rotary = parent.rotary_emb
    known = [shared[id(rotary)]] if id(rotary) in shared else _readings(table.to(hidden))
    tolerance = 1e-4 if hidden.dtype == torch.float32 else 5e-2
    for rope in known:
        seen = [(query, rope.steps(p, p + 1)) for query, p in zip(queries, positions, strict=True)]
        if ops.same_before_rope(seen, tolerance):
            return shared.setdefault(id(rotary), rope)
    raise ValueError(
        f"{kind}: its query before RoPE cannot be recovered from the one its attention receives: its rotation is "
        "not supported, or its queries are changed by their position in another way; this kind of model is not "
        "supported"
    )


def _readings(table: Tensor) -> list[LayerRope]:
    """The possible meanings of a table (positions, D_rot) of cos and sin: one for each layout that lists both
    dimensions."""
    cos, sin = table.chunk(2, dim=-1)
    layouts = (layout for layout in ops.LAYOUTS.values() if not layout.listed_once)
    return [LayerRope(layout.expand(cos), layout.expand(sin), layout.apply) for layout in layouts]
