"""Twins run on the CUDA device if there is one, else in Triton's interpreter, else not at all."""

import pytest
import torch

from beaconkv.ops.backend import interpreted, why_not_triton


@pytest.fixture(scope="session")
def device():
    """Where kernels run. Every test here asks for it, and is skipped if they run nowhere."""
    if reason := why_not_triton():
        pytest.skip(f"Triton twins cannot run: {reason}")
    return torch.device("cpu" if interpreted() else "cuda")


@pytest.fixture(autouse=True)
def _dirty_memory(monkeypatch):
    """New memory holds nonsense, so that an element that was not written shows."""
    empty = torch.empty

    def filled(*args, **kwargs):
        out = empty(*args, **kwargs)
        return out.fill_(float("nan") if out.is_floating_point() else -(2**30))

    monkeypatch.setattr(torch, "empty", filled)
