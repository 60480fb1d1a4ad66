"""``generate`` of a model that has bounded caches: the text is compared with what the cache holds before it runs.

``generate`` takes the whole text and hands only its new tokens to the model. Whether the rest is what the cache was
shown can be told here and nowhere else.
"""

from __future__ import annotations

import inspect
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any

from torch import Tensor, nn


class ContinuedCache(ABC):
    """A cache whose texts are compared: the part of it that ``generate`` knows."""

    @abstractmethod
    def generating(
        self, ids: Tensor | None, embeds: Tensor | None, mask: Tensor | None, prefill_chunk: int | None
    ) -> AbstractContextManager:
        """For the time of one call.

        Args:
            ids: (B, tokens), the whole text or its new part.
            embeds: (B, tokens, hidden) in place of them.
            mask: (B, columns), or None.
            prefill_chunk: tokens into which the host cuts the prompt, or None.

        Raises:
            ValueError: the text does not continue what the cache holds.
        """


class CheckedGenerate:
    """In place of a model's ``generate`` while bounded caches of it live. Copies of the model get the plain one.

    Args:
        model: with a ``generate``.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self.before = vars(model).get("generate")
        plain = self._plain()
        self.__doc__, self.__name__ = plain.__doc__, "generate"
        self.__signature__ = inspect.signature(plain)

    def _plain(self) -> Callable:
        model = self._model()
        return MethodType(type(model).generate, model) if self.before is None else self.before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        cache = next((value for value in values if isinstance(value, ContinuedCache)), None)
        if cache is None:
            return self._plain()(*args, **kwargs)
        if self._setting("use_cache", kwargs) is False:
            raise ValueError(
                "use_cache=False together with a BoundedCache: every step would feed the whole text to the cache "
                "again. Call generate(..., use_cache=True); a checkpoint's config may have set it to False"
            )
        ids = kwargs.get("input_ids", kwargs.get("inputs", args[0] if args else None))
        chunk = self._setting("prefill_chunk_size", kwargs)
        with cache.generating(ids, kwargs.get("inputs_embeds"), kwargs.get("attention_mask"), chunk):
            return self._plain()(*args, **kwargs)

    def _setting(self, name: str, kwargs: dict) -> Any:
        """A generation setting, from the most to the least specific place."""
        if kwargs.get(name) is not None:
            return kwargs[name]
        for config in (kwargs.get("generation_config"), self._model().generation_config):
            if (value := getattr(config, name, None)) is not None:
                return value
        return None

    def __reduce__(self) -> tuple:
        return (getattr, (self._model(), "generate")) if self.before is None else (_same, (self.before,))


def _same(thing: Any) -> Any:
    return thing


def check_generate(model: nn.Module) -> Callable[[], None]:
    """Let ``model.generate`` compare texts; returns a function that puts back what was there."""
    if not callable(getattr(model, "generate", None)):
        return lambda: None
    checked = model.generate = CheckedGenerate(model)
    reference = weakref.ref(model)

    def put_back() -> None:
        owner = reference()
        if owner is None or vars(owner).get("generate") is not checked:
            return
        if checked.before is None:
            del owner.generate
        else:
            owner.generate = checked.before

    return put_back
