"""What happened to a cache, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class CacheStats:
    """Counters of one cache over its life. Entries are counted per layer and KV head.

    Attributes:
        tokens_seen: tokens of the longest row, padding excluded.
        entries: entries held now in the fullest row and layer.
        peak_entries: maximum number of entries one layer held in a row between forward passes and within one;
            during prefill that includes the prompt under way.
        evictions: number of evictions per layer of the row that was evicted most often (equal in all layers).
        entries_dropped: entries deleted, summed over rows, KV heads and layers.
        kv_bytes: bytes of the allocated key and value slabs, measured.
        state_bytes: bytes of positions and of what the policy remembers, measured.
        formula_bytes: 2 · layers · rows · H_kv · B_max · D · itemsize, what kv_bytes should be; with scope
            "output" the longest prompt is added to B_max.
        peak_kv_bytes: largest number of bytes of keys and values, the prompt under way in one layer included.
    """

    tokens_seen: int
    entries: int
    peak_entries: int
    evictions: int
    entries_dropped: int
    kv_bytes: int
    state_bytes: int
    formula_bytes: int
    peak_kv_bytes: int

    def to_dict(self) -> dict[str, int]:
        """A plain dict, ready for JSON."""
        return asdict(self)
