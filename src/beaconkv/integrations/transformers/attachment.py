"""Connecting a model to bounded caches while one lives, and leaving no trace afterwards.

Two things are changed on the model, and put back when its last bounded cache is gone:

- ``config._attn_implementation`` names our wrapper of the kernel it named before;
- a forward pre-hook on each attention module that serves a bounded layer. If the call brings a
  BoundedCache, it adds one keyword argument with that cache's layer and the model's cos and sin. The
  argument travels to the attention function; nothing is ever stored on a module.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ...types import Rope, RotaryFn
from .attention import CALL_KWARG, kernel_of, register, wrapped_name
from .support import attention_modules, verified_rotary

_LOCK = threading.RLock()  # re-entrant: the garbage collector may release a cache while another is attached
_ATTACHMENTS: weakref.WeakKeyDictionary[nn.Module, Attachment] = weakref.WeakKeyDictionary()
_CONFIGS: dict[int, list] = {}
"""By id: [config, attachments that use it]. Models may share a config."""


class AnnouncedCache(ABC):
    """A cache whose attention calls are announced: the part of it that the hook knows."""

    @abstractmethod
    def serves(self, module: nn.Module, model: nn.Module | None) -> bool:
        """Whether it is for the hook of ``model`` to announce this call.

        Raises:
            ValueError: the module is none of those the cache was made for.
        """

    @abstractmethod
    def call(self, index: int, rope: Rope) -> Any:
        """What the attention function of layer ``index`` gets: an object with ``attend``."""


class AnnouncedStep(ABC):
    """A call that comes announced already: of a compiled step."""

    @abstractmethod
    def note_rope(self, index: int, cos: Tensor, sin: Tensor) -> None:
        """Told before the attention of layer ``index``: what turns its queries, (B or 1, 1, D_rot)."""


class Attachment:
    """What is attached to one model, shared by all bounded caches of it.

    Args:
        model: the model.
        layers: indices of the layers that are bounded.

    Raises:
        ValueError: the model or its attention implementation cannot be bounded.
    """

    def __init__(self, model: nn.Module, layers: list[int]) -> None:
        modules = attention_modules(model)
        missing = [i for i in layers if i not in modules]
        if missing:
            raise ValueError(f"{type(model).__name__}: no attention module with RoPE found for layers {missing}")
        self.num_users = 0
        self.modules = {i: modules[i] for i in layers}
        self.configs = list({id(module.config): module.config for module in modules.values()}.values())
        # Counted before anything is changed: the collector may release another user of a config at any time.
        for config in self.configs:
            _CONFIGS.setdefault(id(config), [config, 0])[1] += 1
        try:
            self.wrap()
        except ValueError:
            self._let_configs_go()
            raise
        rotary: dict[int, RotaryFn] = {}
        announce = _announcer(weakref.ref(model), rotary)
        self.handles = [m.register_forward_pre_hook(announce, with_kwargs=True) for m in self.modules.values()]

    def wrap(self) -> None:
        """Let every config name our wrapper of its kernel, also where somebody has changed the kernel since."""
        for config in self.configs:
            register(kernel_of(config._attn_implementation))  # refuses what cannot be wrapped, before any change
        for config in self.configs:
            config._attn_implementation = wrapped_name(kernel_of(config._attn_implementation))

    def detach(self) -> None:
        """Put the model back as it was."""
        for handle in self.handles:
            handle.remove()
        self._let_configs_go()

    def _let_configs_go(self) -> None:
        for config in self.configs:
            entry = _CONFIGS[id(config)]
            entry[1] -= 1
            if entry[1] == 0:
                del _CONFIGS[id(config)]
                config._attn_implementation = kernel_of(config._attn_implementation)


def attach(model: nn.Module, layers: list[int], user: object) -> tuple[dict[int, nn.Module], Callable[[], None]]:
    """Attach ``model`` for as long as ``user`` lives.

    Returns:
        The attention modules of the bounded layers, and a function that lets go earlier.

    Raises:
        ValueError: the model or its attention implementation cannot be bounded.
    """
    with _LOCK:
        attachment = _ATTACHMENTS.get(model)
        if attachment is None:
            attachment = _ATTACHMENTS[model] = Attachment(model, layers)
        attachment.num_users += 1  # before wrap(): the collector may release the last other user at any time
        release = weakref.finalize(user, _release, weakref.ref(model), attachment)
        try:
            attachment.wrap()
        except ValueError:
            release()
            raise
        return attachment.modules, release


def _release(model_ref: weakref.ref, attachment: Attachment) -> None:
    with _LOCK:
        attachment.num_users -= 1
        if attachment.num_users == 0:
            attachment.detach()
            model = model_ref()
            if model is not None:
                _ATTACHMENTS.pop(model, None)


def _announcer(model_ref: weakref.ref, rotary: dict[int, RotaryFn]) -> Callable:
    def announce(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        announced = kwargs.get(CALL_KWARG)
        if isinstance(announced, AnnouncedStep):
            announced.note_rope(module.layer_idx, *kwargs["position_embeddings"])
            return None
        cache = next((value for value in kwargs.values() if isinstance(value, AnnouncedCache)), None)
        if cache is None or not cache.serves(module, model_ref()):
            return None
        kernel = module.config._attn_implementation
        if kernel == kernel_of(kernel):
            raise RuntimeError(
                f"the model's attention implementation became {kernel!r} after this BoundedCache was made: "
                "make a new cache"
            )
        index, embeddings = module.layer_idx, kwargs.get("position_embeddings")
        if not isinstance(embeddings, tuple) or len(embeddings) != 2:
            raise ValueError(
                f"{type(module).__name__} takes no pair of cos and sin as position_embeddings: cannot be bounded"
            )
        cos, sin = embeddings
        if index not in rotary:
            hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            rotary[index] = verified_rotary(module, hidden, cos, sin, CALL_KWARG, _probe_arguments(kwargs, cache))
        return args, {**kwargs, CALL_KWARG: cache.call(index, Rope(cos, sin, rotary[index]))}

    return announce


def _probe_arguments(kwargs: dict, cache: AnnouncedCache) -> dict:
    """The call's other arguments, cut down to a single token and no cache."""
    rest = {name: None if value is cache else value for name, value in kwargs.items() if name != "hidden_states"}
    rest["attention_mask"] = None
    for name in ("position_ids", "cache_position"):
        if isinstance(rest.get(name), Tensor):
            rest[name] = rest[name][..., :1][:1]
    return rest
