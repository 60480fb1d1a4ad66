"""Refusing NaN and infinity without a wait of the host for the device."""

from __future__ import annotations

import torch
from torch import Tensor


def require_finite(tensor: Tensor, name: str) -> None:
    """Raise ``ValueError`` if ``tensor`` holds NaN or infinity.

    On the CPU the error is immediate. On an accelerator the check is queued with the kernels and
    raises a device-side assertion, so that a decode step never waits for it.
    """
    finite = torch.isfinite(tensor).all()
    message = f"{name} holds NaN or infinite values (shape {tuple(tensor.shape)}, dtype {tensor.dtype})"
    if tensor.device.type == "cpu":
        if not finite:
            raise ValueError(message)
    else:
        torch._assert_async(finite, message)
