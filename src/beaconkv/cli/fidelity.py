"""``beaconkv fidelity``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .common import console, messages, name_column, parse_budgets, parse_count, print_json, report, split
from .models import DEVICE, DTYPE, MODEL, load_model, placement
from .options import BUDGET_MIN, BUDGETS, JSON, PREFIX, PROTECT, SCOPE
from .outputs import require_folder


def fidelity(
    texts: Path = typer.Option(..., help='Path of a JSONL file with "problem" and "response", or "text", in each row.'),
    model: str = typer.Option("smollm2-135m", "--model", "-m", help=MODEL),
    policies: str = typer.Option(
        "beaconkv,recent,streaming_llm", help="Methods, or method:preset, separated by commas."
    ),
    budgets: str = typer.Option("256", help=BUDGETS),
    against: str | None = typer.Option(None, help="Method to which differences are shown, text by text."),
    prompt_tokens: int = typer.Option(128, help='Number of prompt tokens of a "text", which has no prompt of its own.'),
    tokens: int = typer.Option(2400, help="Maximum number of tokens of a text, prompt included."),
    samples: int | None = typer.Option(None, help="Number of texts read from the start of the file. Default: all."),
    prefix: str | None = typer.Option(None, help=PREFIX),
    protect: str | None = typer.Option(None, help=PROTECT),
    budget_min: int | None = typer.Option(None, help=BUDGET_MIN),
    scope: str | None = typer.Option(None, help=SCOPE),
    mass_every: int = typer.Option(
        8, help="Interval, in tokens, at which lost attention is measured; 0: it is not measured."
    ),
    rows: int = typer.Option(8, help="Number of texts that go through the model together."),
    together: int = typer.Option(
        1, help="Number of methods and budgets in one forward pass: faster, but no speed is measured."
    ),
    dtype: str | None = typer.Option(None, help=DTYPE),
    device: str | None = typer.Option(None, help=DEVICE),
    seed: int = typer.Option(0, help="Random seed of the tokens whose attention is measured, and of the intervals."),
    out: Path = typer.Option(
        Path("results/fidelity"), help="Folder of records and results; an unfinished run there is resumed."
    ),
    as_json: bool = typer.Option(False, "--json", help=JSON),
) -> None:
    """Measure how near small caches stay to the full one on given texts."""
    from ..evaluation.cells import make_cells
    from ..evaluation.fidelity.measure import FidelitySettings, work
    from ..evaluation.fidelity.result import EXPLAINED, measure_and_write, title_of
    from ..evaluation.fidelity.texts import read_rows, tokenize

    names = split(policies)
    limits = {"prefix": prefix and parse_count(prefix), "protect": protect and parse_count(protect)}
    cells = make_cells(names, parse_budgets(budgets), **limits, budget_min=budget_min, scope=scope)
    settings = FidelitySettings(rows=rows, together=together, mass_every=mass_every, seed=seed)
    if against is not None and against not in names:
        raise ValueError(f"against must be one of the policies {', '.join(names)}; got {against!r}")
    placed = placement(device, dtype)
    for name, value in (("tokens", tokens), ("prompt_tokens", prompt_tokens)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    lines = read_rows(texts, samples)
    require_folder(out)
    loaded = load_model(model, placed)
    samples_read = tokenize(lines, loaded.tokenizer, tokens, prompt_tokens)
    columns = (TextColumn("tokens"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages, disable=not messages.is_terminal) as progress:
        task = progress.add_task("", total=work(samples_read, cells))
        if not messages.is_terminal:
            report(f"{len(cells)} methods and budgets on {len(samples_read)} texts")
        result = measure_and_write(
            loaded,
            samples_read,
            cells,
            settings,
            out,
            model=model,
            source=texts,
            against=against,
            advance=lambda done: progress.advance(task, done),
        )
    found = result["rows"]
    if as_json:
        print_json(result)
    else:
        console.print(_table(title_of(model, samples_read), found, against))
        for line in EXPLAINED:
            console.print(line, style="dim", highlight=False)
        console.print(f"written to {out}")
    for row in found:
        if row["budget"] is not None and row["evictions"] == 0:
            messages.print(
                f"[yellow]nothing was evicted: the texts fit the budget of {row['budget']} ({row['policy']})[/yellow]"
            )


def _table(title: str, rows: list[dict[str, Any]], against: str | None) -> Table:
    from ..evaluation.fidelity.result import measures

    full = rows[0]["perplexity_full"]["mean"]
    table = Table(title=f"{title}; full cache: ppl {full:.2f}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    first, *headings = measures(rows[0], against)
    name_column(table, first, [row["policy"] for row in rows])
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*measures(row, against).values())
    return table
