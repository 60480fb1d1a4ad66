"""``beaconkv generate``."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from .common import add_settings, messages, parse_count, print_json
from .models import DEVICE, DTYPE, MODEL, load_model, placement
from .options import BUDGET_MIN, PREFIX, PROTECT, SCOPE, SETTING, TEMPERATURE, TOP_P


def generate(
    prompt: str | None = typer.Argument(None, help="Message of the user; read from standard input if missing."),
    model: str = typer.Option("smollm2-135m", "--model", "-m", help=MODEL),
    policy: str = typer.Option("beaconkv", help="Method, or method:preset; `beaconkv policies` lists them."),
    budget: int | None = typer.Option(
        None, help="B_max, number of entries per layer and KV head. Default: 2048 (none for full)."
    ),
    budget_min: int | None = typer.Option(None, help=BUDGET_MIN),
    scope: str | None = typer.Option(None, help=SCOPE),
    prefix: str | None = typer.Option(None, help=PREFIX),
    protect: str | None = typer.Option(None, help=PROTECT),
    prefill_chunk: int | None = typer.Option(
        None, help="Number of prompt tokens per chunk; an eviction may follow each."
    ),
    settings: list[str] = typer.Option([], "--set", help=SETTING),
    max_new_tokens: int = typer.Option(1024, help="Maximum number of tokens to write."),
    temperature: float = typer.Option(0.0, help=TEMPERATURE),
    top_p: float = typer.Option(0.95, help=TOP_P),
    seed: int = typer.Option(0, help="Random seed of the sampling."),
    dtype: str | None = typer.Option(None, help=DTYPE),
    device: str | None = typer.Option(None, help=DEVICE),
    prompt_file: Path | None = typer.Option(None, help="Path of a file with the message."),
    chat: bool = typer.Option(True, help="Whether to apply the model's chat template, if it has one."),
    as_json: bool = typer.Option(False, "--json", help="Whether to print one JSON document instead of streaming."),
) -> None:
    """Generate text with a cache of fixed size; streams the text and the numbers of the cache."""
    from ..policies import parse_policy

    if prompt_file is not None:
        prompt = prompt_file.read_text(encoding="utf-8")
    elif prompt is None:
        prompt = sys.stdin.read()
    if not prompt.strip():
        raise ValueError("the prompt is empty: give it as an argument, by --prompt-file or on standard input")
    if temperature < 0:
        raise ValueError(f"temperature must be >= 0, got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top-p must be in (0, 1], got {top_p}")
    spec = parse_policy(add_settings(policy, settings))
    if budget is None and spec.policy.evicts and spec.budget is None:
        budget = 2048
    limits = dict(
        budget_min=budget_min,
        scope=scope,
        prefix=None if prefix is None else parse_count(prefix),
        protect=None if protect is None else parse_count(protect),
        prefill_chunk=prefill_chunk,
    )
    spec.schedule(budget, **limits)  # raises for a budget without room before the model is loaded
    loaded = load_model(model, placement(device, dtype))

    from ..evaluation.answers.generation import generate_text
    from ..integrations.transformers import BoundedCache
    from .live import LiveText, status_line

    cache = BoundedCache(loaded.model, spec.spec, budget, **limits)
    with LiveText(loaded.tokenizer, cache, quiet=as_json) as streamer:
        result = generate_text(
            loaded,
            cache,
            prompt,
            model=model,
            policy=policy,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            chat=chat,
            streamer=streamer,
        )
    if as_json:
        print_json(result)
    else:
        written = f"{result['new_tokens']} tokens, {result['tokens_per_second']:.1f} tokens/s"
        messages.print(f"[dim]{written} · {status_line(cache)}[/dim]")
    if spec.policy.evicts and cache.stats.evictions == 0:
        tokens, limit = cache.stats.tokens_seen, cache.schedule.budget
        messages.print(f"[yellow]nothing was evicted: {tokens} tokens fit the budget of {limit}[/yellow]")
