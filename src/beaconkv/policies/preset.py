"""Named settings of a method, as published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """One published form of a method: settings of the policy, and of the schedule.

    None leaves a value to the policy's class (prefix, protect) or to the schedule (all others).

    Attributes:
        settings: settings of the policy; the others keep their defaults.
        source: where these numbers are published.
        prefix: first entries never evicted: a number, or "prompt".
        protect: last entries never evicted: a number, or "half" of what an eviction leaves.
        every: steps between two evictions: an eviction leaves budget - every entries.
        budget, budget_min, growth, scope: the schedule itself, where the method fixes it.
        note: how this form differs from others.
    """

    settings: Mapping[str, Any]
    source: str
    prefix: int | str | None = None
    protect: int | str | None = None
    every: int | None = None
    budget: int | None = None
    budget_min: int | None = None
    growth: int | None = None
    scope: str | None = None
    note: str = ""

    def describe(self) -> dict[str, Any]:
        """The preset as a plain dict: the policy's settings, then those of the schedule, source and note."""
        rest = {k: v for k, v in vars(self).items() if k != "settings" and v not in (None, "")}
        return {"settings": dict(self.settings), **rest}
