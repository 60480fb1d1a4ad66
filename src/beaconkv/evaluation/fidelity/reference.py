"""The reference of a text: the full cache's results, computed once in a forward pass over all of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ... import ops
from ...instruments import QueryRecorder, bounded_layers
from ...integrations.transformers import BoundedCache, cache_argument
from ...types import AttentionParams
from .head import OutputHead
from .texts import Text


class LayerAttention(NamedTuple):
    """The data from which the attention of one full layer is computed.

    Attributes:
        index: index of the layer in the model.
        queries: (1, H, S, D) after RoPE, of the sampled tokens.
        keys: (1, H_kv, T, D) after RoPE, of all tokens.
        params: how the layer computes its logits.
    """

    index: int
    queries: Tensor
    keys: Tensor
    params: AttentionParams

    def lost(self, samples: slice, at: Tensor, held: Tensor) -> Tensor:
        """Attention probability on entries that are not held, mean over the query heads.

        Args:
            samples: Indices of n of the sampled tokens.
            at: Positions of these tokens (n,) int64.
            held: Whether each entry is held (n, H_kv, T) bool.

        Returns:
            (n,) float32.
        """
        size = int(at.max()) + 1
        order = torch.arange(size, device=at.device).expand(1, self.keys.shape[1], -1)
        weights = ops.attention_weights(
            self.queries[:, :, samples], self.keys[:, :, :size], self.params, at.unsqueeze(0), order
        )[0]  # (H_kv, G, n, size)
        gone = ~held[:, :, :size].transpose(0, 1).unsqueeze(1)
        return (weights * gone).sum(-1).mean((0, 1))


@dataclass(frozen=True)
class Reference:
    """The full cache's results on one text of T tokens, P of them prompt.

    Attributes:
        hidden: Last hidden states (T - P, D) of tokens P-1 to T-2: row k predicts token P + k.
        layers: Full-attention layers.
    """

    hidden: Tensor
    layers: list[LayerAttention]


def sampled_steps(predictions: int, every: int, seed: int) -> list[int]:
    """Steps at which attention is measured: one, drawn at random, of each ``every``; none if that is 0.

    A fixed stride would sample the cycle of evictions always at the same few steps. The steps of a shorter text are
    the first ones of a longer text.
    """
    if every == 0:
        return []
    draw = random.Random(seed)
    steps = [start + draw.randrange(every) for start in range(1, predictions, every)]
    return [step for step in steps if step < predictions]


@torch.inference_mode()
def read_reference(model: nn.Module, head: OutputHead, text: Text, steps: list[int], chunk: int = 512) -> Reference:
    """Read a text with the full cache.

    Args:
        steps: Steps at which attention is measured; step k reads token P + k - 1 and predicts token P + k.
        chunk: Number of tokens in a forward pass.
    """
    first = text.prompt_length - 1
    recorder = QueryRecorder(tuple(first + step for step in steps))
    ids = torch.tensor([text.ids[:-1]], device=model.device)  # the prediction after the last token is not used
    hidden = []
    with BoundedCache(model, recorder) as cache:
        for part in ids.split(chunk, dim=1):
            out = head.decoder(part, use_cache=True, **{cache_argument(): cache}).last_hidden_state[0]
            hidden.append(out)
        layers = [
            LayerAttention(i, host.layer.state.take(), host.keys, host.layer.state.params)
            for i, host in bounded_layers(cache)
        ]
    return Reference(torch.cat(hidden)[first:].clone(), layers if steps else [])
