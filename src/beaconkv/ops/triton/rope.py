"""Triton twin of un-rotating queries into a buffer: read once, written once, in any dtypes."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ...types import Rope
from .. import rope as reference
from .launch import on_device_of

STEPS = 16
"""Maximum number of queries of a head that a program un-rotates."""


def unrotate_into(target: Tensor, start: int, x: Tensor, rope: Rope) -> None:
    """The same as :func:`beaconkv.ops.unrotate_into`. All tensors may be strided."""
    if not _ordinary(target, start, x, rope):
        reference.unrotate_into(target, start, x, rope)
        return
    rows, heads, steps, dim = x.shape
    cos, sin, layout = rope.cos, rope.sin, reference.layout_of(rope.apply)
    block = min(STEPS, triton.next_power_of_2(steps))
    into = target[:, :, start : start + steps]
    with on_device_of(target):
        _unrotate[(rows * heads, triton.cdiv(steps, block))](
            into,
            x,
            cos,
            sin,
            *into.stride(),
            *x.stride(),
            *_strides(cos),
            *_strides(sin),
            heads,
            steps,
            dim,
            _unrotated(rope),
            NEIGHBOURS=layout.neighbours,
            ONCE=layout.listed_once,
            STEPS=block,
            DIM=triton.next_power_of_2(dim),
            enable_fp_fusion=False,
        )


def _strides(cos: Tensor) -> tuple[int, int, int]:
    """Stride of a dimension; 0 where its size is 1 and it is broadcast."""
    row, step, dim = cos.stride()
    return row if cos.shape[0] > 1 else 0, step if cos.shape[1] > 1 else 0, dim


def _unrotated(rope: Rope) -> int:
    """D_rot: number of dimensions of a query that are rotated."""
    return rope.cos.shape[-1] * (2 if rope.apply is reference.apply_half_once else 1)


def _ordinary(target: Tensor, start: int, x: Tensor, rope: Rope) -> bool:
    """Whether the kernel may run: the layout is supported, and the shapes fit."""
    layout = reference.layout_of(rope.apply)
    if layout is None or layout.backwards:
        return False
    if not target.ndim == x.ndim == 4 or rope.cos.ndim != 3 or x.numel() == 0:
        return False
    rows, heads, steps, dim = x.shape
    rope_rows, rope_steps, _ = rope.cos.shape
    rotary = _unrotated(rope)
    return (
        target.shape[:2] == (rows, heads)
        and target.shape[3] == dim
        and 0 <= start <= target.shape[2] - steps
        and rope.sin.shape == rope.cos.shape
        and rope_rows in (1, rows)
        and rope_steps in (1, steps)
        and 0 < rotary <= dim
        and rotary % 2 == 0
    )


@triton.jit
def _unrotate(
    target, x, cos, sin,
    stride_tr, stride_th, stride_tn, stride_td, stride_xr, stride_xh, stride_xn, stride_xd,
    stride_cr, stride_cn, stride_cd, stride_sr, stride_sn, stride_sd,
    heads, steps, dim, rotary,
    NEIGHBOURS: tl.constexpr, ONCE: tl.constexpr, STEPS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    row, head = program // heads, program % heads
    step = (tl.program_id(1).to(tl.int64) * STEPS + tl.arange(0, STEPS))[:, None]  # (STEPS, 1)
    d = tl.arange(0, DIM)[None, :]  # (1, DIM); what follows is (STEPS, DIM)
    # The other dimension of each pair, and whether a dimension is the second of its pair.
    if NEIGHBOURS:
        second = d % 2 == 1
        other = tl.where(second, d - 1, d + 1)
    else:
        second = d >= rotary // 2
        other = tl.where(second, d - rotary // 2, d + rotary // 2)
    # Index in cos and sin of the frequency of each dimension, and of the other dimension of its pair.
    if ONCE:
        at = d // 2 if NEIGHBOURS else tl.where(second, d - rotary // 2, d)
        other_at = at
    else:
        at, other_at = d, other
    sign = tl.where(second, -1.0, 1.0)
    inside = (step < steps) & (d < dim)
    is_rotated = inside & (d < rotary)

    x += row * stride_xr + head * stride_xh + step * stride_xn
    own = tl.load(x + d * stride_xd, mask=inside, other=0.0).to(tl.float32)
    paired = tl.load(x + other * stride_xd, mask=is_rotated, other=0.0).to(tl.float32)
    cos += row * stride_cr + step * stride_cn
    sin += row * stride_sr + step * stride_sn
    # Dimensions that are not rotated have cos 1 and sin 0.
    c = tl.load(cos + at * stride_cd, mask=is_rotated, other=1.0).to(tl.float32)
    s = tl.load(sin + at * stride_sd, mask=is_rotated, other=0.0).to(tl.float32)
    c_paired = tl.load(cos + other_at * stride_cd, mask=is_rotated, other=1.0).to(tl.float32)
    s_paired = tl.load(sin + other_at * stride_sd, mask=is_rotated, other=0.0).to(tl.float32)

    # A vector of ones, rotated forward and back: cos² + sin², by the same steps as in the reference.
    ones, ones_paired = c - sign * s, c_paired + sign * s_paired
    norm = ones * c + sign * ones_paired * s
    unrotated = tl.div_rn(own * c + sign * paired * s, norm)
    target += row * stride_tr + head * stride_th + step * stride_tn
    tl.store(target + d * stride_td, unrotated.to(target.dtype.element_ty), mask=inside)
