"""Where entries live and when they are evicted; knows policies, and no host."""

from ..schedule import SCOPES, EvictionSchedule, staggered
from .footprint import can_stack, row_bytes, state_bytes
from .layer import AttentionInputs, BoundedLayer, pick_steps
from .progress import Progress, Run, most_slots
from .stack import LayerStack
from .stats import CacheStats

__all__ = [
    "SCOPES",
    "AttentionInputs",
    "BoundedLayer",
    "CacheStats",
    "EvictionSchedule",
    "LayerStack",
    "Progress",
    "Run",
    "can_stack",
    "most_slots",
    "pick_steps",
    "row_bytes",
    "staggered",
    "state_bytes",
]
