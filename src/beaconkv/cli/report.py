"""``beaconkv report``."""

from __future__ import annotations

from pathlib import Path

import typer

from ..units import human_bytes
from .common import bar, console, parse_budgets, split
from .options import BUDGET
from .outputs import require_file


def report(
    trace: Path = typer.Argument(..., help="A trace file, from `beaconkv trace record`."),
    policies: str = typer.Option(
        "beaconkv,recent", "--policies", "--policy", help="Methods, separated by commas; or none."
    ),
    budgets: str = typer.Option("256", "--budgets", "--budget", help=BUDGET),
    top_keys: int = typer.Option(150, help="Number of strongest keys of each query whose distance is averaged."),
    distance: float = typer.Option(200, help="Mean distance in tokens beyond which a query is global."),
    heads: int | None = typer.Option(None, help="Number of heads on the page. Default: as many as fit six megabytes."),
    out: Path = typer.Option(Path("results/report.html"), help="The page: one file, which needs no network."),
) -> None:
    """Make a page to explore a trace: what each token looks back at, and what methods would have dropped."""
    from ..analysis.report.write import write_page
    from ..analysis.trace import Trace
    from ..evaluation.cells import make_cells

    if heads is not None and heads < 1:
        raise ValueError(f"heads must be at least 1, got {heads}")
    cells = [] if policies in ("", "none") else make_cells(split(policies), parse_budgets(budgets))
    opened = Trace(trace)
    require_file(out)
    chosen = [(cell.policy, cell.budget) for cell in cells]
    with bar("looking", 1.0, counts=False) as advance:
        write_page(opened, chosen, out, top_keys, distance, heads, advance)
    console.print(f"page: {out} ({human_bytes(out.stat().st_size)})", highlight=False, markup=False)
