"""Streaming text to a terminal, with a status line of the cache below."""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len
from rich.live import Live
from rich.text import Text
from transformers import TextStreamer

from ..integrations.transformers import BoundedCache
from ..units import human_bytes
from .common import console


class LiveText(TextStreamer):
    """Streams text; on a terminal, with a status line of the cache below."""

    def __init__(self, tokenizer: Any, cache: BoundedCache, quiet: bool) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.cache, self.quiet = cache, quiet
        self.line = ""
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal and not quiet else None

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if self.quiet:
            return
        if self.live is None:
            print(text, end="\n" if stream_end else "", flush=True)
            return
        *whole, self.line = (self.line + text).split("\n")
        for line in whole:
            self.live.console.print(line, markup=False, highlight=False)
        width = self.live.console.width
        while cell_len(self.line) > width:
            # A paragraph taller than the screen would push the status out: print it row by row.
            cut = max(self.line[:width].rfind(" ") + 1, 0) or width // 2
            self.live.console.print(self.line[:cut].rstrip(), markup=False, highlight=False)
            self.line = self.line[cut:]
        body = Text(self.line if stream_end else self.line + "\n")
        self.live.update(Text.assemble(body, "" if stream_end else (status_line(self.cache), "dim")), refresh=True)

    def __enter__(self) -> LiveText:
        if self.live is not None:
            self.live.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self.live is not None:
            self.live.__exit__(*exc)


def status_line(cache: BoundedCache) -> str:
    """Stored entries, tokens seen, evictions, bytes of the cache and of what the policy remembers."""
    stats = cache.stats
    times = "eviction" if stats.evictions == 1 else "evictions"
    return (
        f"holds {stats.entries:,} of {stats.tokens_seen:,} tokens · {stats.evictions} {times} · "
        f"{human_bytes(stats.kv_bytes)} + {human_bytes(stats.state_bytes)}"
    )
