"""Storage of entries and the times of their eviction. Imports policies, and no host."""

from ..schedule import SCOPES, EvictionSchedule, staggered
from .eviction import EntryStore, Retention, evict
from .footprint import can_stack, row_bytes, state_bytes
from .layer import BoundedLayer
from .pending import AttentionInputs, pick_steps
from .progress import Chunk, Progress, eviction_steps, most_slots
from .stack import LayerStack, stacked_params
from .stats import CacheStats

__all__ = [
    "SCOPES",
    "AttentionInputs",
    "BoundedLayer",
    "CacheStats",
    "Chunk",
    "EntryStore",
    "EvictionSchedule",
    "LayerStack",
    "Progress",
    "Retention",
    "can_stack",
    "evict",
    "eviction_steps",
    "most_slots",
    "pick_steps",
    "row_bytes",
    "stacked_params",
    "staggered",
    "state_bytes",
]
