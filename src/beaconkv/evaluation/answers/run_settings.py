"""The settings that the samples of a run depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..tasks.load import Task
from .decoding import Sampling


def run_settings(
    tasks: Sequence[Task], sampling: Sampling, seed: int, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Settings that samples depend on, other than the weights; known before a model is loaded."""
    return {
        "tasks": {task.name: hashlib.sha256(repr(task.problems).encode()).hexdigest()[:16] for task in tasks},
        "sampling": asdict(sampling),
        "seed": seed,
        "schedule": {name: value for name, value in (overrides or {}).items() if value is not None},
    }


def weights_hash(model: Any) -> str:
    """A short hash of a model's weights: a sample of each parameter, so that large models are hashed in seconds."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        flat = parameter.detach().flatten()
        some = flat[:: max(1, flat.numel() // 4096)][:4096].float().cpu()
        digest.update(f"{name}{tuple(parameter.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()[:16]
