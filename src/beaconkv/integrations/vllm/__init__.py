"""Bounded caches in a vLLM server, by vLLM's public extension points alone.

The code runs only in a server whose worker class is :data:`WORKER` and whose settings name a budget. ``beaconkv serve``
starts one.
"""

from __future__ import annotations

from .settings import WORKER, ServingSettings

__all__ = ["WORKER", "ServingSettings", "register"]


def register() -> None:
    """vLLM's plugin: called in each of its processes. Does nothing without settings in the environment."""
    if ServingSettings.from_environment(strict=False) is None:
        return
    from .registration import register_backends

    register_backends()
