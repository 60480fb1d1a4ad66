"""``beaconkv trace``: record, info, look."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..units import human_bytes
from .common import bar, console, print_json, report, split
from .models import DEVICE, DTYPE, MODEL, load_model, placement
from .options import JSON, TEMPERATURE, TOP_P
from .outputs import require_file, require_folder, require_package

if TYPE_CHECKING:
    from ..analysis.diagnosis import Diagnosis
    from ..analysis.trace import Trace

app = typer.Typer(help="Record the queries and keys of a model, and analyse them.", no_args_is_help=True)


@app.command("record")
def record_command(
    out: Path = typer.Option(..., help="File to write, for example chain.trace."),
    model: str = typer.Option("reasoner", "--model", "-m", help=MODEL),
    prompt: str | None = typer.Option(None, help="Message that the model answers."),
    task: str | None = typer.Option(None, help="Reasoning task that the model solves: machine, ledger, plan@0.66, ..."),
    texts: Path | None = typer.Option(
        None, help='JSONL file of texts, one of which is read: "problem" and "response", or "text".'
    ),
    row: int = typer.Option(0, help="Index of the problem, or of the text in the file, from 0."),
    prompt_tokens: int = typer.Option(128, help='Number of prompt tokens of a "text", which has no prompt of its own.'),
    max_new_tokens: int = typer.Option(2048, help="Maximum number of tokens to write."),
    tokens: int | None = typer.Option(
        None, help="Maximum number of tokens of a given text, prompt included. Default: all."
    ),
    temperature: float = typer.Option(0.0, help=TEMPERATURE),
    top_p: float = typer.Option(0.95, help=TOP_P),
    seed: int = typer.Option(0, help="Random seed of the problem and of the sampling."),
    layers: str | None = typer.Option(None, help="Layers, separated by commas. Default: all with full attention."),
    kv_heads: str | None = typer.Option(
        None, help="KV heads whose groups are recorded, separated by commas. Default: all."
    ),
    values: bool = typer.Option(False, help="Record values, too; only policies with value_norm need them."),
    store: str | None = typer.Option(
        None, help="Store as float32, float16 or bfloat16. Default: as the model computes."
    ),
    chunk: int = typer.Option(512, help="Number of tokens per forward pass; 1: exactly as a model writes."),
    dtype: str | None = typer.Option(None, help=DTYPE),
    device: str | None = typer.Option(None, help=DEVICE),
) -> None:
    """Record a text that the model writes now (--prompt, --task) or that is given (--texts)."""
    from ..analysis.recorder import record, require_choice
    from ..evaluation.answers.decoding import Sampling
    from ..evaluation.answers.generation import write_text
    from ..evaluation.fidelity.texts import read_row, tokenize
    from ..evaluation.tasks.load import load_problem
    from ..provenance import provenance

    sources = [
        name for name, value in (("--prompt", prompt), ("--task", task), ("--texts", texts)) if value is not None
    ]
    if len(sources) != 1:
        raise ValueError(f"choose one of --prompt, --task and --texts; got {', '.join(sources) or 'none'}")
    for name, value, least in (("row", row, 0), ("tokens", tokens, 1), ("prompt_tokens", prompt_tokens, 1)):
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    chosen = {"layers": _numbers("layers", layers), "kv_heads": _numbers("kv-heads", kv_heads)}
    sampling = Sampling(max_new_tokens, temperature, top_p)
    if task is not None:
        prompt = load_problem(task, row, seed).prompt
    line = None if texts is None else read_row(texts, row)
    placed = placement(device, dtype)
    require_file(out)
    loaded = load_model(model, placed)
    require_choice(loaded.model, **chosen)
    if line is not None:
        (text,) = tokenize([line], loaded.tokenizer, tokens, prompt_tokens)
        ids, prompt_length = list(text.ids), text.prompt_length
    else:
        with bar("writing", max_new_tokens) as advance:
            ids, prompt_length = write_text(loaded, prompt, sampling, seed, chat=task is None, advance=advance)
    with bar("reading", len(ids)) as advance:
        trace = record(
            loaded.model,
            loaded.tokenizer,
            ids,
            prompt_length,
            out,
            name=model,
            **chosen,
            values=values,
            dtype=store,
            chunk=chunk,
            provenance=provenance(model=model, seed=seed),
            announce=lambda size: report(f"writing {human_bytes(size)} to {out}"),
            advance=advance,
        )
    console.print(_describe(trace), highlight=False, markup=False)


def _numbers(name: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in split(text)]
    except ValueError:
        raise ValueError(f"{name} are whole numbers, with commas between them; got {text!r}") from None


@app.command("info")
def info_command(
    trace: Path = typer.Argument(..., help="Path of a trace file."),
    as_json: bool = typer.Option(False, "--json", help="Whether to print JSON instead of text."),
) -> None:
    """Show the contents of a trace."""
    from ..analysis.trace import Trace

    opened = Trace(trace)
    if as_json:
        print_json({k: v for k, v in opened.info.to_json().items() if k != "pieces"})
    else:
        console.print(_describe(opened), highlight=False, markup=False)


def _describe(trace: Trace) -> str:
    info = trace.info
    return (
        f"{trace.path}: {info.model or 'a model'}, {info.num_tokens:,} tokens ({info.prompt_length} of them prompt), "
        f"{len(info.layers)} layers x {info.num_heads} query heads ({len(info.kv_heads)} KV heads) x {info.dim}, "
        f"{info.dtype}{', with values' if info.has_values else ''}, {human_bytes(trace.path.stat().st_size)}"
    )


@app.command("look")
def look_command(
    trace: Path = typer.Argument(..., help="A trace file."),
    top_keys: int = typer.Option(150, help="Number of strongest keys of each query whose distance is averaged."),
    distance: float = typer.Option(200, help="Mean distance in tokens beyond which a query is global."),
    start: int | None = typer.Option(
        None, help="Index of the first token that counts. Default: the first after the prompt."
    ),
    stop: int | None = typer.Option(None, help="Index of the token before which counting stops. Default: the end."),
    layer: int | None = typer.Option(
        None, help="Layer of the pictures of one head. Default: one with many global queries."
    ),
    head: int | None = typer.Option(None, help="Query head of these pictures."),
    seed: int = typer.Option(0, help="Random seed of the shuffles in the test of clusters."),
    out: Path = typer.Option(Path("results/look"), help="Folder of diagnosis.json and pictures."),
    as_json: bool = typer.Option(False, "--json", help=JSON),
) -> None:
    """Measure how often each head looks far back, and whether the queries that do so fall into groups."""
    from ..analysis.look import look
    from ..analysis.trace import Trace

    if (layer is None) != (head is None):
        raise ValueError("give layer and head together, or neither")
    opened = Trace(trace)
    if layer is not None:
        opened.number(layer)
        if head not in opened.info.heads:
            raise ValueError(f"head {head} was not recorded; choose from {', '.join(map(str, opened.info.heads))}")
    require_package("matplotlib", "insight", "a picture")
    require_folder(out)
    with bar("layers", len(opened.info.layers)) as advance:
        found, result, pictures = look(
            opened,
            out,
            top_keys=top_keys,
            distance=distance,
            start=start,
            stop=stop,
            head=None if layer is None else (layer, head),
            seed=seed,
            advance=advance,
        )
    if as_json:
        print_json(result)
        return
    console.print(_frequencies(found))
    for line in _words(result):
        console.print(line, highlight=False)
    names = ", ".join(path.name for path in pictures)
    console.print(f"written to {out}: diagnosis.json, {names}", highlight=False, markup=False)


def _frequencies(found: Diagnosis) -> Table:
    title = "share of global queries, %"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("layer", "lowest head", "mean", "highest head"):
        table.add_column(name, justify="right")
    for layer, row in zip(found.revisiting.layers, found.frequency, strict=True):
        table.add_row(str(layer), *(f"{100 * x:.1f}" for x in (row.min(), row.mean(), row.max())))
    return table


def _words(result: dict[str, Any]) -> list[str]:
    lines = [
        f"{100 * result['global_share']:.1f}% of queries are global: their {result['top_keys']} strongest keys lie "
        f"more than {result['distance']:g} tokens back on average."
    ]
    if result["heads_tested"]:
        lines.append(
            f"Groups: in {result['heads_clustered']} of {result['heads_tested']} heads with enough of them, global "
            f"queries cluster better than every shuffle (silhouette {result['silhouette']:.2f}; shuffled "
            f"{result['silhouette_shuffled']:.2f})."
        )
    if result["silhouette_local"] is not None:
        lines.append(
            f"As many local queries of the same heads: {result['silhouette_local']:.2f} "
            f"(global there: {result['silhouette_global_beside_local']:.2f})."
        )
    return lines
