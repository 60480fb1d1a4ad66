"""``beaconkv replay``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from .common import bar, console, messages, name_column, parse_budgets, parse_count, print_json, split
from .models import DEVICE, DTYPE, load_model, placement
from .outputs import require_folder, require_package

if TYPE_CHECKING:
    from ..analysis.trace import Trace

EXPLAINED = (
    "lost: share of attention, after the first eviction, on evicted entries. oracle: loss of an eviction that knows "
    "the future. bound: least loss of any method. regret: lost - oracle.",
    "held: share of each query's strongest keys that are still there. wanted: times that a later query had a dropped "
    "entry among its strongest. cosine: best, of each query to the last observation queries.",
)


def replay(
    trace: Path = typer.Argument(..., help="Path of a trace file, from `beaconkv trace record`."),
    policies: str = typer.Option(
        "beaconkv,recent,rkv,streaming_llm", "--policies", "--policy", help="Methods, separated by commas."
    ),
    budgets: str = typer.Option(
        "256", "--budgets", "--budget", help="Maximum numbers of entries per layer and KV head (B_max)."
    ),
    top_keys: int = typer.Option(16, help="Number of strongest keys of each query that count as wanted."),
    prefix: str | None = typer.Option(None, help='Number of first entries never evicted, or "prompt".'),
    protect: str | None = typer.Option(None, help='Number of last entries never evicted, or "half" of what stays.'),
    budget_min: int | None = typer.Option(
        None, help="Number of entries left after an eviction. Default: 7/8 of the budget."
    ),
    scope: str | None = typer.Option(
        None, help="Scope of the budget: total, prompt included (default), or output, the prompt excluded."
    ),
    restored: int = typer.Option(
        0, "--restore", help="Number of an eviction's entries that are put back; needs the model."
    ),
    event: int | None = typer.Option(
        None, help="Number of the eviction for --restore, from 1. Default: the one missed most soon after."
    ),
    window: int = typer.Option(64, help="Number of tokens after that eviction whose predictions are compared."),
    model: str | None = typer.Option(
        None, "--model", "-m", help="Name of the model for --restore. Default: the trace's model."
    ),
    dtype: str | None = typer.Option(None, help=DTYPE),
    device: str | None = typer.Option(None, help=DEVICE),
    out: Path = typer.Option(Path("results/replay"), help="Folder of replay.json and replay.png."),
    as_json: bool = typer.Option(False, "--json", help="Whether to print JSON instead of a table."),
) -> None:
    """Replay methods over a trace: what each would have dropped, what later queries wanted, and the best possible."""
    from ..analysis.losses import compare_policies
    from ..analysis.pictures import draw_losses
    from ..analysis.replay_result import replay_result
    from ..analysis.trace import Trace
    from ..evaluation.cells import make_cells

    for name, value, least in (("restore", restored, 0), ("window", window, 1)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if event is not None and not restored:
        raise ValueError("event is the eviction whose entries are put back: give --restore, too")
    limits = {"prefix": prefix and parse_count(prefix), "protect": protect and parse_count(protect)}
    limits |= {"budget_min": budget_min, "scope": scope}
    cells = make_cells(split(policies), parse_budgets(budgets), **limits)
    placed = placement(device, dtype)
    opened = Trace(trace)
    name = model or opened.info.model
    if restored and not name:
        raise ValueError("the trace does not name its model: give --model")
    require_package("matplotlib", "insight", "a picture")
    require_folder(out)
    with bar("replaying", 1.0, counts=False) as advance:
        outcomes = compare_policies(
            opened, [(cell.policy, cell.budget) for cell in cells], top_keys=top_keys, advance=advance, **limits
        )
    found = load_model(name, placed).model if restored else None
    result = replay_result(opened, outcomes, top_keys, model=found, restored=restored, event=event, window=window)
    document = json.dumps(result, indent=2, ensure_ascii=False).encode("utf-8", "replace")
    (out / "replay.json").write_bytes(document)
    draw_losses(outcomes, out / "replay.png")
    if as_json:
        print_json(result)
    else:
        console.print(_table(opened, result["rows"]))
        for line in EXPLAINED:
            console.print(line, style="dim", highlight=False)
        for one in result.get("restored", []):
            console.print(_restored_table(one))
        console.print(f"written to {out}: replay.json, replay.png", highlight=False, markup=False)
    for row in result["rows"]:
        if not row["evictions"]:
            messages.print(
                f"[yellow]nothing was evicted: {len(opened)} tokens fit the budget of {row['budget']} "
                f"({row['policy']})[/yellow]"
            )


def _table(trace: Trace, rows: list[dict[str, Any]]) -> Table:
    title = f"{escape(trace.path.name)}: {len(trace):,} tokens, {len(trace.info.layers)} layers"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    name_column(table, "policy", [row["policy"] for row in rows])
    names = ("budget", "evicted", "lost", "oracle", "bound", "regret", "held", "wanted", "cosine")
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        shares = (_percent(row[name]) for name in ("lost", "oracle", "bound", "regret", "recall"))
        cosine = "-" if row["coverage"] is None else f"{row['coverage']:.2f}"
        head = row["policy"], str(row["budget"]), f"{row['evictions']}x"
        table.add_row(*head, *shares, f"{row['later_wanted']:,}", cosine)
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _restored_table(one: dict[str, Any]) -> Table:
    if not one["entries"]:
        return Table(title=f"{one['policy']} at {one['budget']}: nothing to put back", box=None)
    title = (
        f"{one['policy']} at {one['budget']}, eviction {one['event']} after token {one['step']}: KL to the full cache "
        f"over the next {one['window']} tokens {one['kl_evicted']:.4f}, without this eviction {one['kl_before']:.4f}"
    )
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("position", "text", "KV heads that dropped it", "attention missed", "KL with it back"):
        table.add_column(name, justify="left" if name == "text" else "right")
    for row in one["entries"]:
        cells = str(row["position"]), escape(repr(row["text"])), str(row["dropped_in"])
        table.add_row(*cells, f"{row['missed']:.2f}", f"{row['kl_restored']:.4f}")
    return table
