"""Default device and dtype of a model: those of every command of the command line."""

from __future__ import annotations

from typing import Any

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")
"""Device maps that spread a model over the devices of the machine; accelerate implements them."""


def choose_placement(device: str | None = None, dtype: str | None = None) -> dict[str, Any]:
    """Arguments of :func:`beaconkv.models.load`, with the defaults of the command line.

    Args:
        device: Device: "cpu", "cuda", "cuda:1", "mps", ..., "auto" (spread over all); None: the accelerator if there is
            one, else the CPU.
        dtype: Data type: "float32", "bfloat16", "float16" or "auto" (the checkpoint's own); None: the checkpoint's own
            on an accelerator, float32 on the CPU.

    Raises:
        ValueError: an unknown device or dtype, or a device that is not there.
    """
    device = device or default_device()
    require_device(device)
    if dtype is None:
        dtype = "float32" if torch_device(device) == torch.device("cpu") else "auto"
    require_dtype(dtype)
    return {"device_map": device, "dtype": dtype}


def default_device() -> str:
    """The kind of the machine's accelerator ("cuda", "mps", "xpu", ...), else "cpu"."""
    if not torch.accelerator.is_available():
        return "cpu"
    return torch.accelerator.current_accelerator().type


def torch_device(name: str) -> torch.device | None:
    """The device of that name; None for a device map that spreads a model."""
    if name in SPREAD:
        return None
    try:
        return torch.device(name)
    except RuntimeError:
        raise ValueError(
            f"unknown device {name!r}; choose cpu, cuda, cuda:1, mps or another device of torch, or auto"
        ) from None


def require_device(name: str) -> None:
    """Raise ``ValueError`` unless a model can be put there; the message names what is missing, torch or the device."""
    device = torch_device(name)
    if device is None or device.type in ("cpu", "meta"):
        return
    built = {"cuda": torch.backends.cuda.is_built, "mps": torch.backends.mps.is_built}
    if not built.get(device.type, lambda: True)():
        raise ValueError(
            f"device {name!r}: this torch ({torch.__version__}) is built without {device.type.upper()}; "
            "choose --device cpu, or install a torch that is built with it"
        )
    module = getattr(torch, device.type, None)
    if module is None or not module.is_available():
        raise ValueError(f"device {name!r}: no such device is present, or its driver does not work; --device cpu works")
    number = module.device_count()
    if device.index is not None and device.index >= number:
        raise ValueError(f"device {name!r}: there {'is' if number == 1 else 'are'} {number}, counted from 0")


def require_dtype(name: str) -> None:
    """Raise ``ValueError`` for a dtype that models are not loaded in."""
    if name not in (*DTYPES, "auto"):
        raise ValueError(f"unknown dtype {name!r}; choose from {', '.join(DTYPES)}, auto")
