"""The phases of a step's time: the library's own functions, timed within a ``with`` block."""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import ModuleType
from unittest.mock import patch

import torch

from beaconkv import ops
from beaconkv.cache.layer import BoundedLayer
from beaconkv.cache.slab import EntrySlab
from beaconkv.cache.stack import LayerStack
from beaconkv.integrations.transformers import call
from beaconkv.policies import EvictionPolicy
from beaconkv.policies.h2o import ReceivedAttention
from beaconkv.policies.history import History
from beaconkv.policies.query_buffer import QueryBuffer

PHASES = ("attention", "scoring", "selection", "sampling", "compaction", "buffers", "storing")
"""Phases: scoring includes the rotation of queries; buffers holds queries, without sampling; storing writes entries."""


class Phases:
    """Milliseconds of each phase, each without the phases inside it. On a GPU every call waits: use short runs.

    >>> with Phases(device) as phases:
    ...     decoder.feed(ids)
    >>> phases.milliseconds
    """

    def __init__(self, device: torch.device) -> None:
        self.milliseconds = dict.fromkeys(PHASES, 0.0)
        self._wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
        self._inside: list[float] = []

    def __enter__(self) -> Phases:
        self._stack = ExitStack()
        watched: list[tuple[type | ModuleType, str, str]] = [
            (call, "run_step", "attention"),
            (ops, "select_entries", "selection"),
            (ops, "farthest_point_sampling", "sampling"),
            (EntrySlab, "compact", "compaction"),
            (BoundedLayer, "append", "storing"),
            (LayerStack, "append", "storing"),
            *((state, name, "buffers") for state in (QueryBuffer, History, ReceivedAttention)
              for name in ("observe", "evicted")),
            *((cls, "score", "scoring") for cls in _scorers(EvictionPolicy)),
        ]  # fmt: skip
        for owner, name, phase in watched:
            if name in vars(owner):
                self._stack.enter_context(patch.object(owner, name, self._timed(vars(owner)[name], phase)))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _timed(self, function, phase: str):
        def timed(*args, **kwargs):
            self._wait()
            self._inside.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._wait()
                took = 1000 * (time.perf_counter() - start)
                self.milliseconds[phase] += took - self._inside.pop()
                if self._inside:
                    self._inside[-1] += took

        return timed


def _scorers(cls: type) -> set[type]:
    return {cls} | {found for child in cls.__subclasses__() for found in _scorers(child)}
