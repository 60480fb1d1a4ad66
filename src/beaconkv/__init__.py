"""Long reasoning in a small, fixed KV cache. Importing this changes nothing anywhere."""

from importlib import import_module

from .cache import CacheStats, EvictionSchedule
from .policies import EvictionPolicy, PolicySpec, Preset, make_policy, parse_policy, policies
from .types import CacheView, EvictionEvent

__version__ = "0.1.0"

__all__ = [
    "BoundedCache",
    "CacheStats",
    "CacheView",
    "CompiledDecoder",
    "EvictionEvent",
    "EvictionPolicy",
    "EvictionSchedule",
    "PolicySpec",
    "Preset",
    "make_policy",
    "models",
    "parse_policy",
    "policies",
]


def __getattr__(name: str):
    # transformers takes seconds to import, and ops and policies do not need it.
    if name in ("BoundedCache", "CompiledDecoder"):
        return getattr(import_module(".integrations.transformers", __name__), name)
    if name == "models":
        return import_module(".models", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
