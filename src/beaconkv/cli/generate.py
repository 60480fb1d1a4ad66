"""``beaconkv generate``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import typer

from .common import add_settings, messages, parse_count, print_json
from .models import DEVICE, DTYPE, MODEL, load_model, placed_as, placement


def generate(
    prompt: str | None = typer.Argument(None, help="The user's message; read from standard input if missing."),
    model: str = typer.Option("smollm2-135m", "--model", "-m", help=MODEL),
    policy: str = typer.Option("beaconkv", help="Method, or method:preset; `beaconkv policies` lists them."),
    budget: int | None = typer.Option(
        None, help="B_max, entries per layer and KV head. Default: 2048 (none for full)."
    ),
    budget_min: int | None = typer.Option(None, help="Entries left after an eviction. Default: 7/8 of the budget."),
    scope: str | None = typer.Option(None, help="total: the prompt counts (default); output: it is kept apart."),
    prefix: str | None = typer.Option(None, help='First entries never evicted: a number, or "prompt".'),
    protect: str | None = typer.Option(None, help='Last entries never evicted: a number, or "half" of what stays.'),
    prefill_chunk: int | None = typer.Option(None, help="Tokens of the prompt a layer takes in at a time."),
    settings: list[str] = typer.Option([], "--set", help="Policy setting, as setting=value; repeatable."),
    max_new_tokens: int = typer.Option(1024, help="Most tokens to write."),
    temperature: float = typer.Option(0.0, help="0: the likeliest token each time."),
    top_p: float = typer.Option(0.95, help="Nucleus of the sampling."),
    seed: int = typer.Option(0, help="Of the sampling."),
    dtype: str | None = typer.Option(None, help=DTYPE),
    device: str | None = typer.Option(None, help=DEVICE),
    prompt_file: Path | None = typer.Option(None, help="Read the message from a file."),
    chat: bool = typer.Option(True, help="Apply the model's chat template if it has one."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document instead of streaming."),
) -> None:
    """Let a model think in a cache of fixed size; streams the text and what the cache holds."""
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
    chosen = spec.policy
    if budget is None and chosen.evicts and spec.budget is None:
        budget = 2048
    limits = dict(
        budget_min=budget_min,
        scope=scope,
        prefix=None if prefix is None else parse_count(prefix),
        protect=None if protect is None else parse_count(protect),
        prefill_chunk=prefill_chunk,
    )
    spec.schedule(budget, **limits)  # refuses what leaves no room before the model is loaded
    loaded = load_model(model, placement(device, dtype))

    import torch

    from ..integrations.transformers import BoundedCache, cache_argument
    from ..provenance import provenance
    from .live import LiveText, status_line

    cache = BoundedCache(loaded.model, spec.spec, budget, **limits)
    template = chat and loaded.tokenizer.chat_template is not None
    if template:
        message = [{"role": "user", "content": prompt}]
        text = loaded.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    else:
        text = prompt
    inputs = loaded.tokenizer(text, return_tensors="pt", add_special_tokens=not template).to(loaded.model.device)
    sampling = dict(do_sample=True, temperature=temperature, top_p=top_p) if temperature else dict(do_sample=False)
    torch.manual_seed(seed)
    start = time.perf_counter()
    with LiveText(loaded.tokenizer, cache, quiet=as_json) as streamer:
        out = loaded.model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            **{cache_argument(): cache},
            **sampling,
            max_new_tokens=max_new_tokens,
            pad_token_id=loaded.tokenizer.pad_token_id,
            streamer=streamer,
        )
    seconds = time.perf_counter() - start
    prompt_tokens = inputs["input_ids"].shape[1]
    new_tokens = out.shape[1] - prompt_tokens
    if as_json:
        written = loaded.tokenizer.decode(out[0, prompt_tokens:], skip_special_tokens=True)
        print_json(
            {
                "text": written,
                "prompt_tokens": prompt_tokens,
                "new_tokens": new_tokens,
                "seconds": round(seconds, 3),
                "tokens_per_second": round(new_tokens / seconds, 2),
                "stats": cache.stats.to_dict(),
                "schedule": vars(cache.schedule),
                "policy": {"name": chosen.name, "spec": policy, **vars(chosen)},
                **provenance(model=model, **placed_as(loaded), seed=seed, sampling=sampling, chat_template=template),
            }
        )
    else:
        messages.print(f"[dim]{new_tokens} tokens, {new_tokens / seconds:.1f} tokens/s · {status_line(cache)}[/dim]")
    if chosen.evicts and cache.stats.evictions == 0:
        tokens, limit = cache.stats.tokens_seen, cache.schedule.budget
        messages.print(f"[yellow]nothing was evicted: {tokens} tokens fit the budget of {limit}[/yellow]")
