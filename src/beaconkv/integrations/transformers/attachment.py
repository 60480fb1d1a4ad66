"""Connecting a model to bounded caches while one lives, and leaving no trace afterwards.

Two things are changed on the model, and put back when its last bounded cache is gone:

- ``config._attn_implementation`` names our wrapper of the kernel it named before;
- a forward pre-hook on each attention module that serves a bounded layer. If the call brings a
  BoundedCache, it adds one keyword argument with that cache's layer and the model's cos and sin. The
  argument travels to the attention function; nothing is ever stored on a module.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import nn

from ...types import Rope, RotaryFn
from .attention import CALL_KWARG, is_wrapped, register, wrapped_name
from .support import attention_modules, verified_rotary

_ATTACHMENTS: weakref.WeakKeyDictionary[nn.Module, Attachment] = weakref.WeakKeyDictionary()


class AnnouncedCache(ABC):
    """A cache whose attention calls are announced: the part of it that the hook knows."""

    @abstractmethod
    def serves(self, index: int, model: nn.Module | None) -> bool:
        """Whether layer ``index`` is bounded. Raises ``ValueError`` for a model that is not the cache's own."""

    @abstractmethod
    def call(self, index: int, rope: Rope) -> Any:
        """What the attention function gets: an object with ``attend``."""


class Attachment:
    """What is attached to one model, shared by all bounded caches of it."""

    def __init__(self, model: nn.Module, layers: list[int]) -> None:
        modules = attention_modules(model)
        missing = [i for i in layers if i not in modules]
        if missing:
            raise ValueError(f"{type(model).__name__}: no attention module with RoPE found for layers {missing}")
        self.num_users = 0
        self.kernels: dict[int, tuple[Any, str]] = {}  # by id: a config, and the kernel it names by itself
        self.configs = {id(modules[i].config): modules[i].config for i in sorted(modules)}.values()
        self.wrap()
        rotary: dict[int, RotaryFn] = {}
        announce = _announcer(weakref.ref(model), rotary)
        self.handles = [modules[i].register_forward_pre_hook(announce, with_kwargs=True) for i in layers]

    def wrap(self) -> None:
        """Let every config name our wrapper of its kernel, also where somebody has changed the kernel since."""
        changed = [config for config in self.configs if not is_wrapped(config._attn_implementation)]
        for config in changed:
            register(config._attn_implementation)  # refuses what cannot be wrapped, before anything is changed
        for config in changed:
            self.kernels[id(config)] = config, config._attn_implementation
            config._attn_implementation = wrapped_name(config._attn_implementation)

    def detach(self) -> None:
        """Put the model back as it was."""
        for handle in self.handles:
            handle.remove()
        for config, kernel in self.kernels.values():
            if is_wrapped(config._attn_implementation):
                config._attn_implementation = kernel


def attach(model: nn.Module, layers: list[int], user: object) -> Callable[[], None]:
    """Attach ``model`` for as long as ``user`` lives; returns a function that lets go earlier.

    Raises:
        ValueError: the model or its attention implementation cannot be bounded.
    """
    attachment = _ATTACHMENTS.get(model)
    if attachment is None:
        attachment = _ATTACHMENTS[model] = Attachment(model, layers)
    else:
        attachment.wrap()
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
    def announce(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        cache = next((value for value in kwargs.values() if isinstance(value, AnnouncedCache)), None)
        if cache is None or not cache.serves(module.layer_idx, model_ref()):
            return None
        if not is_wrapped(module.config._attn_implementation):
            raise RuntimeError(
                f"the model's attention implementation became {module.config._attn_implementation!r} after this "
                "BoundedCache was made: make a new cache"
            )
        index, embeddings = module.layer_idx, kwargs.get("position_embeddings")
        if not isinstance(embeddings, tuple) or len(embeddings) != 2:
            raise ValueError(
                f"{type(module).__name__} takes no pair of cos and sin as position_embeddings: cannot be bounded"
            )
        cos, sin = embeddings
        if index not in rotary:
            rest = {name: None if value is cache else value for name, value in kwargs.items()}
            hidden = rest.pop("hidden_states", None)
            hidden = args[0] if hidden is None else hidden
            rest["attention_mask"] = None
            rotary[index] = verified_rotary(module, hidden[:1, :1], cos, sin, CALL_KWARG, rest)
        return args, {**kwargs, CALL_KWARG: cache.call(index, Rope(cos, sin, rotary[index]))}

    return announce
