"""Feeding given texts through a bounded cache, token by token, as in generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...instruments import SideBySide
from ...integrations.transformers import BoundedCache, cache_argument
from .lost_mass import LostMass
from .texts import Text


@dataclass(frozen=True)
class RowCost:
    """The cost of one text's row of a cache.

    Attributes:
        evictions: Number of evictions per layer.
        kv_bytes, state_bytes: Share of the batch's bytes of keys and values, and of positions and policy state.
        peak_kv_bytes: Share of the batch's peak, the whole prompt in one layer included.
    """

    evictions: int
    kv_bytes: int
    state_bytes: int
    peak_kv_bytes: int


class Clock:
    """Seconds spent inside ``with clock:``, the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self.seconds, self._wait = 0.0, torch.cuda.synchronize if device.type == "cuda" else lambda: None

    @contextmanager
    def pause(self) -> Iterator[None]:
        self.stop()
        yield
        self.start()

    def start(self) -> None:
        self._wait()
        self._since = time.perf_counter()

    def stop(self) -> None:
        self._wait()
        self.seconds += time.perf_counter() - self._since


Take = Callable[[int, Tensor], None]
"""Called with a step k and (steps, rows, D) hidden states of steps k, k + 1, ..."""


@torch.inference_mode()
def follow(
    decoder: nn.Module,
    caches: list[BoundedCache],
    texts: list[Text],
    takes: list[Take],
    losses: list[LostMass] | None = None,
    block: int = 64,
) -> tuple[list[list[RowCost]], float]:
    """Read the prompts in one pass, then one token of each text per step, with each of the caches.

    The result of a row does not depend on the other rows. A row is dropped when its text ends.

    Args:
        decoder: decoder of the caches' model, without the output head.
        caches: new ones. Several share each forward pass of the model.
        texts: one a row, those with most tokens after the prompt first.
        takes: one for each cache; gets at most ``block`` steps at a time. Row r of step k predicts token
            ``prompt_length + k`` of text r.
        losses: one for each cache, called at the steps it asks for; or None.

    Returns:
        The cost of each cache and row, and the seconds of all decode steps together, without output head and
        measuring.
    """
    device, number = next(decoder.parameters()).device, len(caches)
    host = caches[0] if number == 1 else SideBySide(caches)
    losses = losses or []
    prompts = [text.prompt_length for text in texts]
    width, most = max(prompts), texts[0].predictions
    ids = torch.zeros(len(texts), width + most, dtype=torch.int64)
    mask = torch.ones_like(ids)
    for row, text in enumerate(texts):
        start = width - text.prompt_length
        ids[row, start : start + len(text.ids)] = torch.tensor(text.ids)
        mask[row, :start] = 0
    is_padded = min(prompts) < width
    ids, mask = ids.to(device), mask.to(device)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)

    def forward(rows: int, start: int, stop: int) -> Tensor:
        """(caches, rows, D)"""
        hidden = decoder(
            input_ids=ids[:rows, start:stop].repeat(number, 1),
            attention_mask=mask[:rows, :stop].repeat(number, 1) if is_padded else None,
            position_ids=positions[:rows, start:stop].repeat(number, 1),
            use_cache=True,
            **{cache_argument(): host},
        ).last_hidden_state[:, -1]
        return hidden.view(number, rows, -1)

    costs: list[dict[int, RowCost]] = [{} for _ in caches]
    clock, rows = Clock(device), len(texts)
    hidden, first = [forward(rows, 0, width)], 0
    clock.start()
    for step in range(1, most + 1):
        alive = sum(text.predictions > step for text in texts[:rows])
        if alive < rows or len(hidden) == block:
            with clock.pause():
                for take, own in zip(takes, torch.stack(hidden, dim=1), strict=True):
                    take(first, own)
                hidden, first = [], step
                if alive < rows:
                    for lost in losses:
                        lost.flush()
                    for cache, own in zip(caches, costs, strict=True):
                        own |= {row: _cost(cache, row, rows, len(texts)) for row in range(alive, rows)}
                    rows = alive
                    if rows:
                        host.batch_select_indices(torch.arange(rows, device=device))
        if rows == 0:
            break
        if losses and losses[0].wants(step):
            with clock.pause():
                for lost, cache in zip(losses, caches, strict=True):
                    lost.take(step, cache)
        hidden.append(forward(rows, width + step - 1, width + step))
    clock.stop()
    return [[own[row] for row in range(len(texts))] for own in costs], clock.seconds


def _cost(cache: BoundedCache, row: int, rows: int, rows_at_first: int) -> RowCost:
    stats, evictions = cache.stats, cache.row_evictions()[row]
    return RowCost(evictions, stats.kv_bytes // rows, stats.state_bytes // rows, stats.peak_kv_bytes // rows_at_first)
