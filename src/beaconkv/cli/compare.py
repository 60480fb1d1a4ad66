"""``beaconkv compare``: the full cache against a small one on a real model and a few word problems."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..units import human_bytes
from .common import console, messages, name_column, print_json, report, split
from .models import DEVICE, DTYPE, MODEL, load_model, placement
from .options import JSON
from .outputs import require_file


def compare(
    model: str = typer.Option("smollm2-135m", "--model", "-m", help=MODEL),
    budget: int = typer.Option(144, help="B_max, number of entries per layer and KV head, prompt included."),
    tokens: int = typer.Option(320, help="Number of tokens written for each problem."),
    policies: str = typer.Option(
        "beaconkv,streaming_llm", help="Methods (or method:preset), separated by commas, compared with the full cache."
    ),
    dtype: str | None = typer.Option(None, help=DTYPE),
    device: str | None = typer.Option(None, help=DEVICE),
    out: Path = typer.Option(Path("results/compare.json"), help="File of the result."),
    as_json: bool = typer.Option(False, "--json", help=JSON),
) -> None:
    """Run a real model on a few problems with the full cache and with a small one, and compare."""
    from ..evaluation.answers.word_problems import WORD_PROBLEMS, compare_on_problems
    from ..policies import parse_policy

    names = split(policies)
    for name in names:  # errors are raised before anything takes time
        parse_policy(name).schedule(budget)
    placed = placement(device, dtype)
    require_file(out)
    loaded = load_model(model, placed)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages, disable=not messages.is_terminal) as progress:

        def stage(what: str) -> Callable[[], None]:
            task = progress.add_task(what, total=tokens)
            if not messages.is_terminal:
                report(f"{what} ({tokens} tokens, {len(WORD_PROBLEMS)} problems)")
            return lambda: progress.advance(task)

        result = compare_on_problems(loaded, names, budget, tokens, model=model, stage=stage)
    out.write_text(json.dumps(result, indent=2))
    if as_json:
        print_json(result)
        return
    rows, prompts = result["rows"], result["prompt_tokens"]
    title = (
        f"{model}: {len(prompts)} problems, prompts of {min(prompts)}-{max(prompts)} tokens, {tokens} written, greedy"
    )
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    name_column(table, "policy", [row["policy"] for row in rows])
    for heading in ("budget", "cache", "+ state", "evicted", "tok/s", "same text", "agree"):
        table.add_column(heading, justify="right")
    for row in rows:
        stats = row["stats"]
        table.add_row(
            row["policy"],
            "-" if row["budget"] is None else str(row["budget"]),
            human_bytes(stats["kv_bytes"]),
            human_bytes(stats["state_bytes"]),
            f"{stats['evictions']}x",
            f"{row['tokens_per_second']:.1f}",
            "/".join(map(str, row["same_until"])) if "same_until" in row else "-",
            f"{100 * row['agreement']:.1f}%" if "agreement" in row else "-",
        )
    console.print(table)
    for line in (
        "cache: keys and values, measured. + state: positions and remembered queries.",
        "same text: tokens until an answer first differs from the full cache's.",
        "agree: reading the full cache's text, how often the next token is the same.",
        "tok/s: a text this short does not slow the full cache down yet, and at a budget this",
        "small evictions are frequent. `make bench` measures longer texts.",
    ):
        console.print(line, style="dim", highlight=False)
    if any(row["budget"] is not None and row["stats"]["evictions"] == 0 for row in rows):
        console.print("[yellow]nothing was evicted: the texts fit the budget[/yellow]")
    console.print(f"written to {out}")
