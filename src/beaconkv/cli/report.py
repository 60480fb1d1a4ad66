"""``beaconkv report``: the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..units import human_bytes
from .common import bar, console, parse_budgets, split
from .outputs import require_file

if TYPE_CHECKING:
    from ..analysis.trace import Trace


def report(
    trace: Path = typer.Argument(..., help="A trace file, from `beaconkv trace record`."),
    policies: str = typer.Option("beaconkv,recent", "--policies", "--policy", help="Methods, with commas; or none."),
    budgets: str = typer.Option("256", "--budgets", "--budget", help="B_max, entries per layer and KV head."),
    top_keys: int = typer.Option(150, help="Keys of each query whose distance is averaged."),
    distance: float = typer.Option(200, help="Mean distance in tokens beyond which a query is global."),
    heads: int | None = typer.Option(None, help="Heads that can be explored. Default: as many as fit six megabytes."),
    out: Path = typer.Option(Path("results/report.html"), help="The page: one file, which needs no network."),
) -> None:
    """Make a page to explore a trace: what each token looks back at, and what methods would have dropped."""
    from ..analysis.trace import Trace
    from ..evaluation.cells import make_cells

    if heads is not None and heads < 1:
        raise ValueError(f"heads must be at least 1, got {heads}")
    cells = [] if policies in ("", "none") else make_cells(split(policies), parse_budgets(budgets))
    opened = Trace(trace)
    require_file(out)
    write_page(opened, [(cell.policy, cell.budget) for cell in cells], out, top_keys, distance, heads)
    console.print(f"page: {out} ({human_bytes(out.stat().st_size)})", highlight=False, markup=False)


def write_page(
    trace: Trace,
    cells: list[tuple[str, int | None]],
    out: Path,
    top_keys: int = 150,
    distance: float = 200,
    heads: int | None = None,
) -> None:
    """Diagnose a trace, replay methods over it, and write the page."""
    from ..analysis.diagnosis import diagnose
    from ..analysis.losses import compare_policies
    from ..analysis.report.data import page_data
    from ..analysis.report.page import render_page

    layers = len(trace.info.layers)
    with bar("looking", 2.0 if cells else 1.0, counts=False) as advance:
        found = diagnose(trace, top_keys=top_keys, distance=distance, advance=lambda done: advance(done / layers))
        outcomes = compare_policies(trace, cells, advance=advance) if cells else []
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(render_page(page_data(trace, found, outcomes, heads)).encode("utf-8", "replace"))
