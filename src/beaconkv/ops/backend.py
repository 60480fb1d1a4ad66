"""The choice of the implementation of an operation, which is made in this file alone.

Every operation has a reference; some have faster twins with the same name, arguments, results and errors:

    reference   plain PyTorch that follows the formulas
    fused       plain PyTorch with fewer steps
    triton      kernels for CUDA devices, under ``ops/triton``, imported when first needed

``auto`` takes Triton for CUDA tensors where Triton works, and else the fastest plain version. Any other choice is
used literally; an operation without such a twin runs the next one above it in this list. The choice holds for the whole
process: the environment variable ``BEACONKV_OPS``, read once, or :class:`use_backend`.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor

LEVELS = ("reference", "fused", "triton")
CHOICES = ("auto", *LEVELS)
VARIABLE = "BEACONKV_OPS"
MIN_CAPABILITY = (8, 0)
"""Triton does not support older NVIDIA devices."""

_choice: str | None = None  # None: not yet read from the environment


def current_backend() -> str:
    """The choice that holds now, one of ``CHOICES``."""
    global _choice
    if _choice is None:
        _choice = _checked(os.environ.get(VARIABLE) or "auto", VARIABLE)
    return _choice


class use_backend:  # noqa: N801 - used like a function: called for its effect, or in a ``with`` statement
    """Choose the implementations for the whole process; as a context manager, until the block ends.

    Raises:
        ValueError: another name.
        RuntimeError: "triton" where Triton does not work; the message has the reason.
    """

    def __init__(self, name: str):
        global _choice
        self._before = current_backend()
        _choice = _checked(name, "backend")

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_) -> None:
        global _choice
        _choice = self._before


def _checked(name: str, what: str) -> str:
    if name not in CHOICES:
        raise ValueError(f"{what} must be one of {', '.join(CHOICES)}; got {name!r}")
    if name == "triton" and (reason := why_not_triton()):
        raise RuntimeError(f"{what} is 'triton', but {reason}")
    return name


def interpreted() -> bool:
    """Whether Triton's kernels run in its interpreter, which takes tensors of any device."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def why_not_triton() -> str | None:
    """The reason why Triton's kernels do not run in this process, or None if they run."""
    try:
        import_module("triton")
    except Exception as error:  # a broken installation is treated as a missing one
        return f"triton cannot be imported ({type(error).__name__}: {error})"
    if interpreted():
        return None
    if not torch.cuda.is_available():
        return "there is no CUDA device, and TRITON_INTERPRET=1 is not set"
    if torch.version.hip is None:
        for index in range(torch.cuda.device_count()):
            if (capability := torch.cuda.get_device_capability(index)) < MIN_CAPABILITY:
                return f"device {index} has compute capability {capability}, Triton needs {MIN_CAPABILITY}"
    try:
        import_module(f"{__package__}.triton.launch").probe()
    except Exception as error:  # most often no C compiler, which Triton needs for its launchers
        return f"its first kernel failed ({type(error).__name__}: {error})"
    return None


@functools.cache
def _triton_works() -> bool:
    if reason := why_not_triton():
        warnings.warn(f"the plain operations run on CUDA tensors, since {reason}", RuntimeWarning, stacklevel=3)
    return reason is None


def dispatched(
    reference: Callable, *, fused: Callable | None = None, triton: str | None = None, by: str | None = None
) -> Callable:
    """The operation that runs the implementation chosen, with the reference's name and docstring.

    Args:
        reference: Implementation that always exists; the twins run it, too, for rare arguments.
        fused: Fast twin in plain PyTorch, if there is one.
        triton: Name of the module of ``ops/triton`` that holds a function of the same name, if there is one.
        by: Name of the parameter whose tensor decides under "auto"; the first if not given.

    Returns:
        A function whose ``implementations`` maps names of ``LEVELS`` to functions; those that take time to import
        are loaded when called.
    """
    parameters = tuple(inspect.signature(reference).parameters)
    by = by or parameters[0]
    index = parameters.index(by)
    plain = fused or reference
    name = reference.__name__
    implementations = {"reference": reference}
    if fused is not None:
        implementations["fused"] = fused
    if triton is not None:
        implementations["triton"] = on_triton = _lazy(f"{__package__}.triton.{triton}", name)

    @functools.wraps(reference)
    def operation(*args, **kwargs):
        choice = _choice or current_backend()
        if choice == "reference":
            return reference(*args, **kwargs)
        if choice == "fused" or triton is None:
            return plain(*args, **kwargs)
        tensor = args[index] if len(args) > index else kwargs.get(by)
        if choice == "auto":
            if tensor is None or not tensor.is_cuda or _needs_grad(tensor) or not _triton_works():
                return plain(*args, **kwargs)
        elif isinstance(tensor, Tensor) and not tensor.is_cuda and not interpreted():
            raise RuntimeError(
                f"{name}: the backend is 'triton', but {by} is on {tensor.device}, and TRITON_INTERPRET=1 is not set"
            )
        return on_triton(*args, **kwargs)

    operation.implementations = implementations
    return operation


def _needs_grad(tensor: Tensor) -> bool:
    """The kernels have no backward pass."""
    return tensor.requires_grad and torch.is_grad_enabled()


def _lazy(module: str, name: str) -> Callable:
    loaded = None

    def call(*args, **kwargs):
        nonlocal loaded
        if loaded is None:
            loaded = getattr(import_module(module), name)
        return loaded(*args, **kwargs)

    call.__name__, call.module = name, module
    return call
