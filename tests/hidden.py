"""The full-cache run in which evicted entries are hidden, head by head: what a bounded cache must equal."""

import torch
from transformers import AttentionInterface

NAME = "test_hidden_entries"
_state: dict = {}


def _attention(module, query, key, value, attention_mask, scaling, **kwargs):
    """Plain attention in which query i of KV head h sees key j only while j was still held."""
    rows, heads, length, _ = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    logits = scaling * query @ key.transpose(-1, -2)
    i, j = torch.arange(length).view(-1, 1), torch.arange(length).view(1, -1)
    visible = (j <= i).expand(rows, heads, -1, -1)
    if module.layer_idx in _state:
        last = _state[module.layer_idx].repeat_interleave(group, 0)  # (H, T): last query that sees the entry
        visible = visible & (i <= last.view(1, heads, 1, length))
    elif (window := kwargs.get("sliding_window")) is not None:
        visible = visible & (j > i - window)
    logits = logits.masked_fill(~visible, -torch.inf)
    if (sinks := kwargs.get("s_aux")) is not None:
        logits = torch.cat([logits, sinks.view(1, -1, 1, 1).expand(rows, -1, length, 1)], -1)
        weights = logits.softmax(-1, dtype=torch.float32)[..., :-1].to(query.dtype)
    else:
        weights = logits.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), None


class Recorder:
    """Collects, per layer, row and KV head, the last position that saw each entry."""

    def __init__(self):
        self.gone = []

    def __call__(self, event):
        for i, row in enumerate(event.rows):
            self.gone.append((event.layer, row, event.now[i], event.dropped[i]))

    def last_seen(self, layer, row, kv_heads, length):
        last = torch.full((kv_heads, length), length)
        for at_layer, at_row, now, dropped in self.gone:
            if (at_layer, at_row) == (layer, row):
                for head in range(kv_heads):
                    last[head, dropped[head].long()] = now
        return last


@torch.no_grad()
def full_logits(model, tokens, recorder, row, layers):
    """(T, vocabulary) logits of one unpadded row, computed without any cache."""
    AttentionInterface.register(NAME, _attention)
    config = model.config
    kv_heads, length = config.num_key_value_heads, len(tokens)
    _state.clear()
    for layer in layers:
        _state[layer] = recorder.last_seen(layer, row, kv_heads, length)
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        return model(torch.tensor(tokens).view(1, -1), use_cache=False).logits[0]
    finally:
        config._attn_implementation = before
        _state.clear()
