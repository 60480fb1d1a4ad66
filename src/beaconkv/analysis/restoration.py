"""The effect of putting dropped entries back: an intervention, not a correlation."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..instruments import HidingCache
from ..integrations.transformers import cache_argument
from .attention import attention_blocks
from .replay import Replay
from .trace import Trace


@dataclass(frozen=True)
class Restoration:
    """The effect of one eviction on the next tokens, and of undoing a part of it.

    Divergences are KL from the full cache's distribution, nats per token, mean over the window.

    Attributes:
        step: Position of the token after which the eviction came.
        window: Number of tokens whose predictions are compared.
        evicted: Divergence with all that was dropped until then, this eviction included.
        before: Divergence without this eviction.
        single: Divergence when one entry is put back in all heads where this eviction dropped it, by its position.
    """

    step: int
    window: int
    evicted: float
    before: float
    single: dict[int, float]


@torch.inference_mode()
def restore(
    model: nn.Module, trace: Trace, replay: Replay, event: int, positions: Sequence[int], window: int = 64
) -> Restoration:
    """Let the model continue the text after an eviction: with it, without it, and with single entries put back.

    The keys and values are those of the full cache, as everywhere in a replay.

    Args:
        model: the one that the trace is of.
        trace: with all layers and heads.
        replay: replay of the trace, with all its layers.
        event: number of the eviction, from 1.
        positions: positions of entries that are put back, one at a time.
        window: tokens after the eviction, fewer at the end of the text.

    Raises:
        ValueError: no such eviction, a trace of a part of the model, no token after the eviction, an entry that this
            eviction dropped nowhere, or a model whose layers are not all full attention.
    """
    if not 1 <= event <= len(replay.steps):
        raise ValueError(f"event must be between 1 and {len(replay.steps)}, got {event}")
    step = replay.steps[event - 1]
    ids = torch.tensor([trace.tokens], device=model.device)
    after = ids[:, step + 1 : step + 1 + window]
    if after.shape[1] == 0:
        raise ValueError(f"no token follows eviction {event}, which came after the last one")
    with HidingCache(model) as cache:
        _require_whole(model, cache, trace, replay)
        model(ids[:, : step + 1], use_cache=True, logits_to_keep=1, **{cache_argument(): cache})
        number = replay.event_of()[:, :, : step + 1]
        until, here = (number > 0) & (number <= event), number == event

        def predictions(hidden: Tensor | None) -> Tensor:
            """(window, V) float32 log-probabilities; hidden (L, H_kv, step + 1) bool."""
            own = deepcopy(cache)
            own.hidden = {} if hidden is None else dict(zip(replay.layers, hidden.to(model.device), strict=True))
            logits = model(after, use_cache=True, **{cache_argument(): own}).logits[0]
            own.detach()
            return logits.float().log_softmax(-1)

        full = predictions(None)

        def divergence(hidden: Tensor) -> float:
            other = predictions(hidden)
            return (full.exp() * (full - other)).sum(-1).mean().item()

        single = {}
        for position in positions:
            back = torch.zeros_like(here)
            if 0 <= position <= step:
                back[:, :, position] = here[:, :, position]
            if not back.any():
                raise ValueError(f"eviction {event} dropped no entry at position {position}")
            single[position] = divergence(until & ~back)
        return Restoration(step, after.shape[1], divergence(until), divergence(until & ~here), single)


def _require_whole(model: nn.Module, cache: HidingCache, trace: Trace, replay: Replay) -> None:
    if cache.holds_padding:
        raise ValueError("entries are put back where every layer is full attention; this model has others")
    every = list(range(len(cache.layers)))
    kv_heads = model.config.get_text_config(decoder=True).num_key_value_heads
    if replay.layers != every or trace.info.kv_heads != list(range(kv_heads)):
        raise ValueError(
            f"putting entries back needs a trace and a replay of all {len(every)} layers and {kv_heads} KV heads"
        )


def missed_soon(trace: Trace, replay: Replay, window: int) -> Tensor:
    """Attention of the ``window`` queries right after an eviction to what it dropped.

    Returns:
        (L, H_kv, T) float32 for each dropped entry, summed over these queries and the heads of the group; 0 for
        entries that stayed.
    """
    missed = torch.zeros(replay.dropped.shape)
    for number, layer in enumerate(replay.layers):
        step = replay.dropped[number].long().unsqueeze(1)  # (H_kv, 1, T)
        for start, weights in attention_blocks(trace, layer):
            num, size = weights.shape[2:]
            at = torch.arange(start, start + num).view(1, -1, 1)
            soon = (at > step[:, :, :size]) & (at <= step[:, :, :size] + window)
            missed[number, :, :size] += (weights.sum(1) * soon).sum(1)
    return missed


def most_missed(mass: Tensor, event_of: Tensor, event: int, count: int) -> list[int]:
    """Positions of the entries of one eviction that would have received most attention, strongest first.

    Args:
        mass: Attention (L, H_kv, T), from :func:`missed_soon`, or ``later_mass`` of a loss.
        event_of: Numbers of evictions (L, H_kv, T), from :meth:`Replay.event_of`.
    """
    here = event_of == event
    total = (mass * here).sum((0, 1))
    order = total.argsort(descending=True, stable=True).tolist()
    return [j for j in order if here[:, :, j].any()][:count]
