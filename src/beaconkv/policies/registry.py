"""The registered policies, their presets, and how a policy is made with some settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from .base import REGISTRY, EvictionPolicy
from .preset import Preset


def policies() -> dict[str, type[EvictionPolicy]]:
    """Names and classes of the registered policies, in alphabetical order."""
    return dict(sorted(REGISTRY.items()))


def policy_class(name: str) -> type[EvictionPolicy]:
    """The policy registered under this name.

    Raises:
        ValueError: an unknown name; the message lists the choices.
    """
    cls = REGISTRY.get(name)
    if cls is None:
        raise ValueError(f"unknown policy {name!r}; choose from {', '.join(policies())}")
    return cls


def preset_of(cls: type[EvictionPolicy], name: str) -> Preset:
    """The preset of a policy that has a given name.

    Raises:
        ValueError: an unknown name; the message lists the choices.
    """
    if name not in cls.presets:
        choices = ", ".join(cls.presets) or "none"
        raise ValueError(f"policy {cls.name!r} has no preset {name!r}; it has {choices}")
    return cls.presets[name]


def build_policy(name: str, settings: Mapping[str, Any]) -> EvictionPolicy:
    """A policy with some settings; the others keep their defaults.

    Raises:
        ValueError: an unknown name, an unknown setting or a setting out of range; the message names
            it and lists the choices.
    """
    cls = policy_class(name)
    known = [f.name for f in fields(cls)]
    for setting in settings:
        if setting not in known:
            raise ValueError(f"policy {name!r} has no setting {setting!r}; it has {', '.join(known) or 'none'}")
    return cls(**settings)
