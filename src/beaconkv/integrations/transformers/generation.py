"""``generate`` of a model that has bounded caches: the text is compared with what the cache holds before it runs.

``generate`` takes the whole text and passes only its new tokens to the model. Only here can the rest be compared with
what the cache was shown. Two of the methods that every ``generate`` calls of its model are replaced on
the model while a cache exists: the one that finds the input, and the one that prepares the cache. ``generate`` itself
would be looked up too early: before a cache that is made in the same line exists.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import Tensor, nn


class ContinuedCache(ABC):
    """The interface of a cache that ``generate`` uses: its texts are compared."""

    @abstractmethod
    def require_text(self, ids: Tensor | None, length: int, mask: Tensor | None) -> None:
        """At the beginning of ``generate``.

        Args:
            ids: (B, length) int64, the whole text or its new part; None where embeddings are given.
            length: length of what is given.
            mask: (B, columns), or None.

        Raises:
            ValueError: the text does not continue what the cache holds.
        """

    @abstractmethod
    def expect_prompt(self, prefill_chunk: int | None) -> None:
        """Called next. prefill_chunk: number of tokens in which the host cuts this prompt, or None."""


class _CheckedMethod:
    """Replaces a method of a model while bounded caches of it exist. Copies of the model get the plain one.

    Args:
        model: the model.
    """

    name: str

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self.before = vars(model).get(self.name)

    def plain(self) -> Callable:
        """The method itself."""
        model = self._model()
        return MethodType(getattr(type(model), self.name), model) if self.before is None else self.before

    def put_back(self) -> None:
        """Restore the model."""
        model = self._model()
        if model is None or vars(model).get(self.name) is not self:
            return
        if self.before is None:
            delattr(model, self.name)
        else:
            setattr(model, self.name, self.before)

    def __reduce__(self) -> tuple:
        return (getattr, (self._model(), self.name)) if self.before is None else (_same, (self.before,))


def _same(thing: Any) -> Any:
    return thing


class _CheckedInput(_CheckedMethod):
    """Compares the text."""

    name = "_prepare_model_inputs"

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, str | None, dict[str, Any]]:
        inputs, kind, arguments = found = self.plain()(*args, **kwargs)
        cache = _cache_in(arguments)
        if cache is not None and isinstance(inputs, Tensor) and inputs.ndim > 1:
            mask = arguments.get("attention_mask")
            is_mask = isinstance(mask, Tensor) and mask.ndim == 2
            ids = inputs if kind == "input_ids" and inputs.ndim == 2 else None
            cache.require_text(ids, inputs.shape[1], mask if is_mask else None)
        return found


class _CheckedCache(_CheckedMethod):
    """Refuses settings that a bounded cache does not support, and passes on how the prompt is cut."""

    name = "_prepare_cache_for_generation"

    def __call__(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        cache = _cache_in(model_kwargs)
        if cache is not None:
            if generation_config.use_cache is False:
                raise ValueError(
                    "use_cache=False together with a BoundedCache: every step would feed the whole text to the cache "
                    "again. Call generate(..., use_cache=True); a checkpoint's config may have set it to False"
                )
            cache.expect_prompt(getattr(generation_config, "prefill_chunk_size", None))
        return self.plain()(generation_config, model_kwargs, *args, **kwargs)


def _cache_in(arguments: dict[str, Any]) -> ContinuedCache | None:
    return next((value for value in arguments.values() if isinstance(value, ContinuedCache)), None)


def check_generation(model: nn.Module) -> Callable[[], None]:
    """Let ``model.generate`` compare texts; returns a function that restores its methods."""
    methods = [kind(model) for kind in (_CheckedInput, _CheckedCache) if hasattr(type(model), kind.name)]
    for method in methods:
        setattr(model, method.name, method)

    def put_back() -> None:
        for method in methods:
            method.put_back()

    return put_back
