"""Long reasoning in a small, fixed KV cache. Importing this changes nothing anywhere."""

import logging
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import models
    from .cache import CacheStats
    from .integrations.transformers import BoundedCache, CompiledDecoder
    from .policies import EvictionPolicy, PolicySpec, Preset, make_policy, parse_policy, policies
    from .schedule import EvictionSchedule
    from .types import CacheView, EvictionEvent

__version__ = "0.1.0"

# The library logs to the logger "beaconkv"; a program that shows the log adds a handler.
logging.getLogger(__name__).addHandler(logging.NullHandler())

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

# torch takes seconds to import and transformers longer: a name is imported when it is first used.
_HOME = {
    "BoundedCache": ".integrations.transformers",
    "CompiledDecoder": ".integrations.transformers",
    "CacheStats": ".cache",
    "EvictionSchedule": ".schedule",
    "EvictionPolicy": ".policies",
    "PolicySpec": ".policies",
    "Preset": ".policies",
    "make_policy": ".policies",
    "parse_policy": ".policies",
    "CacheView": ".types",
    "EvictionEvent": ".types",
}


def __getattr__(name: str):
    if name == "models":
        return import_module(".models", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """``beaconkv.policies`` is a function, and there is a subpackage of that name.

    The first import of the subpackage would replace the function; a property is not replaced.
    """

    @property
    def policies(self):
        return import_module(".policies", __name__).policies

    @policies.setter
    def policies(self, subpackage: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package
