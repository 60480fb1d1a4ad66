"""From a trace to the page about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..diagnosis import diagnose
from ..losses import compare_policies
from ..trace import Trace
from .data import page_data
from .page import render_page


def write_page(
    trace: Trace,
    cells: Sequence[tuple[str, int | None]],
    out: Path,
    top_keys: int = 150,
    distance: float = 200,
    heads: int | None = None,
    advance: Callable[[float], None] = lambda share: None,
) -> None:
    """Diagnose a trace, replay methods over it, and write the page.

    Args:
        cells: Policies and budgets; may be empty.
        out: Path of the page.
        top_keys: Number of keys of each query whose distance is averaged.
        distance: Mean distance in tokens beyond which a query is global.
        heads: Number of heads that can be explored; None: as many as fit.
        advance: Function called with each share of the work that was just done, 1 in all.
    """
    parts = (2 if cells else 1) * len(trace.info.layers)
    found = diagnose(trace, top_keys=top_keys, distance=distance, advance=lambda layers: advance(layers / parts))
    outcomes = compare_policies(trace, cells, advance=lambda share: advance(share / 2)) if cells else []
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(render_page(page_data(trace, found, outcomes, heads)).encode("utf-8", "replace"))
