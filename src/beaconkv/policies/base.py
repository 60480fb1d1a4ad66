"""Base classes of every eviction method: frozen settings with one ``score`` method, and the state of one layer."""

from __future__ import annotations

import inspect
from abc import ABCMeta, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..types import CacheView, Rope, Rows, persistent_copy, persistent_zeros
from .preset import Preset

REGISTRY: dict[str, type[EvictionPolicy]] = {}
"""Every class with a name; the class statement adds it, and ``registry.py`` reads it."""


class LayerState:
    """What a policy has observed in one layer of one cache; it exists as long as that cache.

    This base class remembers nothing. Wherever ``rows`` is passed, these rows share one ``row_key``.
    """

    def row_key(self, row: int) -> Hashable:
        """Rows with equal keys can be treated as one tensor."""
        return None

    def observe(self, queries: Tensor, rope: Rope, until_full: list[int], rows: Rows, view: CacheView | None) -> None:
        """Observe the queries of new tokens, each exactly once, after their attention was computed.

        A decode step passes all rows at once, whatever their keys (unless the policy sets
        ``observes_entries`` without ``observes_free_slots``).

        Args:
            queries: Queries (R, H, m, D) after RoPE, oldest first. They are valid during the call: copy what must stay.
            rope: Rope of the model for these m tokens.
            until_full: Number of entries, per row, that may still come before its eviction; 0 or less: it follows now.
            rows: Rows of the batch that the queries belong to.
            view: Entries including the new ones, if the policy sets ``observes_entries``.
        """

    def observe_steps(self, queries: Tensor, rope: Rope, until_full: list[int], rows: Rows) -> None:
        """Observe several decode steps, the same as :meth:`observe` of each in turn, for policies that need no entries.

        Args:
            queries: Queries (R, H, m, D) after RoPE, oldest first.
            rope: Rope of the model for these m tokens.
            until_full: Number of entries, per step, that may still come before the eviction of these rows.
            rows: All rows of the batch, in equal states.
        """
        for step, left in enumerate(until_full):
            alone = rope.steps(step, step + 1)
            self.observe(queries[:, :, step : step + 1], alone, [left] * len(rows), rows, None)

    def evicted(self, source: Tensor, rows: Rows) -> None:
        """The entries were compacted: slot i now holds what slot ``source[..., i]`` held (R, H_kv, K)."""

    def select_rows(self, index: Tensor, numbers: list[int]) -> None:
        """Row i becomes what row ``index[i]`` was (beam search, expanded or reduced batches).

        Args:
            index: Row numbers (B_new,) int64 on the state's device.
            numbers: Row numbers on the host; where all rows share one ``row_key``, they are interchangeable.
        """

    @classmethod
    def stack(cls, states: Sequence[LayerState]) -> LayerState | None:
        """One state for the stacked heads of several layers, or None if the layers cannot be stacked.

        Args:
            states: States of layers that have seen the same tokens. They are not used again.
        """
        return states[0] if cls is LayerState else None

    def unstack(self, count: int) -> list[LayerState]:
        """The states of ``count`` layers again; this one is not used afterwards."""
        return [LayerState() for _ in range(count)]

    def observation_queries(self, rows: Rows) -> Tensor | None:
        """(R, H, m, D) float32 before RoPE: the queries that these rows are scored with now; None: there are none.

        It is called only where ``on_evict`` is set.
        """
        return None

    @property
    def nbytes(self) -> int:
        """Bytes this state holds."""
        return 0


class _NamedMeta(ABCMeta):
    """Passes ``name`` of a class statement around ``ABCMeta``, which has a parameter of that name in Python 3.10."""

    def __new__(mcls, class_name, bases, namespace, /, *, name: str = "", **kwargs):
        if name:
            kwargs["registered_as"] = name
        return super().__new__(mcls, class_name, bases, namespace, **kwargs)


@dataclass(frozen=True)
class EvictionPolicy(metaclass=_NamedMeta):
    """An eviction method. A subclass with a name is registered everywhere:

    >>> @dataclass(frozen=True)
    ... class Newest(EvictionPolicy, name="newest"):
    ...     '''Keep the newest entries.'''
    ...     def score(self, view, state):
    ...         return view.positions.float()

    A subclass receives a :class:`~beaconkv.types.CacheView` and its own state, never a model or a config.
    """

    name: ClassVar[str] = ""
    source: ClassVar[str] = ""
    """Paper and section that define the method."""
    evicts: ClassVar[bool] = True
    """False: the cache grows and no budget applies."""
    observes_entries: ClassVar[bool] = False
    """True: ``LayerState.observe`` receives the entries at every step, not the queries alone."""
    observes_free_slots: ClassVar[bool] = False
    """True, with ``observes_entries``: a decode step passes all rows at once, whatever their keys. Slots that a
    shorter row has not filled are at position ``FREE``, and their contents are undefined."""
    per_head: ClassVar[bool] = False
    """True: state and score treat each KV head and its group separately, or take ``view.layers`` into account. Decode
    steps then pass the stacked heads of several layers, which is faster. A subclass that overrides a method does not
    inherit it."""
    default_prefix: ClassVar[int] = 4
    default_protect: ClassVar[int | str] = 32
    presets: ClassVar[Mapping[str, Preset]] = {}
    """Name -> published form; a subclass does not inherit them."""

    def __init_subclass__(cls, *, registered_as: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "presets" not in vars(cls):
            cls.presets = {}
        own_methods = any(inspect.isfunction(value) and key[:2] != "__" for key, value in vars(cls).items())
        if "per_head" not in vars(cls) and own_methods:
            cls.per_head = False  # a class that overrides a method must declare it again
        if not registered_as:
            return
        known = REGISTRY.get(registered_as)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"policy name {registered_as!r} is taken by {known.__module__}.{known.__qualname__}")
        cls.name = registered_as
        REGISTRY[registered_as] = cls

    def new_state(self, batch: int) -> LayerState:
        """A fresh state for one layer of one cache of ``batch`` rows."""
        return LayerState()

    @abstractmethod
    def score(self, view: CacheView, state: LayerState) -> Tensor:
        """Score of each entry: (R, H_kv, N) float, finite; entries of higher score stay.

        It is called when the cache is full, after ``observe`` of the newest token. It must not read anything beyond
        ``view``, and the score of a row must not depend on the other rows.
        """


def concat_heads(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors (B, heads, ...) of several layers as one (B, all heads, ...) that can be written to."""
    first = tensors[0]
    heads = sum(tensor.shape[1] for tensor in tensors)
    joined = persistent_zeros(first, first.shape[0], heads, *first.shape[2:])
    return torch.cat(list(tensors), dim=1, out=joined)


def heads_of_layer(tensor: Tensor, number: int, count: int) -> Tensor:
    """The heads of one of ``count`` layers in a tensor (B, all heads, ...), as a tensor of its own."""
    return persistent_copy(tensor.chunk(count, dim=1)[number])


def require_int(owner: str, name: str, value: Any, least: int) -> None:
    """Raise ``ValueError`` unless ``value`` is an int (no bool) of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{owner}: {name} must be an integer >= {least}, got {value!r}")


def require_choice(owner: str, name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{owner}: {name} must be one of {', '.join(choices)}; got {value!r}")
