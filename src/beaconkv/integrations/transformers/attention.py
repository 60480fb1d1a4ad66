"""Attention and mask functions: what transformers calls in place of the configured kernel.

A function is registered for each wrapped kernel, under ``beaconkv_<kernel>``, when a cache is first
attached to a model that uses it. Without a bounded layer in the call it is the wrapped kernel itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ...cache import AttentionInputs
from .model_checks import KERNELS, model_file

PREFIX = "beaconkv_"
CALL_KWARG = "beaconkv_call"
"""The keyword argument of the attention module that carries the call of a bounded layer."""

BOUNDED_OFFSET = -1
"""The kv_offset with which a bounded layer requests the padding alone from the mask function."""


@dataclass(frozen=True)
class UnsupportedMask:
    """In place of a mask that no bounded layer can take. The layer that gets it refuses the call.

    Attributes:
        reason: in words.
    """

    reason: str


def wrapped_name(kernel: str) -> str:
    """The registered name of a kernel's wrapper.

    Raises:
        ValueError: a kernel that cannot be wrapped.
    """
    if kernel not in KERNELS:
        raise ValueError(f"attention implementation {kernel!r} cannot be bounded; choose from {', '.join(KERNELS)}")
    return PREFIX + kernel


def kernel_of(name: str) -> str:
    """The kernel behind an attention implementation's name, wrapped or not."""
    return name.removeprefix(PREFIX)


def register(kernel: str) -> None:
    """Register the wrapper of ``kernel`` with transformers. A second call changes nothing."""
    name = wrapped_name(kernel)
    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, _attention_function(kernel))
        AttentionMaskInterface.register(name, _mask_function(kernel))


def run_kernel(kernel: str, module: nn.Module, *args, **kwargs):
    """Call the wrapped kernel as transformers would have."""
    if kernel == "eager":  # each model file has its own
        return model_file(module).eager_attention_forward(module, *args, **kwargs)
    return ALL_ATTENTION_FUNCTIONS[kernel](module, *args, **kwargs)


def run_step(kernel: str, module: nn.Module, query: Tensor, inputs: AttentionInputs, mask: Tensor | None, **kwargs):
    """Call the wrapped kernel for one query of each row and head.

    Where rows are of unequal length, older releases of transformers expand keys and values to all query heads. SDPA
    is then called as newer ones do: with the heads of a GQA group as the queries of their KV head.

    Args:
        query: (B, H, 1, D).
        mask: from :func:`kernel_mask`.
    """
    known = kernel == "sdpa" and mask is not None and mask.shape[1] == 1
    if not known or any(kwargs.get(name) for name in ("dropout", "softcap", "output_attentions")):
        return run_kernel(kernel, module, query, inputs.keys, inputs.values, mask, **kwargs)
    batch, heads, _, dim = query.shape
    groups, scaling = query.reshape(batch, inputs.keys.shape[1], -1, dim), kwargs.get("scaling")
    output = scaled_dot_product_attention(groups, inputs.keys, inputs.values, attn_mask=mask, scale=scaling)
    return output.reshape(batch, 1, heads, -1), None


def _attention_function(kernel: str) -> Callable:
    def bounded_attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask, **kwargs):
        call = kwargs.pop(CALL_KWARG, None)
        if call is None:
            return run_kernel(kernel, module, query, key, value, attention_mask, **kwargs)
        return call.attend(module, query, key, value, attention_mask, kernel, **kwargs)

    return bounded_attention


def _mask_function(kernel: str) -> Callable:
    def bounded_mask(*args, **kwargs):
        if kwargs.get("kv_offset") != BOUNDED_OFFSET:
            return ALL_MASK_ATTENTION_FUNCTIONS[kernel](*args, **kwargs)
        if kwargs.get("mask_function") is not causal_mask_function:
            # Not an error yet: some models make masks of a kind that none of their layers uses.
            return UnsupportedMask(
                "this call changes the causal mask of full-attention layers (image blocks, packed sequences, ...): "
                "a BoundedCache takes plain causal text"
            )
        mask, num_columns = kwargs.get("attention_mask"), kwargs["kv_length"]
        if mask is None:
            return None
        if mask.shape[1] < num_columns:
            raise ValueError(
                f"the attention mask has {mask.shape[1]} columns for {num_columns} tokens: "
                "it must cover all tokens that the cache has seen, and the new ones"
            )
        num_new = kwargs["q_length"] if "q_length" in kwargs else kwargs["cache_position"].shape[0]
        mask = mask[:, num_columns - num_new : num_columns]
        if num_new == 1 and mask.device.type != "cpu":
            # A decode step must not wait for the device: padding there fails on the device instead.
            torch._assert_async(mask.all(), "a single-token step of a bounded cache must not be padding")
            return None
        return None if mask.all() else mask

    return bounded_mask


def kernel_mask(kernel: str, inputs: AttentionInputs, query: Tensor) -> Tensor | None:
    """The mask in the form ``kernel`` takes: a new token sees what is stored, earlier new tokens and itself.

    Args:
        inputs: entries (B, H_kv, N, D); for m > 1 queries the last m are the new tokens.
        query: (B, H, m, D).

    Returns:
        None where the kernel needs no mask; (B, N) bool for flash attention; else (1 or B, 1, m, N).
    """
    num_new, num_entries = query.shape[2], inputs.keys.shape[2]
    if kernel.startswith("flash"):
        return inputs.valid
    if inputs.valid is None and (num_new == 1 or (num_new == num_entries and kernel == "sdpa")):
        return None  # everything is visible, or plainly causal
    device = query.device
    index = torch.arange(num_entries, device=device)
    own = num_entries - num_new + torch.arange(num_new, device=device).view(1, 1, -1, 1)
    if num_new == 1:
        visible = inputs.valid[:, None, None, :]
    else:
        visible = index <= own
        if inputs.valid is not None:
            # Padding sees itself, so that no row of the softmax is empty; its output is not read.
            visible = (visible & inputs.valid[:, None, None, :]) | (index == own)
    if kernel == "sdpa":
        return visible
    return torch.zeros_like(visible, dtype=query.dtype).masked_fill_(~visible, torch.finfo(query.dtype).min)
