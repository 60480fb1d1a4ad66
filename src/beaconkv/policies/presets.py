"""Named settings of methods, as published, and the specs that name them: ``rkv:code:redundancy_weight=0.8``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .base import EvictionPolicy, build_policy, policy_class, preset_of


@dataclass(frozen=True)
class Preset:
    """One published form of a method: settings of the policy, and what it asks of the schedule.

    None leaves a value to the policy's class (prefix, protect) or to the schedule (all others).

    Attributes:
        settings: of the policy; the others keep their defaults.
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
        """What is set, as a plain dict: the policy's settings, then those of the schedule, source and note."""
        rest = {k: v for k, v in vars(self).items() if k != "settings" and v not in (None, "")}
        return {"settings": dict(self.settings), **rest}


@dataclass(frozen=True)
class PolicySpec:
    """A policy and the schedule it recommends.

    Attributes:
        spec: the text it was parsed from, or the name of a policy given as an object.
        policy: ready to use.
        prefix, protect: entries never evicted at either end; see :class:`Preset`.
        every: steps between two evictions, or None: what the schedule does by default.
        fixed: the parts of the schedule that the method fixes itself: budget, budget_min, growth, scope.
    """

    spec: str
    policy: EvictionPolicy
    prefix: int | str
    protect: int | str
    every: int | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def resolve_budget(self, budget: int | None = None) -> int | None:
        """The budget that was asked for, or the one this spec brings with it.

        Raises:
            ValueError: the two differ.
        """
        own = self.fixed.get("budget")
        if own is not None and budget not in (None, own):
            raise ValueError(f"{self.spec} has a schedule of its own: budget must be None or {own}, got {budget}")
        return budget if own is None else own

    def schedule_arguments(self, budget: int | None = None, **chosen: Any) -> dict[str, Any]:
        """Arguments of an ``EvictionSchedule`` beside the budget: what is recommended, unless chosen otherwise.

        >>> EvictionSchedule(spec.resolve_budget(budget), **spec.schedule_arguments(budget))

        Args:
            budget: B_max; may be None where the spec brings its own.
            chosen: arguments that win over the recommendation; None stands for no choice.

        Returns:
            prefix, protect and budget_min; growth and scope if the method fixes them; and what was chosen.

        Raises:
            ValueError: the published interval between evictions is not possible at this budget.
        """
        budget = self.resolve_budget(budget)
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
        return arguments


def parse_policy(spec: str | EvictionPolicy, **settings: Any) -> PolicySpec:
    """Read ``name[:preset][:setting=value]...``, for example ``rkv``, ``rkv:code``, ``beaconkv:n_recent=4``.

    Values are JSON where they can be read as such, else text. A plain name is the method at the schedule
    all methods are compared at: prefix and protect of its class, budget_min 7/8 of the budget.

    Args:
        spec: as above; or a policy, which is taken as it is, with the recommendations of its class.
        settings: win over those in the spec.

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
    cls, preset, own = policy_class(name), None, {}
    if parts and "=" not in parts[0]:
        preset = preset_of(cls, parts.pop(0))
    for part in parts:
        setting, equals, value = part.partition("=")
        if not equals or not setting:
            raise ValueError(f"policy {spec!r}: {part!r} is no setting=value; write name[:preset][:setting=value]...")
        own[setting] = parse_value(value)
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
    """The policy of a spec, for example ``make_policy("rkv:code")`` or ``make_policy("beaconkv", n_recent=4)``.

    Raises:
        ValueError: as :func:`parse_policy`.
    """
    return parse_policy(spec, **settings).policy


def parse_value(text: str) -> Any:
    """A number, true, false, null or other JSON where the text is that; else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
