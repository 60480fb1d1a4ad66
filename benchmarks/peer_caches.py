"""The methods of benchmarks/peers.py, their checks and their measurement."""

from __future__ import annotations

import argparse
import contextlib
import time
from copy import deepcopy

import torch
from kvpress import DecodingPress, KnormPress, SnapKVPress
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from transformers import DynamicCache, StaticCache

from beaconkv import BoundedCache
from beaconkv.models import load

GREEDY_STEPS = 16
NEVER_DROP = ("dynamic", "static", "full")


class UnequalError(Exception):
    """A check failed: the methods did not do the same work."""


class RecordingPress(DecodingPress):
    """DecodingPress that records the maximum number of entries it received."""

    most = 0

    def compress(self, module, hidden_states, keys, *rest):
        self.most = max(self.most, keys.shape[2])
        return super().compress(module, hidden_states, keys, *rest)


class Method:
    """One cache with a model object of its own around shared weights."""

    def __init__(self, name: str, model: nn.Module, options: argparse.Namespace) -> None:
        self.name, self.budget, self.seconds = name, options.budget, []
        self.peak, self.is_whole = 0, True
        self.model = twin(model)
        self.press = None
        if name.startswith("kvpress-"):
            least = 7 * options.budget // 8
            interval = options.budget - least
            scorer = SnapKVPress(window_size=min(32, interval - 1)) if name == "kvpress-snapkv" else KnormPress()
            buffered = interval if name == "kvpress-snapkv" else 0
            self.press = RecordingPress(scorer, interval, least, hidden_states_buffer_size=buffered)
        if name == "static":
            self.cache = StaticCache(config=self.model.config, max_cache_len=options.prompt + options.tokens)
        elif name == "sliding":
            config = deepcopy(self.model.config)
            config.sliding_window, config.layer_types = options.budget, None
            self.cache = DynamicCache(config=config)
        elif name == "dynamic" or self.press:
            self.cache = DynamicCache(config=self.model.config)
        else:
            self.cache = BoundedCache(self.model, name, None if name == "full" else options.budget)

    def read(self, tokens: Tensor, seen: int) -> Tensor:
        """Logits of the last token. tokens: (B, m), the first at position ``seen``."""
        positions = torch.arange(seen, seen + tokens.shape[1]).expand(len(tokens), -1)
        start = time.perf_counter()
        output = self.model(
            tokens, position_ids=positions, past_key_values=self.cache, use_cache=True, logits_to_keep=1
        )
        self.seconds.append(time.perf_counter() - start)
        self.peak = max(self.peak, sum(self.sizes()))
        return output.logits[:, -1]

    def sizes(self) -> tuple[int, int]:
        """Bytes of keys and values, and of the method's state."""
        if isinstance(self.cache, BoundedCache):
            stats = self.cache.stats
            return stats.kv_bytes, stats.state_bytes
        tensors = [tensor for layer in self.cache.layers for tensor in (layer.keys, layer.values)]
        states = (
            [tensor for layer in self.press.hidden_states_buffer.values() for tensor in layer] if self.press else []
        )
        return tuple(sum(t.untyped_storage().nbytes() for t in group) for group in (tensors, states))

    def held(self) -> list[int]:
        """Minimum and maximum number of entries of any row and KV head, of each layer."""
        if not isinstance(self.cache, BoundedCache):
            return [int(x.get_seq_length()) if self.name == "static" else x.keys.shape[2] for x in self.cache.layers]
        counts = [(self.cache.positions(i) >= 0).sum(-1) for i in range(len(self.cache.layers))]
        return [int(bound) for count in counts for bound in count.aminmax()]

    def check_entries(self, seen: int) -> None:
        """Raise ``UnequalError`` if a layer holds or held a wrong number of entries. seen: tokens read so far."""
        held = self.held()
        least, most = min(held), max(held)
        self.is_whole = least == most == seen
        if self.name in NEVER_DROP:
            allowed = seen, seen
        else:
            allowed = min(seen, 7 * self.budget // 8), self.budget
            if self.press:
                most = max(most, self.press.most)
            elif isinstance(self.cache, BoundedCache):
                most = max(most, self.cache.stats.peak_entries)
        if least < allowed[0] or most > allowed[1]:
            raise UnequalError(f"{self.name} held {least} to {most} entries after {seen} tokens, not {allowed}")

    def row(self, batch: int) -> dict:
        ms = 1000 * torch.tensor(self.seconds[1:])  # the first is the prompt
        held, (kv_bytes, state_bytes) = self.held(), self.sizes()
        return {
            "cache": self.name,
            "tokens_per_second": round(batch * 1000 / ms.mean().item(), 2),
            "mean_ms": round(ms.mean().item(), 3),
            "median_ms": round(ms.median().item(), 3),
            "p99_ms": round(ms.quantile(0.99).item(), 3),
            "max_ms": round(ms.max().item(), 3),
            "last_quarter_mean_ms": round(ms[-max(len(ms) // 4, 1) :].mean().item(), 3),
            "kv_bytes": kv_bytes,
            "state_bytes": state_bytes,
            "cache_bytes": kv_bytes + state_bytes,
            "peak_cache_bytes": self.peak,
            "entries_least": min(held),
            "entries_most": max(held),
        }


def twin(model: nn.Module) -> nn.Module:
    """Another model object with the same weights."""
    return deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def greedy(model: nn.Module, cache, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (B, steps) and logits (B, steps, V) that follow the prompt."""
    written, logits = [], []
    for _ in range(GREEDY_STEPS):
        logits.append(model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1])
        tokens = logits[-1].argmax(-1, keepdim=True)
        written.append(tokens)
    return torch.cat(written, 1), torch.stack(logits, 1)


def require_equal(name: str, logits: Tensor, reference: Tensor, when: str) -> None:
    """Raise ``UnequalError`` if logits differ by more than rounding."""
    tolerance = 1e-4 if logits.dtype == torch.float32 else 5e-2
    difference = ((logits - reference).abs().max() / reference.abs().max()).item()
    if not difference <= tolerance:
        raise UnequalError(f"logits of {name} differ from DynamicCache's by {difference:.2g} of the largest {when}")


def check_greedy(model: nn.Module, prompt: Tensor, expected: tuple[Tensor, Tensor]) -> None:
    """Raise ``UnequalError`` unless this library's caches, which evict nothing here, write DynamicCache's tokens."""
    for policy, budget in (("full", None), ("beaconkv", max(64, prompt.shape[1] + GREEDY_STEPS + 1))):
        own = twin(model)
        tokens, logits = greedy(own, BoundedCache(own, policy, budget), prompt)
        if not torch.equal(tokens, expected[0]):
            raise UnequalError(f"{policy} with budget {budget} writes other tokens than DynamicCache")
        require_equal(policy, logits, expected[1], "in greedy decoding")


@torch.inference_mode()
def race(options: argparse.Namespace) -> list[dict]:
    """One row of numbers for each method.

    Raises:
        UnequalError: a check failed.
    """
    model, _ = load(options.model, options.dtype)
    torch.manual_seed(options.seed)
    tokens = torch.randint(3, model.config.vocab_size, (options.batch, options.prompt + options.tokens))
    prompt = tokens[:, : options.prompt]
    before = greedy(model, DynamicCache(config=model.config), prompt)
    check_greedy(model, prompt, before)
    methods = [Method(name, model, options) for name in options.methods]
    with contextlib.ExitStack() as presses:
        for method in methods:
            if method.press:
                presses.enter_context(method.press(method.model))
        for step in track(range(options.tokens + 1), "steps", console=Console(stderr=True)):
            begin, end = (options.prompt + step - 1 if step else 0), options.prompt + step
            first = step % len(methods)
            logits = {m.name: m.read(tokens[:, begin:end], begin) for m in methods[first:] + methods[:first]}
            for method in methods:
                if method.is_whole:  # nothing was dropped before this step
                    require_equal(method.name, logits[method.name], logits["dynamic"], f"after {end} tokens")
                method.check_entries(end)
        rows = [method.row(options.batch) for method in methods]
    if any(module._forward_hooks for method in methods if method.press for module in method.model.modules()):
        raise UnequalError("kvpress left a hook on its model")
    after = greedy(model, DynamicCache(config=model.config), prompt)
    if not torch.equal(before[1], after[1]):
        raise UnequalError("DynamicCache gives other logits after the run than before")
    for row in rows:
        row["ratio_to_beaconkv"] = round(row["mean_ms"] / rows[-1]["mean_ms"], 3)
    return rows
