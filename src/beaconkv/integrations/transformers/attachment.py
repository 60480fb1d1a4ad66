"""Attaching bounded caches to a model while one exists, and removing every change afterwards.

Two things are changed on the model, and restored when its last bounded cache is deleted:

- hooks before and after each module that holds all bounded layers (the model, and the decoder inside it). While a call
  that brings a BoundedCache is under way, and only then, the configuration names our wrapper of its attention
  implementation: the masks are made and the attention functions looked up by that name;
- a forward pre-hook on each attention module that serves a bounded layer. If the call brings a
  BoundedCache, it adds one keyword argument with that cache's layer and the model's cos and sin. The
  argument reaches the attention function; nothing is ever stored on a module.

``generate`` compares texts as :mod:`.generation` says.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...types import Rope, RotaryFn
from .attention import CALL_KWARG, kernel_of, register, wrapped_name
from .generation import check_generation
from .model_checks import attention_modules, require_uncompiled
from .rotation import verified_rotary

_LOCK = threading.RLock()  # re-entrant: the garbage collector may release a cache while another is attached
_ATTACHMENTS: weakref.WeakKeyDictionary[nn.Module, Attachment] = weakref.WeakKeyDictionary()
_CONFIGS: dict[int, list] = {}
"""By id: [config, calls under way that need it wrapped]. Models may share a config."""


class AnnouncedCache(ABC):
    """The interface of a cache that the hooks use: its attention calls are announced."""

    @abstractmethod
    def serves_model(self, model: nn.Module | None) -> bool:
        """Whether this is the model the cache was made for."""

    @abstractmethod
    def begin(self, arguments: dict[str, Any]) -> None:
        """A forward pass of that model begins, with these keyword arguments.

        Raises:
            ValueError: input that does not continue what the cache holds.
        """

    @abstractmethod
    def end(self, broken: bool) -> None:
        """The forward pass is over; ``broken``: by an exception."""

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
    """An announced call of a compiled step."""

    @abstractmethod
    def note_rope(self, index: int, cos: Tensor, sin: Tensor) -> None:
        """Before the attention of layer ``index``: the rotation of its queries, (B or 1, 1, D_rot)."""


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
        self.num_users = self.num_wraps = 0
        self.model = weakref.ref(model)
        self.modules = {i: modules[i] for i in layers}
        self.configs = list({id(module.config): module.config for module in modules.values()}.values())
        self.rotary: dict[int, RotaryFn] = {}
        self.require_kernels()
        self.restore_generation = check_generation(model)
        announce = _Hook(self.announce)
        self.handles = [m.register_forward_pre_hook(announce, with_kwargs=True) for m in self.modules.values()]
        for depth, outer in enumerate(_holders(model, list(self.modules.values()))):
            names = tuple(inspect.signature(type(outer).forward).parameters)[1:]
            enter, leave = _Hook(self.enter, depth, names), _Hook(self.leave, depth)
            self.handles += [
                outer.register_forward_pre_hook(enter, with_kwargs=True),
                outer.register_forward_hook(leave, with_kwargs=True, always_call=True),
            ]
        self._under_way = threading.local()

    def require_kernels(self) -> None:
        """Raise ``ValueError`` unless our wrappers of the attention implementations in use exist, or can be made."""
        for config in self.configs:
            register(kernel_of(config._attn_implementation))

    @contextmanager
    def wrapped(self) -> Iterator[None]:
        """Within the block, every config names our wrapper of its attention implementation."""
        self._wrap()
        try:
            yield
        finally:
            self._unwrap()

    def _wrap(self) -> None:
        with _LOCK:
            self.require_kernels()
            self.num_wraps += 1
            for config in self.configs:
                entry = _CONFIGS.setdefault(id(config), [config, 0])
                entry[1] += 1
                config._attn_implementation = wrapped_name(kernel_of(config._attn_implementation))

    def _unwrap(self) -> None:
        with _LOCK:
            self.num_wraps -= 1
            for config in self.configs:
                entry = _CONFIGS[id(config)]
                entry[1] -= 1
                if entry[1] == 0:
                    del _CONFIGS[id(config)]
                    config._attn_implementation = kernel_of(config._attn_implementation)

    @property
    def _calls(self) -> list[tuple[int, AnnouncedCache]]:
        """Calls under way in this thread, the outermost first: depth of the module, and the cache."""
        if not hasattr(self._under_way, "calls"):
            self._under_way.calls = []
        return self._under_way.calls

    def _close(self, depth: int, broken: bool) -> None:
        """End calls of this depth and deeper ones."""
        calls = self._calls
        while calls and calls[-1][0] >= depth:
            _, cache = calls.pop()
            if not calls:
                self._unwrap()
                cache.end(broken)

    def forget(self, cache: AnnouncedCache) -> None:
        """End calls of this cache that were interrupted in this thread."""
        if any(user is cache for _, user in self._calls):
            self._close(0, broken=True)

    def enter(self, depth: int, names: tuple[str, ...], module: nn.Module, args: tuple, kwargs: dict) -> None:
        """Before a module that holds all bounded layers.

        Args:
            depth: depth of the module below the model.
            names: names of the parameters of its forward.
        """
        cache = _cache_of(args, kwargs)
        if cache is None and depth == 0 and not torch.compiler.is_compiling():
            self._close(0, broken=True)  # a call that was interrupted: the outermost module is never called from inside
        if cache is None or not cache.serves_model(self.model()):
            return
        require_uncompiled(module)
        self._close(depth, broken=True)  # calls that were interrupted: torch runs no hook after a KeyboardInterrupt
        if not self._calls:
            arguments = {**dict(zip(names, args, strict=False)), **kwargs}
            if _num_new(arguments) > 1:  # inner modules may have been compiled since; one check per prompt is enough
                for inside in _holders(module, list(self.modules.values())):
                    require_uncompiled(inside)
            cache.begin(arguments)
            self._wrap()
        self._calls.append((depth, cache))

    def leave(self, depth: int, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        """After such a module, also where it raised: there is no output then."""
        if _cache_of(args, kwargs) is not None and self._calls and self._calls[-1][0] == depth:
            self._close(depth, broken=output is None)

    def announce(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Before an attention module."""
        announced = kwargs.get(CALL_KWARG)
        if isinstance(announced, AnnouncedStep):
            announced.note_rope(module.layer_idx, *kwargs["position_embeddings"])
            return None
        cache = _cache_of((), kwargs)
        if cache is None or not cache.serves(module, self.model()):
            return None
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        if hidden.shape[1] > 1:  # one check per prompt is enough
            require_uncompiled(module)
        if module.config._attn_implementation == kernel_of(module.config._attn_implementation):
            raise RuntimeError(
                f"{type(module).__name__} (layer {module.layer_idx}) was called with a BoundedCache, but not by the "
                "model that the cache was made for: call that model or the decoder inside it, and not their forward()"
            )
        index, embeddings = module.layer_idx, kwargs.get("position_embeddings")
        if not isinstance(embeddings, tuple) or len(embeddings) != 2:
            raise ValueError(
                f"{type(module).__name__} takes no pair of cos and sin as position_embeddings: cannot be bounded"
            )
        cos, sin = embeddings
        if index not in self.rotary:
            self._verify(index, hidden, cos, sin, _probe_arguments(kwargs, cache))
        return args, {**kwargs, CALL_KWARG: cache.call(index, Rope(cos, sin, self.rotary[index]))}

    def _verify(self, index: int, hidden: Tensor, cos: Tensor, sin: Tensor, kwargs: dict) -> None:
        """Find the rotation of layer ``index``, and of other layers where the same arguments will do.

        The rotation of a layer decides which layers take decode steps together, so it is found for all of them
        when the first one begins.
        """
        self.rotary[index] = verified_rotary(self.modules[index], hidden, cos, sin, CALL_KWARG, kwargs)
        for other, module in self.modules.items():
            if other in self.rotary:
                continue
            try:
                self.rotary[other] = verified_rotary(module, hidden, cos, sin, CALL_KWARG, kwargs)
            except ValueError:  # its own call will raise
                continue

    def detach(self) -> None:
        """Restore the model."""
        for handle in self.handles:
            handle.remove()
        self.restore_generation()
        while self.num_wraps:  # of calls that were interrupted
            self._unwrap()


