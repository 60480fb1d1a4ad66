"""Specs such as ``rkv:code:redundancy_weight=0.8``: a method, a preset and settings in one text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..schedule import EvictionSchedule
from .base import EvictionPolicy
from .preset import Preset
from .registry import build_policy, policy_class, preset_of


@dataclass(frozen=True)
class PolicySpec:
    """A policy and its recommended schedule.

    Attributes:
        spec: Text it was parsed from, or the name of a policy given as an object.
        policy: Policy, ready to use.
        prefix, protect: Number of entries never evicted at either end; see :class:`Preset`.
        every: Number of steps between two evictions, or None: the default of the schedule.
        fixed: Values of the schedule that the method fixes itself: budget, budget_min, growth, scope.
    """

    spec: str
    policy: EvictionPolicy
    prefix: int | str
    protect: int | str
    every: int | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def budget(self) -> int | None:
        """The budget that the method fixes itself, or None."""
        return self.fixed.get("budget")

    def schedule(self, budget: int | None = None, **chosen: Any) -> EvictionSchedule:
        """The schedule that is recommended, unless chosen otherwise.

        Args:
            budget: Maximum number of entries (B_max); may be None where the spec fixes it.
            chosen: Further arguments of :class:`beaconkv.EvictionSchedule`, which override the recommendation; None
                stands for no choice.

        Example:
            >>> parse_policy("rkv:code").schedule(1024).budget_min  # it evicts every 128 steps
            896

        Raises:
            ValueError: another budget than the one the spec fixes; a published interval between evictions that is not
                possible at this budget; and invalid values of the schedule.
        """
        if self.budget is not None:
            if budget not in (None, self.budget):
                raise ValueError(
                    f"{self.spec} has a schedule of its own: budget must be None or {self.budget}, got {budget}"
                )
            budget = self.budget
        arguments = {"prefix": self.prefix, "protect": self.protect, "budget_min": None}
        arguments |= {name: value for name, value in self.fixed.items() if name != "budget"}
        arguments |= {name: value for name, value in chosen.items() if value is not None}
        if self.every is not None and budget is not None and arguments["budget_min"] is None:
            arguments["budget_min"] = budget - self.every
            first = 0 if arguments.get("scope") == "output" else arguments["prefix"]
            ends = [n for n in (first, arguments["protect"]) if isinstance(n, int)]
            if arguments["budget_min"] < max(1, sum(ends)):
                raise ValueError(
                    f"{self.spec} evicts once in every={self.every} steps, which budget={budget} does not allow: "
                    f"{arguments['budget_min']} entries would stay, and {max(1, sum(ends))} must. "
                    f"Choose a budget of at least {self.every + max(1, sum(ends))}, or a budget_min"
                )
        return EvictionSchedule(budget, **arguments)


def parse_policy(spec: str | EvictionPolicy, **settings: Any) -> PolicySpec:
    """Read ``name[:preset][:setting=value]...``, for example ``rkv``, ``rkv:code``, ``beaconkv:n_recent=4``.

    Values are JSON where they can be parsed as such, else text. A plain name is the method at the schedule
    all methods are compared at: prefix and protect of its class, budget_min 7/8 of the budget.

    Args:
        spec: Text as above; or a policy, which is used as it is, with the recommendations of its class.
        settings: Settings of the policy, which override those in the spec.

    Example:
        >>> spec = parse_policy("rkv:code:redundancy_weight=0.5")
        >>> spec.policy.redundancy_weight, spec.prefix
        (0.5, 0)

    Raises:
        ValueError: an unknown name, preset or setting (the message lists the choices), a setting out of
            range, or settings for a policy that is an object already.
    """
    if isinstance(spec, EvictionPolicy):
        policy = replace(spec, **settings) if settings else spec
        return PolicySpec(policy.name or type(policy).__name__, policy, policy.default_prefix, policy.default_protect)
    if not isinstance(spec, str):
        raise ValueError(f"policy must be a name or an EvictionPolicy, got {spec!r}")
    name, *parts = spec.split(":")
    cls, preset = policy_class(name), None
    if parts and "=" not in parts[0]:
        preset = preset_of(cls, parts.pop(0))
    own = parse_settings(parts, f"policy {spec!r}", "name[:preset][:setting=value]...")
    preset = preset or Preset({}, cls.source)
    fixed = {k: getattr(preset, k) for k in ("budget", "budget_min", "growth", "scope")}
    return PolicySpec(
        spec,
        build_policy(name, {**preset.settings, **own, **settings}),
        cls.default_prefix if preset.prefix is None else preset.prefix,
        cls.default_protect if preset.protect is None else preset.protect,
        preset.every,
        {k: v for k, v in fixed.items() if v is not None},
    )


def make_policy(spec: str, **settings: Any) -> EvictionPolicy:
    """The policy of a spec.

    Example:
        >>> make_policy("beaconkv:4-28", query_pool="mean").n_beacon
        28

    Raises:
        ValueError: as :func:`parse_policy`.
    """
    return parse_policy(spec, **settings).policy


def parse_settings(texts: Iterable[str], owner: str, form: str) -> dict[str, Any]:
    """``["n_recent=4", "query_pool=mean"]`` as ``{"n_recent": 4, "query_pool": "mean"}``.

    Args:
        texts: Settings, each as ``setting=value``; see :func:`parse_value`.
        owner: Name of what the settings belong to, for the message of an error.
        form: Notation of the settings there, for the same message.

    Raises:
        ValueError: a text without a name or without "=".
    """
    settings: dict[str, Any] = {}
    for text in texts:
        setting, equals, value = text.partition("=")
        if not equals or not setting:
            raise ValueError(f"{owner}: {text!r} is no setting=value; write {form}")
        settings[setting] = parse_value(value)
    return settings


def parse_value(text: str) -> Any:
    """A number, true, false, null or other JSON where the text is that; else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
