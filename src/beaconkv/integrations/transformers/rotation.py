"""The rotation of each attention module's queries, recognised by trying the module itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ... import ops
from ...types import Rope, RotaryFn

FAR = (70_001, 1_000_003)
"""Positions at which a query without rotation must be what it is at position 0. Both lie beyond the lengths at which
models that scale queries by their position begin to do so."""
POSITION_ARGUMENTS = ("position_ids", "cache_position")
REFUSALS = (TypeError, ValueError, LookupError, AttributeError, RuntimeError)
"""What a module raises that takes its arguments in another form."""


class QueryProbe:
    """A cache layer for one call, which records the query that a module passes to its attention function."""

    query: Tensor | None = None

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args, **kwargs):
        self.query = query
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None


def verified_rotary(
    module: nn.Module, hidden: Tensor, cos: Tensor, sin: Tensor, call_kwarg: str, kwargs: dict
) -> RotaryFn:
    """The rotation of this module's queries, found by trying each known layout on the module itself.

    One random hidden state is sent through the module with the identity as rotation, and with rotations by angles that
    differ in each frequency. With the module's own layout all these queries are equal before RoPE, and with no other.
    A module that never rotates its queries (a layer without positional encoding) is recognised too.

    Args:
        hidden: any hidden states of the model, for size, dtype and device. Their values are not used:
            those of a padding token may be all zero, and zero passes every check.
        cos, sin: shapes (…, D_rot), dtype and device of the model's own.
        call_kwarg: name under which the attention function finds its :class:`QueryProbe`.
        kwargs: other arguments of the module's forward.

    Raises:
        ValueError: no layout fits, or queries depend on their position beyond the rotation, so that the query before
            RoPE cannot be recovered.
    """
    probe = _ModuleProbe(module, hidden, cos, sin, call_kwarg, kwargs)
    size = cos.shape[-1]
    ones, zeros = torch.ones(size), torch.zeros(size)
    plain = probe.query(ones, zeros)
    if not plain.abs().max() > 0:
        raise ValueError(f"{probe.name} cannot be bounded: its queries are zero or no numbers")
    exact = {cos.dtype, hidden.dtype} <= {torch.float32, torch.float64}  # Ernie rotates 16-bit queries by 32-bit tables
    tolerance = 1e-4 if exact else 5e-2
    for position in FAR:
        far = probe.query(ones, zeros, position)
        if not (far - plain).abs().max() <= tolerance * plain.abs().max():
            raise ValueError(
                f"{probe.name} changes queries by their position beyond the rotation (by a scale, for instance): their "
                "direction before RoPE cannot be compared; this kind of model is not supported"
            )
    generator = torch.Generator().manual_seed(0)
    identity = Rope(*probe.embeddings(ones, zeros), ops.apply_identity)
    for layout in ops.LAYOUTS.values():
        listed = layout.expand(torch.zeros(1)).shape[-1]
        if size % listed:
            continue
        angles = [(2 * torch.rand(size // listed, generator=generator) - 1) * math.pi for _ in range(2)]
        tables = [(layout.expand(angle.cos()), layout.expand(angle.sin())) for angle in angles]
        rotated = [probe.query(*pair) for pair in tables]
        if all(torch.equal(query, plain) for query in rotated):
            return ops.apply_identity
        ropes = [Rope(*probe.embeddings(*pair), layout.apply) for pair in tables]
        seen = [(plain, Rope(identity.cos, identity.sin, layout.apply)), *zip(rotated, ropes, strict=True)]
        try:
            if ops.same_before_rope(seen, tolerance):
                return layout.apply
        except REFUSALS:  # cos and sin of a size that this layout does not take
            continue
    raise ValueError(
        f"{probe.name}: its query before RoPE cannot be recovered from the one its attention function receives: its "
        f"rotation is none of {', '.join(ops.LAYOUTS)}; this kind of model is not supported"
    )


class _ModuleProbe:
    """Sends one random hidden state through an attention module, with any rotation.

    Args: see :func:`verified_rotary`.
    """

    def __init__(self, module: nn.Module, hidden: Tensor, cos: Tensor, sin: Tensor, call_kwarg: str, kwargs: dict):
        self.name = f"{type(module).__name__} (layer {module.layer_idx})"
        self.module, self.call_kwarg, self.kwargs, self._cos, self._sin = module, call_kwarg, kwargs, cos, sin
        generator = torch.Generator().manual_seed(0)  # its own: the caller's random numbers must not change
        self.hidden = torch.randn(1, 1, hidden.shape[-1], generator=generator).to(hidden)

    def embeddings(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin (D_rot,) in the shape in which the model passes them: (1, 1, D_rot)."""
        return cos.view(1, 1, -1).to(self._cos), sin.view(1, 1, -1).to(self._sin)

    def query(self, cos: Tensor, sin: Tensor, position: int | None = None) -> Tensor:
        """(1, H, 1, D) float32: the query that reaches the attention function.

        Args:
            cos, sin: (D_rot,).
            position: position that the module is given for the token, if it takes one.

        Raises:
            ValueError: the module fails, or calls no attention function.
        """
        kwargs = dict(self.kwargs)
        for name in POSITION_ARGUMENTS:
            if position is not None and isinstance(kwargs.get(name), Tensor):
                kwargs[name] = torch.full_like(kwargs[name], position)
        probe = QueryProbe()
        kwargs |= {"position_embeddings": self.embeddings(cos, sin), self.call_kwarg: probe}
        try:
            with torch.no_grad():
                self.module.forward(self.hidden, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except REFUSALS as error:
            raise ValueError(f"{self.name} cannot be bounded: trying it on one token failed with: {error}") from error
        if probe.query is None:
            raise ValueError(
                f"{self.name} does not call its attention function through transformers' AttentionInterface: cannot be "
                "bounded"
            )
        return probe.query.float()
