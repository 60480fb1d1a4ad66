"""What every launch needs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

_NOTHING = nullcontext()


def on_device_of(tensor: Tensor) -> AbstractContextManager:
    """Triton launches on the current device, which need not be the one that holds a layer's tensors."""
    return torch.cuda.device_of(tensor) if tensor.is_cuda else _NOTHING


def at_least_16(size: int) -> int:
    """The power of two that holds ``size``, and that ``tl.dot`` accepts."""
    return max(16, triton.next_power_of_2(size))


@triton.jit
def _one(target):
    tl.store(target, 1)


def probe() -> None:
    """Compile and run the smallest kernel. Raises whatever keeps Triton from doing so."""
    _one[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"))