class _Hook:
    """A hook that copies of the model do not inherit: in a copy, or in a pickled model, it does nothing.

    Args:
        act: what to call, with ``first`` before the arguments of the hook.
    """

    def __init__(self, act: Callable | None = None, *first: Any) -> None:
        self.act, self.first = act, first

    def __call__(self, *args: Any) -> Any:
        return None if self.act is None else self.act(*self.first, *args)

    def __reduce__(self) -> tuple:
        return _Hook, ()


def attach(model: nn.Module, layers: list[int], user: object) -> tuple[Attachment, Callable[[], None]]:
    """Attach ``model`` for as long as ``user`` exists.

    Returns:
        The attachment, and a function that detaches earlier.

    Raises:
        ValueError: the model or its attention implementation cannot be bounded.
    """
    with _LOCK:
        attachment = _ATTACHMENTS.get(model)
        if attachment is None:
            attachment = _ATTACHMENTS[model] = Attachment(model, layers)
        attachment.num_users += 1  # first of all: the collector may release the last other user at any time
        release = weakref.finalize(user, _release, weakref.ref(model), attachment)
        try:
            attachment.require_kernels()
        except ValueError:
            release()
            raise
        return attachment, release


def _release(model_ref: weakref.ref, attachment: Attachment) -> None:
    with _LOCK:
        attachment.num_users -= 1
        if attachment.num_users == 0:
            attachment.detach()
            model = model_ref()
            if model is not None:
                _ATTACHMENTS.pop(model, None)


def _cache_of(args: tuple, kwargs: dict) -> AnnouncedCache | None:
    for value in (*kwargs.values(), *args):
        if isinstance(value, AnnouncedCache):
            return value
    return None


def _num_new(arguments: dict) -> int:
    tokens = arguments.get("input_ids")
    tokens = arguments.get("inputs_embeds") if tokens is None else tokens
    return tokens.shape[1] if isinstance(tokens, Tensor) and tokens.ndim > 1 else 0


def _holders(model: nn.Module, attention: list[nn.Module]) -> list[nn.Module]:
    """The model and the modules inside it that hold all of these attention modules, from the outermost on."""
    wanted = {id(module) for module in attention}
    holders, module = [], model
    while module is not None:
        if not isinstance(module, nn.ModuleList) and id(module) not in wanted:
            holders.append(module)
        inside = (child for child in module.children() if wanted <= {id(m) for m in child.modules()})
        module = next(inside, None)
    return holders


def _probe_arguments(kwargs: dict, cache: AnnouncedCache) -> dict:
    """The call's other arguments, reduced to a single token and no cache."""
    rest = {name: None if value is cache else value for name, value in kwargs.items() if name != "hidden_states"}
    rest["attention_mask"] = None
    for name in ("position_ids", "cache_position"):
        if isinstance(rest.get(name), Tensor):
            rest[name] = rest[name][..., :1][:1]
    return rest
