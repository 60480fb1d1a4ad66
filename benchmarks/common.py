"""Shared code of the benchmarks: models, caches, a clock, checks before anything is reported, and the report."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from beaconkv import BoundedCache, CompiledDecoder
from beaconkv.integrations.transformers import cache_argument
from beaconkv.models import load
from beaconkv.policies import parse_policy
from beaconkv.provenance import provenance

SHAPES = {
    "qwen3-4b": dict(
        model_type="qwen3", hidden_size=2560, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8,
        head_dim=128, intermediate_size=9728, vocab_size=151936, rope_theta=1e6, tie_word_embeddings=True,
    ),
    "qwen3-14b": dict(
        model_type="qwen3", hidden_size=5120, num_hidden_layers=40, num_attention_heads=40, num_key_value_heads=8,
        head_dim=128, intermediate_size=17408, vocab_size=151936, rope_theta=1e6, tie_word_embeddings=False,
    ),
    "llama-8b": dict(
        model_type="llama", hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        head_dim=128, intermediate_size=14336, vocab_size=128256, rope_theta=5e5, tie_word_embeddings=False,
    ),
    "tiny": dict(
        model_type="qwen3", hidden_size=64, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
        head_dim=16, intermediate_size=128, vocab_size=512, rope_theta=1e4, tie_word_embeddings=True,
    ),
}  # fmt: skip
"""Published sizes of some models, for ``random:NAME``: speed and memory do not depend on the weights."""


def build_model(name: str, dtype: str, device: str) -> torch.nn.Module:
    """A real or bundled model, or ``random:NAME``, ``random:PATH/config.json``: random weights of that size.

    Raises:
        ValueError: an unknown size; the message lists the choices.
    """
    if not name.startswith("random:"):
        return load(name, dtype, None if device == "cpu" else device)[0].eval()
    from transformers import AutoConfig, AutoModelForCausalLM

    what = name.removeprefix("random:")
    if what in SHAPES:
        settings = dict(SHAPES[what], max_position_embeddings=65536)
    elif Path(what).is_file():
        settings = json.loads(Path(what).read_text())
    else:
        raise ValueError(f"unknown model {name!r}; choose from {', '.join(f'random:{s}' for s in SHAPES)} or a config")
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(device):
            return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    finally:
        torch.set_default_dtype(before)


def new_cache(name: str, model: torch.nn.Module, budget: int, stagger: int = 1):
    """A cache by its name: ``dynamic`` is transformers' own, any other name a spec of this library."""
    if name == "dynamic":
        from transformers import DynamicCache

        return DynamicCache(config=model.config)
    if not parse_policy(name).policy.evicts:
        return BoundedCache(model, name)
    return BoundedCache(model, name, budget, stagger=stagger)


class Decoder:
    """A model and one cache; the benchmark that measures makes the steps.

    Attributes:
        cache: Cache from :func:`new_cache`.
    """

    def __init__(self, model: torch.nn.Module, cache: Any) -> None:
        self.model, self.cache, self.argument = model, cache, {cache_argument(): cache}
        self.device = model.device

    def feed(self, ids: torch.Tensor) -> torch.Tensor:
        """ids (B, m) -> logits (B, 1, vocabulary) of the last token."""
        return self.model(ids, use_cache=True, logits_to_keep=1, **self.argument).logits

    def compile(self, ids: torch.Tensor) -> None:
        """Compile the following steps, and take three without timing. ids: (B, 1)."""
        self.feed = CompiledDecoder(self.model, self.cache)
        for _ in range(3):
            self.feed(ids)

    def timed(self, ids: torch.Tensor) -> tuple[torch.Tensor, float]:
        """The same as :meth:`feed`, and the milliseconds it took."""
        self.wait()
        start = time.perf_counter()
        logits = self.feed(ids)
        self.wait()
        return logits, 1000 * (time.perf_counter() - start)

    def wait(self) -> None:
        """Wait until the device has completed its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def cache_bytes(self) -> int:
        """Bytes of keys and values."""
        if isinstance(self.cache, BoundedCache):
            return self.cache.stats.kv_bytes
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.cache.layers if layer.is_initialized)


@torch.inference_mode()
def refuse_if_wrong(model: torch.nn.Module) -> None:
    """End the program, without a report, if a cache computes other logits.

    A bounded cache that keeps everything must give the logits of DynamicCache.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, min(model.config.vocab_size, 1000), (2, 40), generator=generator).to(model.device)
    fed = {name: Decoder(model, new_cache(name, model, 64)) for name in ("dynamic", "full", "beaconkv")}
    tolerance = {torch.float32: 1e-3}.get(model.dtype, 0.15)
    for start, stop in [(0, 24), *((i, i + 1) for i in range(24, 40))]:
        logits = {name: decoder.feed(ids[:, start:stop]).float() for name, decoder in fed.items()}
        for name in ("full", "beaconkv"):
            difference = (logits[name] - logits["dynamic"]).abs().max().item()
            scale = logits["dynamic"].abs().max().item()
            if not difference <= tolerance * max(scale, 1):
                sys.exit(f"nothing is reported: {name} differs from DynamicCache by {difference:.3g} in its logits")


def bandwidth(device: torch.device) -> float:
    """Bytes per second that are read from memory: a sum over half a gigabyte, the best of some."""
    numbers = torch.ones(1 << 27, dtype=torch.float32, device=device)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    best = float("inf")
    for _ in range(5):
        wait()
        start = time.perf_counter()
        numbers.sum()
        wait()
        best = min(best, time.perf_counter() - start)
    return numbers.nbytes / best


def roofline_ms(model: torch.nn.Module, cache_bytes: int, rate: float) -> float:
    """Milliseconds in which a step's weights and entries can be read once, at ``rate`` bytes per second."""
    embedding = model.get_input_embeddings().weight
    weights = sum(p.nbytes for p in model.parameters())
    if model.get_output_embeddings() is None or model.get_output_embeddings().weight is not embedding:
        weights -= embedding.nbytes  # only some of its rows are read
    return 1000 * (weights + cache_bytes) / rate


def peak_memory(device: torch.device) -> int:
    """Bytes: the allocator's peak on a GPU, the process's largest resident set elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def spread(milliseconds: list[float], batch: int) -> dict[str, float]:
    """Tokens per second, and milliseconds per step."""
    ms = torch.tensor(milliseconds, dtype=torch.float64)
    return {
        "tokens_per_second": round(1000 * batch / ms.mean().item(), 2),
        "mean_ms": round(ms.mean().item(), 3),
        "median_ms": round(ms.median().item(), 3),
        "p99_ms": round(ms.quantile(0.99).item(), 3),
        "max_ms": round(ms.max().item(), 3),
    }


def commit() -> str | None:
    """The commit measured, marked where the tree differs from it."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=Path(__file__).parent
        )
        return found.stdout.strip() or None
    except OSError:
        return None


def report(title: str, rows: list[dict], columns: dict[str, str], options: dict, out: str | None = None) -> None:
    """Print one table for users and one JSON line for programs (which is also added to ``out``).

    Args:
        columns: Headings by key of a row; other keys are in the JSON only.
    """
    table = Table(title=title)
    for heading in columns.values():
        table.add_column(heading, justify="left" if heading in ("method", "operation", "shape") else "right")
    for row in rows:
        table.add_row(*(_shown(row.get(key)) for key in columns))
    Console(width=130).print(table)
    document = {"benchmark": title, "rows": rows, "options": options, "commit": commit(), **provenance()}
    line = json.dumps(document)
    print(line)
    if out is not None:
        with open(out, "a") as file:
            file.write(line + "\n")


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
