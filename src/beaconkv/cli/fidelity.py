"""``beaconkv fidelity``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .common import console, human_bytes, messages, name_column, parse_budgets, parse_count, print_json, report, split
from .models import DEVICE, DTYPE, MODEL, load_model, placed_as, placement
from .outputs import require_folder

EXPLAINED = (
    "KL: of the next-token distribution, full cache to this one, nats a token; [95% interval over texts].",
    "agree: how often both find the same token likeliest. ppl: perplexity of the text.",
    "lost: share of the full cache's attention on entries that are gone.",
)


def fidelity(
    texts: Path = typer.Option(..., help='JSONL file: "problem" and "response", or "text", in each row.'),
    model: str = typer.Option("smollm2-135m", "--model", "-m", help=MODEL),
    policies: str = typer.Option("beaconkv,recent,streaming_llm", help="Methods, or method:preset, by commas."),
    budgets: str = typer.Option("256", help="B_max, entries per layer and KV head; several by commas."),
    against: str | None = typer.Option(None, help="One of the methods: show differences to it, text by text."),
    prompt_tokens: int = typer.Option(128, help='Of a "text", how many tokens are the prompt.'),
    tokens: int = typer.Option(2400, help="Most tokens of a text, prompt included."),
    samples: int | None = typer.Option(None, help="Take so many texts from the start of the file. Default: all."),
    prefix: str | None = typer.Option(None, help='First entries never evicted: a number, or "prompt".'),
    protect: str | None = typer.Option(None, help='Last entries never evicted: a number, or "half" of what stays.'),
    budget_min: int | None = typer.Option(None, help="Entries left after an eviction. Default: 7/8 of the budget."),
    scope: str | None = typer.Option(None, help="total: the prompt counts (default); output: it is kept apart."),
    mass_every: int = typer.Option(8, help="Take the attention lost at one token in so many; 0: not at all."),
    rows: int = typer.Option(8, help="Texts that go through the model together."),
    together: int = typer.Option(1, help="Methods and budgets side by side: faster, but no speed is measured."),
    dtype: str | None = typer.Option(None, help=DTYPE),
    device: str | None = typer.Option(None, help=DEVICE),
    seed: int = typer.Option(0, help="Of the tokens whose attention is taken, and of the intervals."),
    out: Path = typer.Option(Path("results/fidelity"), help="Folder; a stopped run goes on from what is there."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Measure how near small caches stay to the full one on given texts."""
    from ..evaluation.cells import make_cells
    from ..evaluation.fidelity.comparison import compare
    from ..evaluation.fidelity.measure import FidelitySettings, measure, work
    from ..evaluation.fidelity.texts import read_rows, tokenize
    from ..provenance import provenance

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
        records = measure(
            loaded.model,
            samples_read,
            cells,
            settings,
            records=out / "records.jsonl",
            label=f"{model} {loaded.model.dtype}",
            advance=lambda done: progress.advance(task, done),
        )
    found = compare(records, against, seed)
    result = {
        "rows": found,
        "records": records,
        "settings": vars(settings),
        "against": against,
        **provenance(model=model, **placed_as(loaded), seed=seed, texts=str(texts)),
    }
    (out / "fidelity.json").write_text(json.dumps(result, indent=2, ensure_ascii=False), encoding="utf-8")
    predicted = sum(text.predictions for text in samples_read)
    title = f"{model}: {len(samples_read)} texts, {predicted:,} tokens after their prompts"
    (out / "fidelity.md").write_text(_markdown(title, found, against), encoding="utf-8")
    if as_json:
        print_json(result)
    else:
        console.print(_table(title, found, against))
        for line in EXPLAINED:
            console.print(line, style="dim", highlight=False)
        console.print(f"written to {out}")
    for row in found:
        if row["budget"] is not None and row["evictions"] == 0:
            messages.print(
                f"[yellow]nothing was evicted: the texts fit the budget of {row['budget']} ({row['policy']})[/yellow]"
            )


def _spread(value: dict[str, Any] | None, sign: str = "") -> str:
    if value is None:
        return "-"
    mean = f"{value['mean']:{sign}.3f}"
    return mean if value["low"] is None else f"{mean} [{value['low']:{sign}.3f}, {value['high']:{sign}.3f}]"


def _measures(row: dict[str, Any], against: str | None) -> dict[str, str]:
    cells = {
        "policy": row["policy"],
        "budget": "-" if row["budget"] is None else str(row["budget"]),
        "KL": _spread(row["kl"]),
    }
    if against is not None:
        cells[f"KL - {against}"] = _spread(row["difference"]["kl"], "+")
    return cells | {
        "agree": f"{100 * row['agreement']['mean']:.1f}%",
        "ppl": f"{row['perplexity']['mean']:.2f}",
        "lost": "-" if row["mass_lost"] is None else f"{100 * row['mass_lost']['mean']:.1f}%",
        "evicted": f"{row['evictions']:.0f}x",
    }


def _table(title: str, rows: list[dict[str, Any]], against: str | None) -> Table:
    full = rows[0]["perplexity_full"]["mean"]
    table = Table(title=f"{title}; full cache: ppl {full:.2f}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    first, *headings = _measures(rows[0], against)
    name_column(table, first, [row["policy"] for row in rows])
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*_measures(row, against).values())
    return table


def _markdown(title: str, rows: list[dict[str, Any]], against: str | None) -> str:
    """The table with all columns."""
    cells = [
        {
            **_measures(row, against),
            "ppl, full cache": f"{row['perplexity_full']['mean']:.2f}",
            "keys and values": human_bytes(row["kv_bytes"]),
            "their peak": human_bytes(row["peak_kv_bytes"]),
            "state": human_bytes(row["state_bytes"]),
            "tokens/s": "-" if row["tokens_per_second"] is None else f"{row['tokens_per_second']:.1f}",
        }
        for row in rows
    ]
    lines = [list(cells[0]), ["---"] * len(cells[0]), *(list(row.values()) for row in cells)]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    notes = "\n".join(f"- {line}" for line in (*EXPLAINED, "Bytes are of one text, measured; tokens/s of all texts."))
    return f"{title}\n\n{body}\n\n{notes}\n"
