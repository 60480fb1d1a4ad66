"""Long reasoning in a small, fixed KV cache. Importing this changes nothing anywhere."""

from .cache import CacheStats, EvictionSchedule
from .policies import EvictionPolicy, make_policy, policies
from .types import CacheView, EvictionEvent

__version__ = "0.1.0"

__all__ = [
    "BoundedCache",
    "CacheStats",
    "CacheView",
    "EvictionEvent",
    "EvictionPolicy",
    "EvictionSchedule",
    "make_policy",
    "policies",
]


def __getattr__(name: str):
    if name == "BoundedCache":  # transformers takes seconds to import; ops and policies do not need it
        from .integrations.transformers import BoundedCache

        return BoundedCache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
