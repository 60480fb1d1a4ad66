"""Settings of a server: a method, its budget and its schedule. No vLLM needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from ...cache import EvictionSchedule
from ...policies import EvictionPolicy, PolicySpec, parse_policy
from ...policies.spec import parse_value

WORKER = "beaconkv.integrations.vllm.worker.BoundedWorker"
"""The value of vLLM's ``--worker-cls`` for a bounded cache."""

PREFIX = "BEACONKV_"
OTHERS = ("OPS", "CACHE", "DATA", "DEBUG")
"""Environment variables of the same prefix that are not settings of a server."""


@dataclass(frozen=True)
class ServingSettings:
    """The settings of a bounded cache in a server; the names are those of :class:`beaconkv.BoundedCache`.

    Attributes:
        policy: Spec such as "beaconkv" or "rkv:code"; see :func:`beaconkv.parse_policy`.
        budget: Maximum number of entries per layer and KV head (B_max). May be None where the spec fixes it.
        budget_min, scope, prefix, protect: Values as in :class:`beaconkv.EvictionSchedule`; None stands for the spec's
            recommendation, or else the schedule's default.
        prefill_chunk: Minimum number of prompt tokens between two evictions, wherever vLLM splits the prompt. None: as
            many as vLLM takes in one step (``max_num_batched_tokens``).

    Example:
        >>> ServingSettings("rkv:code", budget=2048).schedule.budget_min
        1920

    Raises:
        ValueError: settings that cannot work in a server; the message names the offender and the choices.
    """

    policy: str = "beaconkv"
    budget: int | None = None
    budget_min: int | None = None
    scope: str | None = None
    prefix: int | str | None = None
    protect: int | str | None = None
    prefill_chunk: int | None = None

    def __post_init__(self) -> None:
        policy, schedule = self.method, self.schedule
        if not policy.evicts:
            raise ValueError(f"policy {policy.name!r} never evicts: run vLLM without these settings")
        if policy.observes_entries:
            raise ValueError(
                f"policy {policy.name!r} reads the entries at every step, which vLLM's kernels do not allow: choose a "
                "policy that needs queries, keys and positions alone"
            )
        if schedule.growth:
            raise ValueError(f"{self.policy}: growth={schedule.growth} is not possible in vLLM: blocks are bounded")
        if schedule.prefix == "prompt" and schedule.scope == "total":
            raise ValueError(
                'prefix="prompt" is not possible in vLLM, where a long prompt of one request would stop all: '
                'choose a number, or scope="output"'
            )

    @cached_property
    def spec(self) -> PolicySpec:
        """The policy and its recommended schedule."""
        return parse_policy(self.policy)

    @property
    def method(self) -> EvictionPolicy:
        """The policy."""
        return self.spec.policy

    @cached_property
    def schedule(self) -> EvictionSchedule:
        """The schedule of each request."""
        names = ("budget_min", "scope", "prefix", "protect", "prefill_chunk")
        if self.budget is None and self.spec.budget is None and self.method.evicts:
            raise ValueError(f"policy {self.policy!r} needs a budget")
        return self.spec.schedule(self.budget, **{name: getattr(self, name) for name in names})

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> ServingSettings | None:
        """Settings as a dictionary, such as ``{"budget": 2048}``; None if there are none.

        Raises:
            ValueError: an unknown name, or as the class.
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise ValueError(f"there is no setting {name!r} of a bounded cache in vLLM; it has {', '.join(known)}")
        return cls(**given) if given else None

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] = os.environ, strict: bool = True
    ) -> ServingSettings | None:
        """Settings from ``BEACONKV_BUDGET`` and the like; None if there are none.

        Args:
            environment: variables and their values.
            strict: False: unknown names are an error only together with known ones, since vLLM's own servers see these
                variables too.

        Raises:
            ValueError: as :meth:`from_mapping`.
        """
        given = {}
        for variable, value in environment.items():
            name = variable.removeprefix(PREFIX)
            if name != variable and name not in OTHERS and value:
                given[name.lower()] = value if name in ("POLICY", "SCOPE") else parse_value(value)
        known = {field.name for field in fields(cls)}
        return cls.from_mapping(given) if strict or known & set(given) else None

    @staticmethod
    def without(environment: Mapping[str, str]) -> dict[str, str]:
        """An environment without any settings."""
        others = {PREFIX + name for name in OTHERS}
        return {k: v for k, v in environment.items() if not k.startswith(PREFIX) or k in others}

    def to_environment(self) -> dict[str, str]:
        """The variables that :meth:`from_environment` reads these settings from."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {PREFIX + name.upper(): str(value) for name, value in given.items() if value is not None}

    def describe(self) -> str:
        """One line for users."""
        s = self.schedule
        what = "prompt and text" if s.scope == "total" else "text"
        return (
            f"{self.policy}, budget {s.budget} ({what}; an eviction leaves {s.budget_min}), "
            f"first {s.prefix_for(0) if s.scope == 'total' else 'prompt'} and last {s.protect} protected"
        )
