"""Turning queries forward and back with the model's own cos and sin. Reference version.

Beacons are turned to the current position (BeaconKV, section 4.3), so they are kept as they were before RoPE.
Attention functions receive queries after RoPE; ``unrotate`` recovers the former exactly, so no
projection is computed twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..types import Rope


def apply_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotation of the pairs (i, i + D_rot/2), as Llama, Qwen and Mistral lay them out.

    Args:
        x: (R, heads, n, D); only the first D_rot dimensions turn.
        cos, sin: (R or 1, n, D_rot), each frequency twice, half after half.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rot, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = rot.chunk(2, dim=-1)
    turned = rot * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([turned, rest], dim=-1)


def apply_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotation of the neighbouring pairs (2i, 2i + 1), as GPT-J, GLM and Cohere lay them out.

    Args:
        x: (R, heads, n, D); only the first D_rot dimensions turn.
        cos, sin: (R or 1, n, D_rot), each frequency twice, side by side.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rot, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    even, odd = rot[..., 0::2], rot[..., 1::2]
    turned = rot * cos + torch.stack([-odd, even], dim=-1).flatten(-2) * sin
    return torch.cat([turned, rest], dim=-1)


def apply_identity(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """No rotation: layers without positional encoding."""
    return x


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """RoPE(x) at the positions of ``rope``, attention factor included.

    Args:
        x: (R, heads, n, D), before RoPE.
        rope: n positions (or one, for all n), rows R or 1.

    Returns:
        (R, heads, n, D) float32.
    """
    return rope.apply(x.float(), rope.cos.float(), rope.sin.float())


def unrotate(x: Tensor, rope: Rope) -> Tensor:
    """The inverse of :func:`rotate`: the query before RoPE, attention factor divided out.

    A rotation by (cos, -sin) undoes the angle. A model may scale cos and sin by an attention factor f
    (YaRN), and reduced precision makes cos² + sin² differ from f² slightly; both are divided out
    exactly: turning a vector of ones forth and back with the model's own function gives
    cos² + sin² in every rotary dimension and 1 in the others, whatever the layout.

    Args, Returns: as :func:`rotate`.
    """
    cos, sin = rope.cos.float(), rope.sin.float()
    ones = torch.ones(cos.shape[0], 1, cos.shape[1], x.shape[-1], device=x.device)
    norm = rope.apply(rope.apply(ones, cos, sin), cos, -sin)
    return rope.apply(x.float(), cos, -sin) / norm


def unrotate_into(target: Tensor, start: int, x: Tensor, rope: Rope) -> None:
    """Write :func:`unrotate` of ``x`` in place into ``[start, start + m)`` of a buffer's third dimension.

    Args:
        target: (R, heads, capacity, D), any float dtype.
        start: first slot that is written.
        x: (R, heads, m, D), after RoPE.
        rope: m positions (or one, for all m), rows R or 1.
    """
    target[:, :, start : start + x.shape[2]] = unrotate(x, rope)
