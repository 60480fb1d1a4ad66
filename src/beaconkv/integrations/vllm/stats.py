"""The numbers of a server: evictions and saved memory. Entries are counted per layer and KV head."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .requests import LayerGroup


@dataclass(frozen=True)
class RequestStats:
    """Numbers of one request that is finished.

    Attributes:
        request: vLLM's name of it.
        prompt_tokens, tokens_seen: its prompt; all its tokens.
        entries: stored at the end.
        evictions: since it was last started; a preempted request starts anew.
        bytes_saved: bytes of its keys and values that were not stored at the end, on one rank.
    """

    request: str
    prompt_tokens: int
    tokens_seen: int
    entries: int
    evictions: int
    bytes_saved: int

    def to_dict(self) -> dict[str, Any]:
        """A plain dict, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class ServerStats:
    """Numbers of one worker.

    Attributes:
        requests: that have entries now.
        evictions, entries_dropped, tokens_seen: numbers of these of all requests so far.
        running_stored, running_seen: entries and tokens of the requests that have entries now.
        bytes_per_token: keys and values of one token in all bounded layers, on this rank.
    """

    requests: int
    evictions: int
    entries_dropped: int
    tokens_seen: int
    running_stored: int
    running_seen: int
    bytes_per_token: int

    @property
    def bytes_saved(self) -> int:
        """Bytes of keys and values that the running requests would hold in addition without eviction, on this rank."""
        return (self.running_seen - self.running_stored) * self.bytes_per_token

    def to_dict(self) -> dict[str, int]:
        """A plain dict, ready for JSON."""
        return asdict(self) | {"bytes_saved": self.bytes_saved}


def request_stats(name: str, group: LayerGroup, bytes_per_token: int) -> RequestStats:
    """The numbers of a request that a group still holds."""
    progress = group.requests[name].progress
    gone = progress.seen - progress.settled
    due = progress.due is not None
    return RequestStats(
        name, progress.prompt, progress.seen, progress.settled, progress.evictions + due, gone * bytes_per_token
    )
