"""Tools of measurements: queries are recorded, entries are hidden, several caches share one forward pass."""

from .hiding import HidingCache
from .query_recorder import QueryRecorder, RecordedQueries, bounded_layers
from .side_by_side import SideBySide

__all__ = ["HidingCache", "QueryRecorder", "RecordedQueries", "SideBySide", "bounded_layers"]
