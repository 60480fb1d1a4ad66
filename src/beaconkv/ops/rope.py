"""Rotating and un-rotating queries with the model's own cos and sin. Reference version.

Beacons are rotated to the current position (BeaconKV, section 4.3), so they are kept as they were before RoPE.
Attention functions receive queries after RoPE; ``unrotate`` recovers the former exactly, so no
projection is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..types import Rope, RotaryFn


def apply_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotation of the pairs (i, i + D_rot/2), the layout of Llama, Qwen and Mistral.

    Args:
        x: (R, heads, n, D); only the first D_rot dimensions are rotated.
        cos, sin: (R or 1, n, D_rot), each frequency twice, half after half.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rot, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = rot.chunk(2, dim=-1)
    rotated = rot * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([rotated, rest], dim=-1)


def apply_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotation of the neighbouring pairs (2i, 2i + 1), the layout of GPT-J, GLM and Cohere.

    Args:
        x: (R, heads, n, D); only the first D_rot dimensions are rotated.
        cos, sin: (R or 1, n, D_rot), each frequency in two neighbouring dimensions.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rot, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    even, odd = rot[..., 0::2], rot[..., 1::2]
    rotated = rot * cos + torch.stack([-odd, even], dim=-1).flatten(-2) * sin
    return torch.cat([rotated, rest], dim=-1)


def apply_half_once(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same as :func:`apply_half` with each frequency once: cos, sin (R or 1, n, D_rot/2), the layout of gpt-oss."""
    return apply_half(x, torch.cat([cos, cos], dim=-1), torch.cat([sin, sin], dim=-1))


def apply_interleaved_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same as :func:`apply_interleaved` with cos and sin half after half, the layout of GLM and Ernie.

    Only the first half of cos and sin (R or 1, n, D_rot) is read, as in those models.
    """
    cos, sin = (table[..., : table.shape[-1] // 2].repeat_interleave(2, dim=-1) for table in (cos, sin))
    return apply_interleaved(x, cos, sin)


def apply_half_backwards(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same as :func:`apply_half`, by the opposite angles, the rotation of NanoChat."""
    return apply_half(x, cos, -sin)


def apply_identity(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """No rotation: layers without positional encoding."""
    return x


def _twice(frequencies: Tensor) -> Tensor:
    return torch.cat([frequencies, frequencies], dim=-1)


def _side_by_side(frequencies: Tensor) -> Tensor:
    return frequencies.repeat_interleave(2, dim=-1)


def _once(frequencies: Tensor) -> Tensor:
    return frequencies


@dataclass(frozen=True)
class RotaryLayout:
    """Which dimensions of a query form a pair, and how cos and sin list the frequencies.

    Attributes:
        name: Name under which traces store it.
        apply: Function that rotates.
        expand: Function from one number for each frequency (..., F) to the form in which ``apply`` takes cos or sin.
        neighbours: Whether pairs are (2i, 2i + 1) and not (i, i + D_rot/2).
        listed_once: Whether cos and sin are read at one index for both dimensions of a pair.
        backwards: Whether the rotation is by the opposite angles.
    """

    name: str
    apply: RotaryFn
    expand: Callable[[Tensor], Tensor]
    neighbours: bool
    listed_once: bool
    backwards: bool = False

    def of_pairs(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """cos or sin of the first and of the second dimension of each pair, each (..., F)."""
        if self.listed_once:
            once = table if self.expand is _once else table[..., : table.shape[-1] // 2]
            return once, once
        return self.pairs(table)

    def pairs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Views of the first and of the second dimension of each pair of x (..., D_rot), each (..., F)."""
        return (x[..., 0::2], x[..., 1::2]) if self.neighbours else x.chunk(2, dim=-1)


LAYOUTS: dict[str, RotaryLayout] = {
    layout.name: layout
    for layout in (
        RotaryLayout("half", apply_half, _twice, neighbours=False, listed_once=False),
        RotaryLayout(
            "half_backwards", apply_half_backwards, _twice, neighbours=False, listed_once=False, backwards=True
        ),
        RotaryLayout("half_of_once", apply_half_once, _once, neighbours=False, listed_once=True),
        RotaryLayout("interleaved", apply_interleaved, _side_by_side, neighbours=True, listed_once=False),
        RotaryLayout("interleaved_of_halves", apply_interleaved_halves, _twice, neighbours=True, listed_once=True),
    )
}
"""Every supported rotary layout: hosts recognise theirs among these, kernels and traces support these."""


def layout_of(apply: RotaryFn) -> RotaryLayout | None:
    """The layout whose rotation is ``apply``; None for :func:`apply_identity` and for unknown functions."""
    return next((layout for layout in LAYOUTS.values() if layout.apply is apply), None)


def same_before_rope(seen: Iterable[tuple[Tensor, Rope]], tolerance: float) -> bool:
    """Whether queries that differ in their rotation alone are equal once it is undone.

    Args:
        seen: Queries (R, heads, 1, D) after RoPE, each with its rope; at least two.
        tolerance: Maximum difference allowed, as a share of the largest component.
    """
    first, *others = (unrotate(query, rope) for query, rope in seen)
    return all((first - other).abs().max() <= tolerance * first.abs().max() for other in others)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """RoPE(x) at the positions of ``rope``, attention factor included.

    Args:
        x: Queries (R, heads, n, D), before RoPE.
        rope: Rope of n positions (or one, for all n), rows R or 1.

    Returns:
        (R, heads, n, D) float32.
    """
    return rope.apply(x.float(), rope.cos.float(), rope.sin.float())


def unrotate(x: Tensor, rope: Rope) -> Tensor:
    """The inverse of :func:`rotate`: the query before RoPE, attention factor divided out.

    A rotation by (cos, -sin) undoes the angle. A model may scale cos and sin by an attention factor f
    (YaRN), and reduced precision makes cos² + sin² differ from f² slightly; both are divided out
    exactly: rotating and un-rotating a vector of ones with the model's own function gives
    cos² + sin² in every rotary dimension and 1 in the others, whatever the layout.

    Arguments and result are those of :func:`rotate`.
    """
    cos, sin = rope.cos.float(), rope.sin.float()
    ones = torch.ones(cos.shape[0], 1, cos.shape[1], x.shape[-1], device=x.device)
    norm = rope.apply(rope.apply(ones, cos, sin), cos, -sin)
    return rope.apply(x.float(), cos, -sin) / norm


def unrotate_into(target: Tensor, start: int, x: Tensor, rope: Rope) -> None:
    """Write :func:`unrotate` of ``x`` in place into ``[start, start + m)`` of a buffer's third dimension.

    Args:
        target: Buffer (R, heads, capacity, D), any float dtype.
        start: Index of the first slot that is written.
        x: Queries (R, heads, m, D), after RoPE.
        rope: Rope of m positions (or one, for all m), rows R or 1.
    """
    target[:, :, start : start + x.shape[2]] = unrotate(x, rope)
