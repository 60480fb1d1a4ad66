"""``beaconkv trace``: record, info, look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from .common import bar, console, human_bytes, print_json, report, split
from .models import DEVICE, DTYPE, MODEL, load_model, placement
from .outputs import require_file, require_folder, require_package

if TYPE_CHECKING:
    from ..analysis.diagnosis import Diagnosis
    from ..analysis.trace import Trace
    from ..evaluation.answers.decoding import Sampling

app = typer.Typer(help="Record what a model's attention sees, and look at it.", no_args_is_help=True)


@app.command("record")
def record_command(
    out: Path = typer.Option(..., help="The file to write, for example chain.trace."),
    model: str = typer.Option("reasoner", "--model", "-m", help=MODEL),
    prompt: str | None = typer.Option(None, help="Let the model answer this message."),
    task: str | None = typer.Option(None, help="Let it solve a reasoning problem: machine, ledger, plan@0.66, ..."),
    texts: Path | None = typer.Option(
        None, help='Read a text of this JSONL file: "problem" and "response", or "text".'
    ),
    row: int = typer.Option(0, help="Number of the problem, or of the text in the file, from 0."),
    prompt_tokens: int = typer.Option(128, help='Of a "text", how many tokens are the prompt.'),
    max_new_tokens: int = typer.Option(2048, help="Most tokens to write."),
    tokens: int | None = typer.Option(None, help="Most tokens of a given text, prompt included. Default: all."),
    temperature: float = typer.Option(0.0, help="0: the likeliest token each time."),
    top_p: float = typer.Option(0.95, help="Nucleus of the sampling."),
    seed: int = typer.Option(0, help="Of the problem and of the sampling."),
    layers: str | None = typer.Option(None, help="Layers, with commas. Default: all with full attention."),
    kv_heads: str | None = typer.Option(None, help="KV heads whose groups are recorded, with commas. Default: all."),
    values: bool = typer.Option(False, help="Record values, too; only policies with value_norm need them."),
    store: str | None = typer.Option(
        None, help="Store as float32, float16 or bfloat16. Default: as the model computes."
    ),
    chunk: int = typer.Option(512, help="Tokens of one forward pass; 1: exactly as a model writes."),
    dtype: str | None = typer.Option(None, help=DTYPE),
    device: str | None = typer.Option(None, help=DEVICE),
) -> None:
    """Record a text: one the model writes now (--prompt, --task), or one that is given (--texts)."""
    from ..analysis.recorder import record, require_choice
    from ..evaluation import load_tasks
    from ..evaluation.answers.decoding import Sampling
    from ..evaluation.fidelity.texts import tokenize
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
    problem = None
    if task is not None:
        tasks = load_tasks(task, row + 1, seed)
        if len(tasks) != 1:
            raise ValueError(f"choose one task, for example plan@0.66; got {task!r}")
        if len(tasks[0].problems) <= row:
            raise ValueError(f"{task} has {len(tasks[0].problems)} problems; row must be below that, got {row}")
        problem = tasks[0].problems[row].prompt
    lines = None if texts is None else _line(texts, row)
    placed = placement(device, dtype)
    require_file(out)
    loaded = load_model(model, placed)
    require_choice(loaded.model, **chosen)
    if lines is not None:
        (text,) = tokenize(lines, loaded.tokenizer, tokens, prompt_tokens)
        ids, prompt_length = list(text.ids), text.prompt_length
    else:
        ids, prompt_length = _write(loaded, problem, prompt, sampling, seed)
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


def _line(texts: Path, row: int) -> list[dict[str, Any]]:
    from ..evaluation.fidelity.texts import read_rows

    lines = read_rows(texts, row + 1)
    if len(lines) <= row:
        raise ValueError(f"{texts} has {len(lines)} texts; row must be below that, got {row}")
    return lines[row:]


def _numbers(name: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in split(text)]
    except ValueError:
        raise ValueError(f"{name} are whole numbers, with commas between them; got {text!r}") from None


def _write(
    loaded: Any, problem: str | None, message: str | None, sampling: Sampling, seed: int
) -> tuple[list[int], int]:
    """Let the model go on with a prompt, with the full cache. All token ids, and how many are the prompt."""
    from ..evaluation.answers.decoding import write_answers
    from ..integrations.transformers import BoundedCache

    tokenizer, model = loaded.tokenizer, loaded.model
    if problem is None and tokenizer.chat_template is not None:
        chat = [{"role": "user", "content": message}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer(message if problem is None else problem)["input_ids"]
    if not ids:
        raise ValueError("the prompt is empty")
    stop = model.generation_config.eos_token_id
    stops = stop if isinstance(stop, list) else [] if stop is None else [stop]
    written = []
    with bar("writing", sampling.max_new_tokens) as advance, BoundedCache(model, "full") as cache:
        write_answers(
            model,
            [ids],
            cache,
            sampling,
            [seed],
            stops,
            tokenizer.pad_token_id or 0,
            written.append,
            lambda n: advance(n),
        )
    return [*ids, *written[0].tokens], len(ids)


@app.command("info")
def info_command(
    trace: Path = typer.Argument(..., help="A trace file."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of text."),
) -> None:
    """Say what a trace holds."""
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
    top_keys: int = typer.Option(150, help="Keys of each query whose distance is averaged."),
    distance: float = typer.Option(200, help="Mean distance in tokens beyond which a query is global."),
    start: int | None = typer.Option(None, help="First token that counts. Default: the first after the prompt."),
    stop: int | None = typer.Option(None, help="Token before which counting stops. Default: the end."),
    layer: int | None = typer.Option(None, help="Layer of the pictures of one head. Default: a telling one."),
    head: int | None = typer.Option(None, help="Query head of these pictures."),
    seed: int = typer.Option(0, help="Of the shuffles in the test of clusters."),
    out: Path = typer.Option(Path("results/look"), help="Folder of diagnosis.json and pictures."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """How often each head looks far back, and whether the queries that do fall into groups."""
    from ..analysis.diagnosis import diagnose
    from ..analysis.pictures import draw_attention, draw_clusters, draw_cosines, draw_frequency, picture_head
    from ..analysis.trace import Trace
    from ..provenance import provenance

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
        found = diagnose(
            opened,
            top_keys=top_keys,
            distance=distance,
            start=start,
            stop=stop,
            seed=seed,
            advance=advance,
        )
    result = {"trace": str(trace), **found.summary(), **provenance(model=opened.info.model, seed=seed)}
    (out / "diagnosis.json").write_text(json.dumps(result, indent=2, ensure_ascii=False), encoding="utf-8")
    layer, head = (layer, head) if layer is not None else picture_head(found)
    window = _window(opened, found, layer, head)
    (out / "clusters.png").unlink(missing_ok=True)  # of an earlier run: this one may have none
    pictures = [
        draw_frequency(found, opened.info.heads, out / "frequency.png"),
        draw_attention(opened, found, layer, head, *window, out / "attention.png"),
        draw_cosines(opened, found, layer, head, *window, out / "cosines.png"),
        draw_clusters(found, out / "clusters.png"),
    ]
    if as_json:
        print_json(result)
        return
    console.print(_frequencies(found))
    for line in _words(result):
        console.print(line, highlight=False)
    names = ", ".join(path.name for path in pictures if path is not None)
    console.print(f"written to {out}: diagnosis.json, {names}", highlight=False, markup=False)


def _window(trace: Trace, found: Diagnosis, layer: int, head: int, width: int = 48) -> tuple[int, int]:
    """Queries for the pictures: where, in the second half of the text, local and global ones are most mixed."""
    far = found.revisiting.is_global[found.revisiting.layers.index(layer), trace.info.heads.index(head)].float()
    length = len(trace)
    if length <= width:
        return 0, length
    first = max(trace.info.prompt_length, length // 2)
    counts = far.unfold(0, width, 1).sum(-1)[min(first, length - width) :]
    mixed = (counts - width / 4).abs()
    start = min(first, length - width) + int(mixed.argmin())
    return start, start + width


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
