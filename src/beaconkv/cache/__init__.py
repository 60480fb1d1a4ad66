"""Where entries live and when they are evicted; knows policies, and no host."""

from .layer import AttentionInputs, BoundedLayer
from .schedule import SCOPES, EvictionSchedule, staggered
from .stack import LayerStack
from .stats import CacheStats

__all__ = ["SCOPES", "AttentionInputs", "BoundedLayer", "CacheStats", "EvictionSchedule", "LayerStack", "staggered"]
