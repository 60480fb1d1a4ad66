"""The full cache against small ones on a few word problems: texts, agreement, speed and bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...integrations.transformers import BoundedCache, cache_argument
from ...models import LoadedModel
from ...provenance import placed_as, provenance
from ..prompts import chat_text

WORD_PROBLEMS = (
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


def compare_on_problems(
    loaded: LoadedModel,
    policies: Sequence[str],
    budget: int,
    tokens: int,
    *,
    model: str,
    stage: Callable[[str], Callable[[], None]] = lambda what: lambda: None,
) -> dict[str, Any]:
    """Let a model answer the problems with the full cache and with each policy, and compare.

    Args:
        policies: Specs of the policies that are compared with the full cache.
        budget: Maximum number of entries per layer and KV head (B_max).
        tokens: Number of tokens of each answer.
        model: Name of the model, for the result.
        stage: Function called with the name of each stage; it returns a function that is called after each of the
            ``tokens`` steps.

    Returns:
        A row for each cache, the full one first: speed, the numbers of the cache and, for a bounded one,
        ``same_until``, the number of tokens until each answer first differs from the full cache's, and ``agreement``,
        the share of equal next tokens when it reads the full cache's text.
    """
    tokenizer = loaded.tokenizer
    texts = [chat_text(tokenizer, problem) for problem in WORD_PROBLEMS]
    encoded = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    inputs = {name: encoded[name].to(loaded.model.device) for name in ("input_ids", "attention_mask")}
    rows: list[dict[str, Any]] = []
    reference: Tensor | None = None
    for name in ("full", *policies):
        limit = None if name == "full" else budget
        cache = BoundedCache(loaded.model, name, limit)
        written, seconds = _write(loaded, inputs, tokens, cache, stage(f"{name}: writing"))
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
            advance = stage(f"{name}: following the full cache's text")
            choices = _follow(loaded, inputs, reference, BoundedCache(loaded.model, name, limit), advance)
            row["same_until"] = same.tolist()
            row["agreement"] = round((choices == reference).float().mean().item(), 4)
        rows.append(row)
    return {
        "rows": rows,
        "prompt_tokens": inputs["attention_mask"].sum(-1).tolist(),
        **provenance(model=model, **placed_as(loaded), seed=None, decoding="greedy"),
    }


def _write(
    loaded: LoadedModel, inputs: Mapping[str, Tensor], tokens: int, cache: BoundedCache, advance: Callable[[], None]
) -> tuple[Tensor, float]:
    """The greedy answers, (rows, tokens) int64, and the seconds they took."""
    start = time.perf_counter()
    written = loaded.model.generate(
        **inputs,
        **{cache_argument(): cache},
        do_sample=False,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        pad_token_id=loaded.tokenizer.pad_token_id,
        streamer=_StepCounter(advance),
    )
    return written[:, inputs["input_ids"].shape[1] :], time.perf_counter() - start


class _StepCounter:
    """A streamer that only counts: ``generate`` passes it the prompt first, then each step."""

    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance, self._is_prompt = advance, True

    def put(self, value: Tensor) -> None:
        if not self._is_prompt:
            self._advance()
        self._is_prompt = False

    def end(self) -> None:
        pass


@torch.inference_mode()
def _follow(
    loaded: LoadedModel, inputs: Mapping[str, Tensor], text: Tensor, cache: BoundedCache, advance: Callable[[], None]
) -> Tensor:
    """Feed the full cache's text through a bounded cache.

    Returns:
        (rows, tokens) int64, the token that it would have chosen at each position.
    """
    ids, mask, chosen = inputs["input_ids"], inputs["attention_mask"], []
    for step in range(text.shape[1]):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = loaded.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **{cache_argument(): cache}
        )
        chosen.append(out.logits[:, -1].argmax(-1))
        ids = text[:, step : step + 1]
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
        advance()
    return torch.stack(chosen, dim=1)
