"""Connecting a model to bounded caches while one lives, and leaving no trace afterwards.

Two things are changed on the model, and put back when its last bounded cache is gone:

- ``config._attn_implementation`` names our wrapper of the kernel it named before;
- a forward pre-hook on each attention module that serves a bounded layer. If the call brings a
  BoundedCache, it adds one keyword argument with that cache's layer and the model's cos and sin. The
  argument travels to the attention function; nothing is ever stored on a module.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from ...types import Rope, RotaryFn
from .attention import CALL_KWARG, register, wrapped_name
from .support import attention_modules, verified_rotary

_ATTACHMENTS: weakref.WeakKeyDictionary[nn.Module, Attachment] = weakref.WeakKeyDictionary()


class Attachment:
    """What is attached to one model, shared by all bounded caches of it."""

    def __init__(self, model: nn.Module, layers: list[int]) -> None:
        modules = attention_modules(model)
        missing = [i for i in layers if i not in modules]
        if missing:
            raise ValueError(f"{type(model).__name__}: no attention module with RoPE found for layers {missing}")
        self.num_users = 0
        self.configs: dict[int, tuple[Any, str]] = {}  # by id: the config, and the kernel it named
        for index in sorted(modules):
            config = modules[index].config
            self.configs.setdefault(id(config), (config, config._attn_implementation))
        for _, kernel in self.configs.values():
            register(kernel)  # refuses a kernel that cannot be wrapped, before anything is changed
        for config, kernel in self.configs.values():
            config._attn_implementation = wrapped_name(kernel)
        rotary: dict[int, RotaryFn] = {}
        self.handles = [
            modules[i].register_forward_pre_hook(_announcer(weakref.ref(model), rotary), with_kwargs=True)
            for i in layers
        ]

    def detach(self) -> None:
        """Put the model back as it was."""
        for handle in self.handles:
            handle.remove()
        for config, kernel in self.configs.values():
            if config._attn_implementation == wrapped_name(kernel):
                config._attn_implementation = kernel


def attach(model: nn.Module, layers: list[int], user: object) -> Callable[[], None]:
    """Attach ``model`` for as long as ``user`` lives; returns a function that lets go earlier.

    Raises:
        ValueError: the model or its attention implementation cannot be bounded.
    """
    attachment = _ATTACHMENTS.get(model)
    if attachment is None:
        attachment = _ATTACHMENTS[model] = Attachment(model, layers)
    attachment.num_users += 1
    return weakref.finalize(user, _release, weakref.ref(model), attachment)


def _release(model_ref: weakref.ref, attachment: Attachment) -> None:
    attachment.num_users -= 1
    if attachment.num_users == 0:
        attachment.detach()
        model = model_ref()
        if model is not None:
            _ATTACHMENTS.pop(model, None)


def _announcer(model_ref: weakref.ref, rotary: dict[int, RotaryFn]) -> Callable:
    from .cache import BoundedCache, LayerCall

    def announce(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        cache = next((value for value in kwargs.values() if isinstance(value, BoundedCache)), None)
        if cache is None:
            return None
        index = module.layer_idx
        layer = cache.layer_for_call(index, model_ref())
        if layer is None:
            return None
        cos, sin = kwargs["position_embeddings"]
        if index not in rotary:
            rest = {k: None if v is cache else v for k, v in kwargs.items()}
            hidden = rest.pop("hidden_states", None)
            hidden = args[0] if hidden is None else hidden
            rest["attention_mask"] = None
            rotary[index] = verified_rotary(module, hidden[:1, :1], cos, sin, CALL_KWARG, rest)
        return args, {**kwargs, CALL_KWARG: LayerCall(layer, Rope(cos, sin, rotary[index]))}

    return announce
