"""Helpers of every kernel launch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

_NOTHING = nullcontext()


def on_device_of(tensor: Tensor) -> AbstractContextManager:
    """Make the tensor's device the current one, on which Triton launches."""
    return torch.cuda.device_of(tensor) if tensor.is_cuda else _NOTHING


def at_least_16(size: int) -> int:
    """The smallest power of two that is at least ``size`` and that ``tl.dot`` accepts."""
    return max(16, triton.next_power_of_2(size))


@triton.jit
def _one(target):
    tl.store(target, 1)


def probe() -> None:
    """Compile and run the smallest kernel. Raises Triton's error if that fails."""
    _one[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"))
