"""``beaconkv eval``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ..evaluation import load_tasks, read_records, summarize
from ..evaluation.cells import make_cells
from ..evaluation.decoding import Sampling
from ..evaluation.run import KEY, Batch, Evaluation
from ..evaluation.summary import ALL, first_wrong
from ..models import load
from ..provenance import provenance
from .common import console, messages, parse_budgets, parse_count, print_json, report, split


def evaluate(
    model: str = typer.Option("reasoner", "--model", "-m", help="Bundled name, folder, .gguf file or hub name."),
    task: str = typer.Option(
        "reasoning",
        help="reasoning, machine, ledger, plan, search (NAME@0.5: half as long), or FILE.jsonl[:grader]; with commas.",
    ),
    policies: str = typer.Option("full,beaconkv,rpc,snapkv,rkv,streaming_llm", help="Methods, with commas."),
    budgets: str = typer.Option("128,256,512", help="B_max in entries, with commas."),
    samples: int | None = typer.Option(None, help="Problems of each task. Default: 50, or the whole file."),
    runs: int = typer.Option(1, help="Samples of each problem; more than one needs a temperature."),
    seed: int = typer.Option(0, help="Of problems and sampling."),
    max_new_tokens: int = typer.Option(32768, help="Most tokens of an answer; reasoning tasks know their own limit."),
    temperature: float = typer.Option(0.0, help="0: the likeliest token each time."),
    top_p: float = typer.Option(0.95, help="Nucleus of the sampling."),
    batch_size: int = typer.Option(50, help="Problems computed together."),
    prefix: str | None = typer.Option(None, help='First entries never evicted: a number, or "prompt".'),
    protect: int | None = typer.Option(None, help="Last entries never evicted."),
    scope: str | None = typer.Option(None, help="total: the prompt counts; output: it does not."),
    reference: str = typer.Option("beaconkv", help="Method that the others are compared with."),
    dtype: str = typer.Option("float32", help="float32, bfloat16, float16 or auto."),
    device: str | None = typer.Option(None, help="Device map: cpu, cuda, auto, ..."),
    out: Path = typer.Option(Path("results/eval"), help="Folder of the samples and the result; a run there goes on."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Measure accuracy against budget: every method on the same problems, with intervals. Resumes."""
    names, numbers = split(policies), parse_budgets(budgets)
    chosen = dict(prefix=None if prefix is None else parse_count(prefix), protect=protect, scope=scope)
    cells = make_cells(names, numbers, **chosen)
    sampling = Sampling(max_new_tokens, temperature, top_p)
    tasks = load_tasks(task, samples, seed)
    evaluation = Evaluation(
        load(model, dtype, device, report),
        tasks,
        cells,
        sampling,
        runs=runs,
        seed=seed,
        batch_size=batch_size,
        overrides=chosen,
    )
    result = run_evaluation(evaluation, out, reference, model=model, dtype=dtype)
    if as_json:
        print_json(result)
        return
    show_quality(result["rows"])
    for line in remarks(result["rows"]):
        console.print(line, style="yellow", highlight=False)
    console.print(f"written to {out / 'result.json'}, samples beside it")


def run_evaluation(evaluation: Evaluation, out: Path, reference: str, **settings: Any) -> dict[str, Any]:
    """Execute with a progress bar, summarize, and write ``result.json``."""
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    total = sum(len(batch.problems) for batch in evaluation.batches())
    start = time.perf_counter()
    with Progress(*columns, console=messages, disable=not messages.is_terminal) as progress:
        bar = progress.add_task("", total=total)
        said: list[str] = []

        def started(batch: Batch) -> None:
            progress.update(bar, description=f"{batch.cell.name}: {batch.task.name}")
            if not messages.is_terminal and batch.cell.name not in said:
                said.append(batch.cell.name)
                report(f"{batch.cell.name} ({len(said)} of {len(evaluation.cells)})")

        path = evaluation.execute(out, started, lambda done: progress.advance(bar, done))
    wanted = {batch.key(problem) for batch in evaluation.batches() for problem in batch.problems}
    records = [record for record in read_records(path) if tuple(record[k] for k in KEY) in wanted]
    order = {(cell.policy, cell.budget): i for i, cell in enumerate(evaluation.cells)}
    records.sort(key=lambda r: order[r["policy"], r["budget"]])
    wrong = [{"policy": p, "budget": b, **kinds} for (p, b), kinds in first_wrong(records).items()]
    result = {
        "rows": summarize(records, reference),
        "first_wrong": wrong,
        "schedules": [{"policy": c.policy, **vars(c.schedule)} for c in evaluation.cells],
        "settings": evaluation.settings() | {"runs": evaluation.runs, "reference": reference},
        "seconds": round(time.perf_counter() - start, 1),
        **provenance(seed=evaluation.seed, **settings),
    }
    (out / "result.json").write_text(json.dumps(result, indent=1))
    return result


MEASURES = {"accuracy": "exact answers", "steps_right": "right steps"}


def quality_table(rows: list[dict[str, Any]], measure: str = "accuracy") -> Table:
    """Methods down, budgets across: percent with its interval, over all tasks."""
    tasks = {row["task"] for row in rows}
    task = ALL if ALL in tasks else next(iter(tasks))
    rows = [row for row in rows if row["task"] == task]
    budgets = sorted({row["budget"] for row in rows if row["budget"] is not None})
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("budget", no_wrap=True)
    for budget in budgets or [None]:
        table.add_column("-" if budget is None else str(budget), justify="right", no_wrap=True)
    for policy in dict.fromkeys(row["policy"] for row in rows):
        own = {row["budget"]: row for row in rows if row["policy"] == policy}
        if None in own:
            table.add_row(policy, *[""] * (len(budgets) - 1), percent(own[None][measure]))
        else:
            table.add_row(policy, *(percent(own[b][measure]) if b in own else "-" for b in budgets))
    return table


def show_quality(rows: list[dict[str, Any]]) -> None:
    """A table for each measure that the tasks have."""
    problems = max(row["problems"] for row in rows)
    for measure, name in MEASURES.items():
        if measure in rows[0]:
            console.print(f"[bold]{name}[/bold] in %, 95% interval ({problems} problems)", highlight=False)
            console.print(quality_table(rows, measure))


def percent(estimate: dict[str, Any]) -> str:
    """``87.5 (81-92)``."""
    mean, low, high = (100 * estimate[k] for k in ("mean", "low", "high"))
    return f"{mean:.1f} ({low:.0f}-{high:.0f})"


def remarks(rows: list[dict[str, Any]]) -> list[str]:
    """What a reader must know: budgets that were never reached, answers that were cut off."""
    said = []
    for row in rows:
        if row["task"] == ALL and row["budget"] is not None and row["never_evicted"] == row["samples"]:
            said.append(f"{row['policy']} at {row['budget']}: nothing was evicted")
    return said
