"""Un-rotation directly into a buffer, half by half, without a temporary of its size."""

from __future__ import annotations

from torch import Tensor

from ...types import Rope
from .. import rope as reference

BLOCK = 1 << 17
"""Number of components rotated at a time on a CPU, so that they stay in its cache."""


def unrotate_into(target: Tensor, start: int, x: Tensor, rope: Rope) -> None:
    """The same as :func:`beaconkv.ops.rope.unrotate_into`, bit for bit: equal queries must stay equal."""
    rows, heads, m, dim = x.shape
    cos, sin = rope.cos.float(), rope.sin.float()
    out = target.narrow(2, start, m)
    layout = reference.layout_of(rope.apply)
    if layout is None or layout.backwards or out.dtype != x.dtype or x.requires_grad:
        reference.unrotate_into(target, start, x, rope)
        return
    ones = x.new_ones(cos.shape[0], 1, m, dim, dtype=cos.dtype)
    cos1, cos2, sin1, sin2 = (t.unsqueeze(1) for table in (cos, sin) for t in layout.of_pairs(table))
    rotated = 2 * cos1.shape[-1]
    norm = rope.apply(rope.apply(ones, cos, sin), cos, -sin)[..., :rotated]
    norm1, norm2 = layout.pairs(norm)  # (R or 1, 1, m, D_rot) -> twice (R or 1, 1, m, D_rot / 2)
    step = heads if x.device.type != "cpu" else max(1, BLOCK // (rows * m * dim))
    for head in range(0, heads, step):
        into, own = out[:, head : head + step], x[:, head : head + step].float()
        first, second = layout.pairs(own[..., :rotated])  # (R, step, m, D_rot / 2) each
        first_out, second_out = layout.pairs(into[..., :rotated])
        # No fused multiply-add: it would round once where the reference rounds twice.
        first_out.copy_((first * cos1).add_(second * sin1).div_(norm1))
        second_out.copy_((second * cos2).sub_(first * sin2).div_(norm2))
        if rotated < dim:
            into[..., rotated:] = own[..., rotated:]
