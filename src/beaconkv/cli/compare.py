"""``beaconkv compare``: the full cache against a small one on a real model and a few word problems."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .common import console, human_bytes, messages, name_column, print_json, report, split
from .models import DEVICE, DTYPE, MODEL, load_model, placed_as, placement
from .outputs import require_file

if TYPE_CHECKING:
    from torch import Tensor

    from ..integrations.transformers import BoundedCache
    from ..models import LoadedModel

PROBLEMS = (
    "A bakery bakes 18 trays of rolls every morning, 24 rolls on each tray. A quarter of the rolls goes to the "
    "school, 150 go to the hospital, and the rest is sold in the shop for 0.60 each. Rolls that are left over at "
    "noon, always one in ten of those in the shop, are given away. How much money does the shop take in a week of "
    "six days? Reason step by step, and check each step before you go on.",
    "Three pumps fill a pool of 5,400 litres. The first brings 40 litres a minute, the second 25, and the third 15, "
    "but the third is switched on only after the pool is half full. A drain loses 5 litres a minute from the "
    "beginning. After how many minutes is the pool full? First write a plan, then carry it out step by step, and "
    "return to the conditions of the problem before you answer.",
    "A train leaves the city at 8:10 and runs at 90 km an hour. Another leaves the same station at 8:40 on the same "
    "line at 120 km an hour. Along the line, 75 km away, is a bridge that only one train may cross at a time. Which "
    "train reaches the bridge first, by how much, and where does the second overtake the first? Think it through "
    "carefully, and state every condition that you use.",
)


def _follow(loaded: LoadedModel, inputs: dict[str, Tensor], text: Tensor, cache: BoundedCache, advance: Any) -> Tensor:
    """Feed the full cache's text through a bounded cache; the token it would have chosen at each place.

    Returns:
        (rows, tokens) int64.
    """
    import torch

    from ..integrations.transformers import cache_argument

    ids, mask, chosen = inputs["input_ids"], inputs["attention_mask"], []
    for step in range(text.shape[1]):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        with torch.inference_mode():
            out = loaded.model(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **{cache_argument(): cache}
            )
        chosen.append(out.logits[:, -1].argmax(-1))
        ids = text[:, step : step + 1]
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
        advance()
    return torch.stack(chosen, dim=1)


class _Advance:
    """A streamer that only counts."""

    def __init__(self, advance: Any) -> None:
        self.put, self.end = lambda value: advance(), lambda: None


def compare(
    model: str = typer.Option("smollm2-135m", "--model", "-m", help=MODEL),
    budget: int = typer.Option(144, help="B_max, entries per layer and KV head, prompt included."),
    tokens: int = typer.Option(320, help="Tokens each answer is made long."),
    policies: str = typer.Option(
        "beaconkv,streaming_llm", help="Methods, or method:preset, to compare with the full cache."
    ),
    dtype: str | None = typer.Option(None, help=DTYPE),
    device: str | None = typer.Option(None, help=DEVICE),
    out: Path = typer.Option(Path("results/compare.json"), help="Where the result is written."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Run a real model on a few problems with the full cache and with a small one, and compare."""
    from ..integrations.transformers import BoundedCache, cache_argument
    from ..policies import parse_policy
    from ..provenance import provenance

    names = ["full", *split(policies)]
    for name in names[1:]:  # refuse what cannot work before anything takes time
        parse_policy(name).schedule(budget)
    placed = placement(device, dtype)
    require_file(out)
    loaded = load_model(model, placed)
    tokenizer = loaded.tokenizer
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
        for p in PROBLEMS
    ]
    encoded = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    inputs = {name: encoded[name].to(loaded.model.device) for name in ("input_ids", "attention_mask")}
    width = inputs["input_ids"].shape[1]
    rows: list[dict[str, Any]] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages, disable=not messages.is_terminal) as progress:
        reference: Tensor | None = None
        for name in names:
            limit = None if name == "full" else budget
            task = progress.add_task(f"{name}: writing", total=tokens)
            if not messages.is_terminal:
                report(f"{name}: writing {tokens} tokens for each of {len(PROBLEMS)} problems")
            advance = lambda task=task: progress.advance(task)  # noqa: E731
            cache = BoundedCache(loaded.model, name, limit)
            start = time.perf_counter()
            written = loaded.model.generate(
                **inputs,
                **{cache_argument(): cache},
                do_sample=False,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                pad_token_id=tokenizer.pad_token_id,
                streamer=_Advance(advance),
            )[:, width:]
            seconds = time.perf_counter() - start
            progress.update(task, completed=tokens)
            row: dict[str, Any] = {
                "policy": name,
                "budget": limit,
                "tokens": written.numel(),
                "tokens_per_second": round(written.numel() / seconds, 1),
                "stats": cache.stats.to_dict(),
            }
            if reference is None:
                reference = written
            else:
                same = (written == reference).int().cumprod(dim=1).sum(dim=1)
                task = progress.add_task(f"{name}: following the full cache's text", total=tokens)
                if not messages.is_terminal:
                    report(f"{name}: following the full cache's text")
                advance = lambda task=task: progress.advance(task)  # noqa: E731
                choices = _follow(loaded, inputs, reference, BoundedCache(loaded.model, name, limit), advance)
                row["same_until"] = same.tolist()
                row["agreement"] = round((choices == reference).float().mean().item(), 4)
            rows.append(row)
    prompts = inputs["attention_mask"].sum(-1).tolist()
    result = {
        "rows": rows,
        "prompt_tokens": prompts,
        **provenance(model=model, **placed_as(loaded), seed=None, decoding="greedy"),
    }
    out.write_text(json.dumps(result, indent=2))
    if as_json:
        print_json(result)
        return
    title = (
        f"{model}: {len(PROBLEMS)} problems, prompts of {min(prompts)}-{max(prompts)} tokens, {tokens} written, greedy"
    )
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    name_column(table, "policy", names)
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
        "tok/s: so short a text does not slow the full cache down yet, and so small a",
        "budget is evicted all the time. `make bench` measures longer ones.",
    ):
        console.print(line, style="dim", highlight=False)
    if any(row["budget"] is not None and row["stats"]["evictions"] == 0 for row in rows):
        console.print("[yellow]nothing was evicted: the texts fit the budget[/yellow]")
    console.print(f"written to {out}")
