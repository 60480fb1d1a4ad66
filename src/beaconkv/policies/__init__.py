"""Eviction methods, one file each. A file in this folder registers its policies by itself."""

from importlib import import_module
from pkgutil import iter_modules

from .base import EvictionPolicy, LayerState
from .preset import Preset
from .registry import policies
from .spec import PolicySpec, make_policy, parse_policy

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["EvictionPolicy", "LayerState", "PolicySpec", "Preset", "make_policy", "parse_policy", "policies"]
